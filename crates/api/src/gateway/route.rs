//! HTTPRoute and GRPCRoute.

use super::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

/// The object.
pub type HttpRoute = Resource<HttpSpec, Status>;
/// The object.
pub type GrpcRoute = Resource<GrpcSpec, Status>;

macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($(#[$field_doc])* #[serde(default)] pub $field: $type,)* }
    };
}

fields!(
    /// Parents, hosts and rules of an HTTPRoute.
    HttpSpec {
        /// Gateways or Services.
        parent_refs: Vec<ParentRef>,
        /// Host names; any when empty.
        hostnames: Vec<String>,
        /// Rules.
        rules: Vec<HttpRule>,
    }
);
fields!(
    /// Parents, hosts and rules of a GRPCRoute.
    GrpcSpec {
        /// Gateways or Services.
        parent_refs: Vec<ParentRef>,
        /// Host names; any when empty.
        hostnames: Vec<String>,
        /// Rules.
        rules: Vec<GrpcRule>,
    }
);
fields!(
    /// What a route attaches to.
    ParentRef {
        /// API group.
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<String>,
        /// Kind; Gateway when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// Namespace; the route's when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// Name.
        name: String,
        /// One listener of a gateway.
        #[serde(skip_serializing_if = "Option::is_none")]
        section_name: Option<String>,
        /// One port.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
    }
);
fields!(
    /// A rule.
    HttpRule {
        /// For people and policies.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Any of these; everything when empty.
        matches: Vec<HttpMatch>,
        /// What is changed.
        filters: Vec<HttpFilter>,
        /// Where to.
        backend_refs: Vec<BackendRef>,
        /// How long.
        #[serde(skip_serializing_if = "Option::is_none")]
        timeouts: Option<Timeouts>,
        /// How often again.
        #[serde(skip_serializing_if = "Option::is_none")]
        retry: Option<Retry>,
    }
);
fields!(
    /// All of these.
    HttpMatch {
        /// Path; prefix `/` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<PathMatch>,
        /// Headers, all of them.
        headers: Vec<ValueMatch>,
        /// Query parameters, all of them.
        query_params: Vec<ValueMatch>,
        /// Method.
        #[serde(skip_serializing_if = "Option::is_none")]
        method: Option<String>,
    }
);
fields!(
    /// How a path is compared.
    PathMatch {
        /// `Exact`, `PathPrefix` (the default) or `RegularExpression`.
        #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// The path.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    }
);
fields!(
    /// How a named value is compared.
    ValueMatch {
        /// `Exact` (the default) or `RegularExpression`.
        #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// Name.
        name: String,
        /// Value.
        value: String,
    }
);
fields!(
    /// One filter; `type` says which field is used.
    HttpFilter {
        /// Kind of filter.
        #[serde(rename = "type")]
        kind: String,
        /// `RequestHeaderModifier`
        #[serde(skip_serializing_if = "Option::is_none")]
        request_header_modifier: Option<HeaderModifier>,
        /// `ResponseHeaderModifier`
        #[serde(skip_serializing_if = "Option::is_none")]
        response_header_modifier: Option<HeaderModifier>,
        /// `RequestRedirect`
        #[serde(skip_serializing_if = "Option::is_none")]
        request_redirect: Option<Redirect>,
        /// `URLRewrite`
        #[serde(rename = "urlRewrite", skip_serializing_if = "Option::is_none")]
        url_rewrite: Option<Rewrite>,
        /// `RequestMirror`
        #[serde(skip_serializing_if = "Option::is_none")]
        request_mirror: Option<Mirror>,
        /// `CORS`
        #[serde(skip_serializing_if = "Option::is_none")]
        cors: Option<Cors>,
    }
);
fields!(
    /// Changes of headers.
    HeaderModifier {
        /// Replaced or added.
        set: Vec<Header>,
        /// Added beside what is there.
        add: Vec<Header>,
        /// Removed.
        remove: Vec<String>,
    }
);
fields!(
    /// A header.
    Header {
        /// Name.
        name: String,
        /// Value.
        value: String,
    }
);
fields!(
    /// An answer that sends the client elsewhere.
    Redirect {
        /// `http` or `https`.
        #[serde(skip_serializing_if = "Option::is_none")]
        scheme: Option<String>,
        /// Host.
        #[serde(skip_serializing_if = "Option::is_none")]
        hostname: Option<String>,
        /// Path.
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<PathModifier>,
        /// Port.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// 301, 302 (the default), 303, 307 or 308.
        #[serde(skip_serializing_if = "Option::is_none")]
        status_code: Option<u16>,
    }
);
fields!(
    /// A change of host and path.
    Rewrite {
        /// Host.
        #[serde(skip_serializing_if = "Option::is_none")]
        hostname: Option<String>,
        /// Path.
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<PathModifier>,
    }
);
fields!(
    /// A new path.
    PathModifier {
        /// `ReplaceFullPath` or `ReplacePrefixMatch`.
        #[serde(rename = "type")]
        kind: String,
        /// For `ReplaceFullPath`.
        #[serde(skip_serializing_if = "Option::is_none")]
        replace_full_path: Option<String>,
        /// For `ReplacePrefixMatch`.
        #[serde(skip_serializing_if = "Option::is_none")]
        replace_prefix_match: Option<String>,
    }
);
fields!(
    /// A copy of requests.
    Mirror {
        /// Where to.
        backend_ref: BackendRef,
        /// Share in percent.
        #[serde(skip_serializing_if = "Option::is_none")]
        percent: Option<u32>,
        /// Share as a fraction.
        #[serde(skip_serializing_if = "Option::is_none")]
        fraction: Option<Fraction>,
    }
);
fields!(
    /// A fraction.
    Fraction {
        /// Above.
        numerator: u32,
        /// Below; 100 when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        denominator: Option<u32>,
    }
);
fields!(
    /// Cross-origin sharing (the Fetch standard).
    Cors {
        /// Origins.
        allow_origins: Vec<String>,
        /// Whether credentials are allowed.
        #[serde(skip_serializing_if = "Option::is_none")]
        allow_credentials: Option<bool>,
        /// Methods.
        allow_methods: Vec<String>,
        /// Request headers.
        allow_headers: Vec<String>,
        /// Response headers.
        expose_headers: Vec<String>,
        /// Seconds that a preflight's answer may be kept.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_age: Option<u32>,
    }
);
fields!(
    /// Where requests go.
    BackendRef {
        /// API group.
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<String>,
        /// Kind; Service when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// Name.
        name: String,
        /// Namespace; the route's when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// Port.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// Share; 1 when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        weight: Option<u32>,
        /// What is changed for this backend alone.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        filters: Vec<HttpFilter>,
    }
);
fields!(
    /// How long a request may take, as durations (`10s`, GEP-2257).
    Timeouts {
        /// The whole request.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<String>,
        /// Each try.
        #[serde(skip_serializing_if = "Option::is_none")]
        backend_request: Option<String>,
    }
);
fields!(
    /// Retries.
    Retry {
        /// Statuses that are tried again.
        codes: Vec<u16>,
        /// Further tries.
        #[serde(skip_serializing_if = "Option::is_none")]
        attempts: Option<u32>,
        /// Pause before a try.
        #[serde(skip_serializing_if = "Option::is_none")]
        backoff: Option<String>,
    }
);
fields!(
    /// A rule of a GRPCRoute.
    GrpcRule {
        /// For people and policies.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Any of these; everything when empty.
        matches: Vec<GrpcMatch>,
        /// What is changed.
        filters: Vec<HttpFilter>,
        /// Where to.
        backend_refs: Vec<BackendRef>,
    }
);
fields!(
    /// All of these.
    GrpcMatch {
        /// Service and method.
        #[serde(skip_serializing_if = "Option::is_none")]
        method: Option<GrpcMethod>,
        /// Headers, all of them.
        headers: Vec<ValueMatch>,
    }
);
fields!(
    /// A gRPC method.
    GrpcMethod {
        /// `Exact` (the default) or `RegularExpression`.
        #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// Full service name.
        #[serde(skip_serializing_if = "Option::is_none")]
        service: Option<String>,
        /// Method name.
        #[serde(skip_serializing_if = "Option::is_none")]
        method: Option<String>,
    }
);
fields!(
    /// What came of a route.
    Status {
        /// One entry a parent.
        parents: Vec<ParentStatus>,
    }
);
fields!(
    /// What came of a route at one parent.
    ParentStatus {
        /// The parent, as the route names it.
        parent_ref: ParentRef,
        /// Who says so.
        controller_name: String,
        /// Conditions.
        conditions: Vec<Condition>,
    }
);
