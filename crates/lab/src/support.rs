//! What the lab honours of an object. Anything else that a user wrote is named: refused if it would change what is tested, noted if not.

use crate::images::Images;
use serde_json::Value;
use trysail_api::diagnostic::{Diagnostic, Severity};
use trysail_api::k8s_openapi::api::batch::v1::JobSpec;
use trysail_api::k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use trysail_api::labels;
use trysail_api::load::Loaded;
use trysail_api::object::{Object, annotation, label};
use trysail_control::{deploy, proxy_config};

/// Paths under `spec` of a pod that are honoured, `[]` for any index and `*` for any key.
const POD: &[&str] = &[
    "nodeName",
    "nodeSelector.*",
    "serviceAccountName",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "volumes[].name",
    "volumes[].configMap.*",
    "volumes[].emptyDir.*",
    "volumes[].projected.*",
    "containers[].*",
    "initContainers[].*",
];
const CONTAINER: &[&str] = &[
    "name",
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "workingDir",
    "env",
    "ports",
    "volumeMounts",
    "readinessProbe",
    "livenessProbe",
    "startupProbe",
    "lifecycle",
    "resources",
    "restartPolicy",
];
/// Fields of a pod that mean nothing on one machine; said once, as a notice.
const HARMLESS: &[&str] = &[
    "tolerations",
    "priorityClassName",
    "dnsPolicy",
    "schedulerName",
    "enableServiceLinks",
    "automountServiceAccountToken",
    "imagePullSecrets",
];
const HARMLESS_CONTAINER: &[&str] =
    &["resources", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"];

/// What must be said of an object before it is accepted.
pub fn check(loaded: &Loaded, images: &Images) -> Vec<Diagnostic> {
    let mut out = Findings { loaded, found: Vec::new() };
    match &loaded.object {
        Object::Pod(pod) => {
            let spec = pod.spec.as_ref();
            out.pod(spec, "spec", images);
        }
        Object::Deployment(deployment) => {
            if let Some(spec) = &deployment.spec {
                out.pod(spec.template.spec.as_ref(), "spec.template.spec", images);
                if spec.template.metadata.as_ref().is_none_or(|m| !selects(spec.selector.match_labels.as_ref(), m)) {
                    out.add(Severity::Error, "spec.selector", "the selector does not match the template's labels", "");
                }
                if spec.selector.match_expressions.is_some() {
                    out.add(Severity::Error, "spec.selector.matchExpressions", "not supported here", "use matchLabels");
                }
            }
        }
        Object::Service(service) => {
            let kind = service.spec.as_ref().and_then(|s| s.type_.as_deref()).unwrap_or("ClusterIP");
            if kind != "ClusterIP" {
                out.add(
                    Severity::Warning,
                    "spec.type",
                    &format!("{kind} is served inside the lab alone, as ClusterIP"),
                    "",
                );
            }
            let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
            if ports.into_iter().any(|p| p.protocol.as_deref().is_some_and(|p| p != "TCP")) {
                out.add(Severity::Error, "spec.ports", "protocols other than TCP are not served here", "");
            }
        }
        Object::NetworkPolicy(policy) => {
            for (field, message) in trysail_control::gate::problems(policy) {
                out.add(Severity::Error, &field, &message, "");
            }
        }
        Object::Package(package) => {
            for (field, message) in trysail_control::operator::refusals(package, &[]) {
                out.add(Severity::Error, &field, &message, "");
            }
            let spec = &package.spec;
            let parts = [("sso", &spec.sso), ("monitor", &spec.monitor), ("caBundle", &spec.ca_bundle)];
            for (name, _) in parts.iter().filter(|(_, given)| given.is_some()) {
                out.add(Severity::Warning, &format!("spec.{name}"), "not acted on: only spec.network is", "");
            }
        }
        Object::Job(job) => {
            if let Some(spec) = &job.spec {
                out.job(spec, images);
            }
        }
        _ => {}
    }
    out.proxy_config();
    for finding in trysail_control::translate::l7::check(&loaded.object).0 {
        let severity = if finding.error { Severity::Error } else { Severity::Notice };
        out.add(severity, &finding.field, &finding.message, "");
    }
    out.found
}

fn selects(
    wanted: Option<&std::collections::BTreeMap<String, String>>,
    meta: &trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
) -> bool {
    wanted.is_some_and(|w| !w.is_empty() && w.iter().all(|(k, v)| label(meta, k) == Some(v)))
}

struct Findings<'a> {
    loaded: &'a Loaded,
    found: Vec<Diagnostic>,
}

