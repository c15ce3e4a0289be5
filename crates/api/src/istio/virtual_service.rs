//! VirtualService: how requests to a host are routed.

use super::Istio;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The object.
pub type VirtualService = Istio<Spec>;

macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($(#[$field_doc])* #[serde(default)] pub $field: $type,)* }
    };
}

fields!(
    /// Hosts and their routes.
    Spec {
        /// Host names; a short one is in the object's namespace.
        hosts: Vec<String>,
        /// Gateways; `mesh` (the default) for the mesh itself.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        gateways: Vec<String>,
        /// HTTP routes, in order.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        http: Vec<HttpRoute>,
        /// Routes of plain TCP.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tcp: Vec<serde_json::Value>,
        /// Routes of TLS by server name.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tls: Vec<serde_json::Value>,
        /// Namespaces in which it counts.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        export_to: Vec<String>,
    }
);
fields!(
    /// One HTTP route.
    HttpRoute {
        /// For people.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Any of these; everything when empty.
        #[serde(rename = "match", skip_serializing_if = "Vec::is_empty")]
        matches: Vec<Match>,
        /// Where to, by weight.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        route: Vec<Destination>,
        /// An answer that sends the client elsewhere.
        #[serde(skip_serializing_if = "Option::is_none")]
        redirect: Option<Redirect>,
        /// An answer of the proxy's own.
        #[serde(skip_serializing_if = "Option::is_none")]
        direct_response: Option<DirectResponse>,
        /// Another VirtualService.
        #[serde(skip_serializing_if = "Option::is_none")]
        delegate: Option<serde_json::Value>,
        /// A change of authority and path.
        #[serde(skip_serializing_if = "Option::is_none")]
        rewrite: Option<Rewrite>,
        /// The whole request's limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        timeout: Option<String>,
        /// How often again.
        #[serde(skip_serializing_if = "Option::is_none")]
        retries: Option<Retries>,
        /// Delay and abort.
        #[serde(skip_serializing_if = "Option::is_none")]
        fault: Option<Fault>,
        /// A copy of requests.
        #[serde(skip_serializing_if = "Option::is_none")]
        mirror: Option<Host>,
        /// Its share.
        #[serde(skip_serializing_if = "Option::is_none")]
        mirror_percentage: Option<Percent>,
        /// Its share, whole percent.
        #[serde(skip_serializing_if = "Option::is_none")]
        mirror_percent: Option<u32>,
        /// Copies of requests.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        mirrors: Vec<MirrorTo>,
        /// Cross-origin sharing.
        #[serde(skip_serializing_if = "Option::is_none")]
        cors_policy: Option<Cors>,
        /// Changes of headers.
        #[serde(skip_serializing_if = "Option::is_none")]
        headers: Option<Headers>,
    }
);
fields!(
    /// All of these.
    Match {
        /// For people.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Path.
        #[serde(skip_serializing_if = "Option::is_none")]
        uri: Option<Text>,
        /// Scheme.
        #[serde(skip_serializing_if = "Option::is_none")]
        scheme: Option<Text>,
        /// Method.
        #[serde(skip_serializing_if = "Option::is_none")]
        method: Option<Text>,
        /// Host header.
        #[serde(skip_serializing_if = "Option::is_none")]
        authority: Option<Text>,
        /// Headers; an empty match asks for presence.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        headers: BTreeMap<String, Text>,
        /// Headers that must not match.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        without_headers: BTreeMap<String, Text>,
        /// Query parameters.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        query_params: BTreeMap<String, Text>,
        /// The port that was called.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// Path is compared without case.
        #[serde(skip_serializing_if = "Option::is_none")]
        ignore_uri_case: Option<bool>,
        /// Labels of the caller.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        source_labels: BTreeMap<String, String>,
        /// Namespace of the caller.
        #[serde(skip_serializing_if = "Option::is_none")]
        source_namespace: Option<String>,
        /// Gateways.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        gateways: Vec<String>,
    }
);
fields!(
    /// How a text is compared: one of the three.
    Text {
        /// Equal.
        #[serde(skip_serializing_if = "Option::is_none")]
        exact: Option<String>,
        /// Begins with.
        #[serde(skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Matches as a whole (RE2).
        #[serde(skip_serializing_if = "Option::is_none")]
        regex: Option<String>,
    }
);
fields!(
    /// A weighted destination.
    Destination {
        /// Where.
        destination: Host,
        /// Share.
        #[serde(skip_serializing_if = "Option::is_none")]
        weight: Option<u32>,
        /// Changes of headers.
        #[serde(skip_serializing_if = "Option::is_none")]
        headers: Option<Headers>,
    }
);
fields!(
    /// A host, with subset and port.
    Host {
        /// Host name.
        host: String,
        /// Subset of its DestinationRule.
        #[serde(skip_serializing_if = "Option::is_none")]
        subset: Option<String>,
        /// Port.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<Port>,
    }
);
fields!(
    /// A port.
    Port {
        /// Its number.
        number: u16,
    }
);
fields!(
    /// Changes of headers both ways.
    Headers {
        /// Of the request.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<HeaderChanges>,
        /// Of the response.
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<HeaderChanges>,
    }
);
fields!(
    /// Changes of headers.
    HeaderChanges {
        /// Replaced or added.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        set: BTreeMap<String, String>,
        /// Added beside what is there.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        add: BTreeMap<String, String>,
        /// Removed.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        remove: Vec<String>,
    }
);
fields!(
    /// An answer that sends the client elsewhere.
    Redirect {
        /// Path.
        #[serde(skip_serializing_if = "Option::is_none")]
        uri: Option<String>,
        /// Host.
        #[serde(skip_serializing_if = "Option::is_none")]
        authority: Option<String>,
        /// Port.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// `FROM_PROTOCOL_DEFAULT` or `FROM_REQUEST_PORT`.
        #[serde(skip_serializing_if = "Option::is_none")]
        derive_port: Option<String>,
        /// Scheme.
        #[serde(skip_serializing_if = "Option::is_none")]
        scheme: Option<String>,
        /// Status; 301 when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        redirect_code: Option<u16>,
    }
);
fields!(
    /// An answer of the proxy's own.
    DirectResponse {
        /// Status.
        status: u16,
        /// Body.
        #[serde(skip_serializing_if = "Option::is_none")]
        body: Option<Body>,
    }
);
fields!(
    /// A body.
    Body {
        /// As text.
        #[serde(skip_serializing_if = "Option::is_none")]
        string: Option<String>,
    }
);
fields!(
    /// A change of authority and path.
    Rewrite {
        /// The matched prefix, or the whole path, becomes this.
        #[serde(skip_serializing_if = "Option::is_none")]
        uri: Option<String>,
        /// Host.
        #[serde(skip_serializing_if = "Option::is_none")]
        authority: Option<String>,
        /// A part of the path becomes something else.
        #[serde(skip_serializing_if = "Option::is_none")]
        uri_regex_rewrite: Option<RegexRewrite>,
    }
);
fields!(
    /// What is replaced, by what.
    RegexRewrite {
        /// Expression (RE2).
        #[serde(rename = "match")]
        pattern: String,
        /// Replacement, with `\1` for groups.
        rewrite: String,
    }
);
fields!(
    /// Retries.
    Retries {
        /// Further tries.
        attempts: u32,
        /// Limit of each.
        #[serde(skip_serializing_if = "Option::is_none")]
        per_try_timeout: Option<String>,
        /// Conditions and statuses, comma separated.
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_on: Option<String>,
        /// Whether other localities may be tried.
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_remote_localities: Option<bool>,
        /// Pause before a try.
        #[serde(skip_serializing_if = "Option::is_none")]
        backoff: Option<String>,
    }
);
fields!(
    /// Faults on purpose.
    Fault {
        /// A pause.
        #[serde(skip_serializing_if = "Option::is_none")]
        delay: Option<Delay>,
        /// An error.
        #[serde(skip_serializing_if = "Option::is_none")]
        abort: Option<Abort>,
    }
);
fields!(
    /// A pause.
    Delay {
        /// Its length.
        #[serde(skip_serializing_if = "Option::is_none")]
        fixed_delay: Option<String>,
        /// Share of requests.
        #[serde(skip_serializing_if = "Option::is_none")]
        percentage: Option<Percent>,
        /// Share, whole percent.
        #[serde(skip_serializing_if = "Option::is_none")]
        percent: Option<u32>,
    }
);
fields!(
    /// An error.
    Abort {
        /// Status.
        #[serde(skip_serializing_if = "Option::is_none")]
        http_status: Option<u16>,
        /// gRPC status, by name.
        #[serde(skip_serializing_if = "Option::is_none")]
        grpc_status: Option<String>,
        /// Share of requests.
        #[serde(skip_serializing_if = "Option::is_none")]
        percentage: Option<Percent>,
    }
);
fields!(
    /// A share.
    Percent {
        /// Percent.
        value: f64,
    }
);
fields!(
    /// Where copies go.
    MirrorTo {
        /// Where.
        destination: Host,
        /// Share.
        #[serde(skip_serializing_if = "Option::is_none")]
        percentage: Option<Percent>,
    }
);
fields!(
    /// Cross-origin sharing (the Fetch standard).
    Cors {
        /// Origins.
        allow_origins: Vec<Text>,
        /// Methods.
        allow_methods: Vec<String>,
        /// Request headers.
        allow_headers: Vec<String>,
        /// Response headers.
        expose_headers: Vec<String>,
        /// How long a preflight's answer may be kept.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_age: Option<String>,
        /// Whether credentials are allowed.
        #[serde(skip_serializing_if = "Option::is_none")]
        allow_credentials: Option<bool>,
    }
);
