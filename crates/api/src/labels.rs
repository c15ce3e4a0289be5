//! Every label and annotation that is honoured.

/// Namespace or pod label: `ambient` or `none`; the pod's wins.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Namespace label that asks for sidecars.
pub const ISTIO_INJECTION: &str = "istio-injection";
/// Pod label that asks for a sidecar.
pub const SIDECAR_INJECT: &str = "sidecar.istio.io/inject";
/// Pod annotation set by the node agent: `enabled` or `pending`.
pub const REDIRECTION: &str = "ambient.istio.io/redirection";
/// Label that binds a namespace, service or pod to a waypoint.
pub const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// Label beside [`USE_WAYPOINT`]: the waypoint's namespace.
pub const USE_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
/// Gateway label: `service` (the default), `workload`, `all` or `none`.
pub const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
/// Label of what is made for a gateway: the gateway's name.
pub const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// Label of what is made for a gateway: the gateway's class.
pub const GATEWAY_CLASS: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Label of what is made for a gateway: who made it.
pub const GATEWAY_MANAGED: &str = "gateway.istio.io/managed";
/// The port on which waypoints take tunnels.
pub const WAYPOINT_PORT: u16 = 15008;
/// Pod annotation that says what was injected.
pub const SIDECAR_STATUS: &str = "sidecar.istio.io/status";
/// Annotation: retries of a user's policy may repeat requests of any method.
pub const RETRY_UNSAFE: &str = "trysail.dev/retry-unsafe";
/// Pod label: the service shown in telemetry.
pub const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
/// Pod label: the revision shown in telemetry.
pub const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";
/// Common pod label: application.
pub const APP: &str = "app";
/// Kubernetes' recommended pod label: application.
pub const APP_NAME: &str = "app.kubernetes.io/name";
/// Common pod label: version.
pub const VERSION: &str = "version";
/// Annotation that makes an AuthorizationPolicy count without enforcing it.
pub const DRY_RUN: &str = "istio.io/dry-run";
/// Every namespace carries its name under this label.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Pod template annotation that a rollout restart sets.
pub const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";
/// Pod label: the hash of the template it was made from.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
/// Node label: processor architecture.
pub const ARCH: &str = "kubernetes.io/arch";
/// Node label: host name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Node label: operating system.
pub const OS: &str = "kubernetes.io/os";
/// Node label: zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Whether a pod is to have a sidecar (Istio's rule: the pod's own label decides, else the namespace's).
pub fn wants_sidecar<'a>(namespace: impl Fn(&str) -> Option<&'a str>, pod: impl Fn(&str) -> Option<&'a str>) -> bool {
    match pod(SIDECAR_INJECT) {
        Some(own) => own == "true",
        None => namespace(ISTIO_INJECTION) == Some("enabled"),
    }
}

/// Whether a pod is to be captured in ambient mode (Istio's rule: the pod's own label decides, else the namespace's).
pub fn wants_ambient<'a>(namespace: impl Fn(&str) -> Option<&'a str>, pod: impl Fn(&str) -> Option<&'a str>) -> bool {
    match pod(DATAPLANE_MODE) {
        Some("ambient") => true,
        Some("none") => false,
        _ => namespace(DATAPLANE_MODE) == Some("ambient"),
    }
}
