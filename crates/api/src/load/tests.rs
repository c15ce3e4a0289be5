use super::*;

fn said(text: &str) -> String {
    load("app.yaml", text).diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata:\n  name: echo\nspec:\n  ports:\n  - port: 8080\n";

#[test]
fn each_document_stands_alone() {
    let text = format!("{SERVICE}---\nkind: [\n---\n# only a comment\n---\n{SERVICE}");
    let out = load("app.yaml", &text);
    assert_eq!(out.objects.len(), 2);
    assert_eq!(out.objects[1].origin.line, 13);
    assert_eq!(out.diagnostics.len(), 1);
}

#[test]
fn messages_name_file_line_object_and_field() {
    let peer = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata:\n  name: x\nspec:\n  mtls:\n    mode: STRICTLY\n";
    let texts = [
        "kind: [\n".to_owned(),
        SERVICE.replace("8080", "many"),
        SERVICE.replace("port:", "prot:"),
        SERVICE.replace("  name: echo", "  namespace: shop"),
        "apiVersion: batch/v1\nkind: CronJob\nmetadata:\n  name: nightly\n".to_owned(),
        SERVICE.replace("v1", "v2"),
        "hello: world\n".to_owned(),
        peer.to_owned(),
    ];
    insta::assert_snapshot!(texts.iter().map(|text| said(text)).collect::<Vec<_>>().join("\n\n"));
}

#[test]
fn kinds_are_named_as_on_kubectls_command_line() {
    for text in ["po", "Pod", "pods", "pod"] {
        assert_eq!(text.parse::<Kind>().unwrap(), Kind::Pod);
    }
    assert_eq!("gateways".parse::<Kind>().unwrap(), Kind::Gateway);
    assert!("gatewayes".parse::<Kind>().is_err());
}
