use super::*;
use trysail_identity::ca::request as csr;
use trysail_identity::token::{Named, Signer};
use trysail_mesh::{Builder, Change};

fn server(signer: &Signer) -> CertificateServer {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {nodeName: n1, serviceAccountName: web, \
               containers: []}\nstatus: {podIP: 10.0.0.1}\n";
    let mut translator = crate::translate::Translator::new(crate::translate::MeshConfig {
        trust_domain: "cluster.local".into(),
        cluster: "c".into(),
    });
    let objects = trysail_api::load::load("pod", pod).objects;
    let changes: Vec<Change> =
        translator.apply(objects.into_iter().map(|l| (l.object.key(), Some(l.object))).collect()).records;
    CertificateServer {
        authority: Arc::new(Authority::create("cluster.local").unwrap()),
        callers: Callers::new(Verifier::new(signer.public_pem()).unwrap()),
        mesh: Arc::new(SnapshotCell::new(Builder::default().apply(changes))),
        node_accounts: vec!["istio-system/ztunnel".into()],
        trust_domain: "cluster.local".into(),
        max_ttl: Duration::from_secs(60),
    }
}

async fn ask(server: &CertificateServer, token: &str, wanted: Option<&str>) -> Result<usize, tonic::Code> {
    let (_, csr) = csr(&SpiffeId::new("cluster.local", "any", "any")).unwrap();
    let value = |text: &str| prost_types::Value { kind: Some(prost_types::value::Kind::StringValue(text.into())) };
    let metadata = wanted.map(|w| prost_types::Struct { fields: [(IMPERSONATED.to_owned(), value(w))].into() });
    let mut request = Request::new(IstioCertificateRequest { csr, validity_duration: 3600, metadata });
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    server.create_certificate(request).await.map(|r| r.into_inner().cert_chain.len()).map_err(|s| s.code())
}

#[tokio::test(start_paused = true)]
async fn a_node_proxy_gets_the_identities_of_its_own_nodes_pods_and_no_other() {
    let signer = Signer::generate().unwrap();
    let server = server(&signer);
    let token = |namespace: &str, account: &str, node: &str| {
        let named = |name: &str| Named { name: name.into(), uid: String::new() };
        let bound =
            Bound { namespace: namespace.into(), service_account: named(account), pod: named("p"), node: named(node) };
        signer.sign(&bound, Duration::from_secs(60)).unwrap()
    };
    let web = Some("spiffe://cluster.local/ns/shop/sa/web");
    let denied = Err(tonic::Code::Unauthenticated);
    assert_eq!(ask(&server, &token("istio-system", "ztunnel", "n1"), web).await, Ok(3));
    assert_eq!(ask(&server, &token("istio-system", "ztunnel", "n2"), web).await, denied, "the pod runs on n1");
    assert_eq!(
        ask(&server, &token("istio-system", "ztunnel", "n1"), Some("spiffe://cluster.local/ns/shop/sa/db")).await,
        denied
    );
    let db = Some("spiffe://cluster.local/ns/shop/sa/db");
    assert_eq!(ask(&server, &token("shop", "web", "n1"), db).await, denied, "no node proxy");
    for own in [None, web] {
        assert_eq!(ask(&server, &token("shop", "web", "n1"), own).await, Ok(3), "its own identity: {own:?}");
    }
    assert_eq!(ask(&server, "forged", None).await, denied);
}