impl Findings<'_> {
    fn add(&mut self, severity: Severity, field: &str, message: &str, cure: &str) {
        let mut origin = self.loaded.origin.clone();
        origin.line = self.loaded.lines.of(field);
        self.found.push(Diagnostic {
            severity,
            origin,
            object: self.loaded.object.key().to_string(),
            field: field.to_owned(),
            message: message.to_owned(),
            cure: cure.to_owned(),
        });
    }

    /// The proxy's settings in an annotation of a pod, of a template, of a Gateway.
    fn proxy_config(&mut self) {
        fn in_template(template: &PodTemplateSpec) -> Option<&str> {
            annotation(template.metadata.as_ref()?, proxy_config::ANNOTATION)
        }
        let (path, text) = match &self.loaded.object {
            Object::Pod(pod) => ("metadata", annotation(&pod.metadata, proxy_config::ANNOTATION)),
            Object::Deployment(d) => ("spec.template.metadata", d.spec.as_ref().and_then(|s| in_template(&s.template))),
            Object::Job(j) => ("spec.template.metadata", j.spec.as_ref().and_then(|s| in_template(&s.template))),
            Object::Gateway(gateway) => ("metadata", deploy::config(gateway)),
            _ => return,
        };
        let field = format!("{path}.annotations.{}", proxy_config::ANNOTATION);
        match text.map(proxy_config::read) {
            Some(Err(message)) => self.add(Severity::Error, &field, &message, ""),
            Some(Ok(config)) => {
                for ignored in config.ignored {
                    self.add(Severity::Notice, &field, &format!("{ignored} has no effect"), "");
                }
            }
            None => {}
        }
    }

    fn job(&mut self, spec: &JobSpec, images: &Images) {
        let known = ["template", "backoffLimit", "completions", "parallelism", "ttlSecondsAfterFinished"];
        let value = serde_json::to_value(spec).unwrap_or_default();
        for key in value.as_object().into_iter().flatten().map(|(key, _)| key).filter(|k| !known.contains(&k.as_str()))
        {
            self.add(Severity::Error, &format!("spec.{key}"), "not supported here", "remove it for the lab");
        }
        let policy = spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref());
        if !matches!(policy, Some("Never" | "OnFailure")) {
            self.add(Severity::Error, "spec.template.spec.restartPolicy", "a Job needs Never or OnFailure", "");
        }
        self.pod(spec.template.spec.as_ref(), "spec.template.spec", images);
    }

    fn pod(&mut self, spec: Option<&PodSpec>, path: &str, images: &Images) {
        let Some(spec) = spec else {
            return self.add(Severity::Error, path, "a pod needs a spec", "");
        };
        let value = serde_json::to_value(spec).unwrap_or_default();
        for (key, below) in value.as_object().into_iter().flatten() {
            self.pod_field(path, key, below);
        }
        for (list, containers) in
            [("initContainers", spec.init_containers.as_deref().unwrap_or_default()), ("containers", &spec.containers)]
        {
            for (index, container) in containers.iter().enumerate() {
                let at = format!("{path}.{list}[{index}]");
                let fields = serde_json::to_value(container).unwrap_or_default();
                for key in fields.as_object().into_iter().flatten().map(|(key, _)| key.as_str()) {
                    if HARMLESS_CONTAINER.contains(&key) {
                        continue;
                    }
                    if !CONTAINER.contains(&key) {
                        self.add(
                            Severity::Error,
                            &format!("{at}.{key}"),
                            "not supported here",
                            "remove it for the lab",
                        );
                    }
                }
                self.probes(&fields, &at);
                let image = container.image.as_deref().unwrap_or_default();
                let command = container.command.as_deref().unwrap_or_default();
                if let Err(error) = images.program(image, command, container.args.as_deref().unwrap_or_default()) {
                    self.add(Severity::Error, &format!("{at}.image"), &error.to_string(), &error.cure());
                }
            }
        }
        if let Some(arch) = spec.node_selector.as_ref().and_then(|s| s.get(labels::ARCH))
            && arch != local_arch()
        {
            let message = format!("{arch} is taken as {}: what runs here are local programs", local_arch());
            self.add(Severity::Notice, &format!("{path}.nodeSelector.{}", labels::ARCH), &message, "");
        }
    }

    fn pod_field(&mut self, path: &str, key: &str, below: &Value) {
        let at = format!("{path}.{key}");
        if HARMLESS.contains(&key) {
            return self.add(Severity::Notice, &at, "has no effect on one machine", "");
        }
        if !POD.iter().any(|known| known.split(['.', '[']).next() == Some(key)) {
            return self.add(Severity::Error, &at, "not supported here", "remove it for the lab");
        }
        if key == "volumes" {
            for (index, volume) in below.as_array().into_iter().flatten().enumerate() {
                let kinds = volume.as_object().into_iter().flatten().map(|(k, _)| k.as_str()).filter(|k| *k != "name");
                for kind in kinds.filter(|k| !["configMap", "emptyDir", "secret", "projected"].contains(k)) {
                    self.add(
                        Severity::Error,
                        &format!("{at}[{index}].{kind}"),
                        "this kind of volume is not supported here",
                        "use configMap, secret or emptyDir",
                    );
                }
            }
        }
    }

    fn probes(&mut self, container: &Value, at: &str) {
        for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
            if container.get(probe).is_some_and(|p| p.get("grpc").is_some()) {
                self.add(
                    Severity::Error,
                    &format!("{at}.{probe}.grpc"),
                    "gRPC probes are not supported here",
                    "use httpGet, tcpSocket or exec",
                );
            }
        }
    }
}

/// This machine's architecture, as Kubernetes names it.
pub fn local_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
