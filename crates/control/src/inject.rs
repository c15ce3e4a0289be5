//! Sidecars: what is added to a pod, as the injection webhook does it. Pure.

use crate::proxy_config;
use trysail_api::k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector, Pod, Probe,
    ProjectedVolumeSource, ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use trysail_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use trysail_api::labels::SIDECAR_STATUS;
use trysail_api::object::annotation;

/// The image of every proxy.
pub const IMAGE: &str = "trysail/proxy";
/// The sidecar's container, under Istio's name.
pub const SIDECAR: &str = "istio-proxy";
/// The port that says whether a proxy is ready.
pub const READY_PORT: u16 = 15021;
/// The ConfigMap, in every namespace, with the mesh's root certificate.
pub const ROOT_CONFIG: &str = "istio-ca-root-cert";

/// A role of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// Beside an application.
    Sidecar,
    /// In front of services of a namespace.
    Waypoint,
    /// At the edge.
    Gateway,
}

/// Puts the sidecar into a pod: a native one, that is started before the application and ends after it.
pub fn inject(pod: &mut Pod) {
    if annotation(&pod.metadata, SIDECAR_STATUS).is_some() {
        return;
    }
    let mut sidecar = container(Proxy::Sidecar, ("", ""));
    sidecar.restart_policy = Some("Always".to_owned());
    configure(&mut sidecar, annotation(&pod.metadata, proxy_config::ANNOTATION));
    let spec = pod.spec.get_or_insert_default();
    spec.init_containers.get_or_insert_default().insert(0, sidecar);
    spec.volumes.get_or_insert_default().extend(volumes());
    let status = format!("{{\"initContainers\":[\"{SIDECAR}\"]}}");
    pod.metadata.annotations.get_or_insert_default().insert(SIDECAR_STATUS.to_owned(), status);
}

/// Adds what a proxy's annotation says to its environment. What cannot be read was refused where it was written.
pub fn configure(container: &mut Container, annotation: Option<&str>) {
    match annotation.map(proxy_config::read) {
        Some(Ok(config)) => container.env.get_or_insert_default().extend(config.env),
        Some(Err(error)) => tracing::warn!(error, "annotation {} is not followed", proxy_config::ANNOTATION),
        None => {}
    }
}

fn env(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

fn field(name: &str, path: &str) -> EnvVar {
    let field_ref = ObjectFieldSelector { field_path: path.to_owned(), api_version: None };
    let source = EnvVarSource { field_ref: Some(field_ref), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}

/// A proxy's container, with the Gateway's name and class of a waypoint or a gateway.
pub fn container(role: Proxy, (gateway, class): (&str, &str)) -> Container {
    let verb = match role {
        Proxy::Sidecar => "sidecar",
        Proxy::Waypoint => "waypoint",
        Proxy::Gateway => "gateway",
    };
    let mut vars = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("INSTANCE_IP", "status.podIP"),
        field("NODE_NAME", "spec.nodeName"),
        field("SERVICE_ACCOUNT", "spec.serviceAccountName"),
    ];
    if role != Proxy::Sidecar {
        vars.push(env("GATEWAY_NAME", gateway));
        vars.push(env("GATEWAY_CLASS", class));
    }
    let ready = HTTPGetAction {
        path: Some("/healthz/ready".to_owned()),
        port: IntOrString::Int(READY_PORT.into()),
        ..HTTPGetAction::default()
    };
    let probe =
        Probe { http_get: Some(ready), period_seconds: Some(1), failure_threshold: Some(4), ..Probe::default() };
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    Container {
        name: SIDECAR.to_owned(),
        image: Some(IMAGE.to_owned()),
        args: Some(vec![verb.to_owned()]),
        env: Some(vars),
        readiness_probe: (role != Proxy::Sidecar).then(|| probe.clone()),
        // The application starts when its sidecar serves.
        startup_probe: (role == Proxy::Sidecar).then_some(Probe { failure_threshold: Some(600), ..probe }),
        volume_mounts: Some(vec![
            mount("istio-token", "/var/run/secrets/tokens"),
            mount("istiod-ca-cert", "/var/run/secrets/istio"),
        ]),
        ..Container::default()
    }
}

/// The volumes of a proxy's container: its token and the mesh's root.
pub fn volumes() -> Vec<Volume> {
    let token = ServiceAccountTokenProjection {
        audience: Some("istio-ca".to_owned()),
        expiration_seconds: Some(43_200),
        path: "istio-token".to_owned(),
    };
    let projected =
        |source: VolumeProjection| ProjectedVolumeSource { default_mode: None, sources: Some(vec![source]) };
    let token = VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
    let root = ConfigMapProjection { name: ROOT_CONFIG.to_owned(), ..ConfigMapProjection::default() };
    let root = VolumeProjection { config_map: Some(root), ..VolumeProjection::default() };
    let volume =
        |name: &str, source| Volume { name: name.to_owned(), projected: Some(projected(source)), ..Volume::default() };
    vec![volume("istio-token", token), volume("istiod-ca-cert", root)]
}
