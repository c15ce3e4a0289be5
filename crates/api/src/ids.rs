//! Names that mean something: identities, workload keys, host names.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The trust domain used when none is given.
pub const DEFAULT_TRUST_DOMAIN: &str = "cluster.local";

/// `spiffe://<trust domain>/ns/<namespace>/sa/<service account>` (SPIFFE ID, Istio's path layout).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpiffeId {
    /// The trust domain.
    pub trust_domain: Arc<str>,
    /// The namespace.
    pub namespace: Arc<str>,
    /// The service account.
    pub service_account: Arc<str>,
}

/// Why a text is not a SPIFFE id of Istio's layout.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not spiffe://<trust domain>/ns/<namespace>/sa/<service account>")]
pub struct SpiffeIdError(pub String);

impl SpiffeId {
    /// An identity from its parts.
    pub fn new(trust_domain: &str, namespace: &str, service_account: &str) -> Self {
        Self { trust_domain: trust_domain.into(), namespace: namespace.into(), service_account: service_account.into() }
    }

    /// The form in which AuthorizationPolicy names principals: without `spiffe://`.
    pub fn principal(&self) -> String {
        format!("{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.strip_prefix("spiffe://").unwrap_or_default().split('/').collect();
        match parts.as_slice() {
            [domain, "ns", namespace, "sa", account] if ![domain, namespace, account].iter().any(|p| p.is_empty()) => {
                Ok(Self::new(domain, namespace, account))
            }
            _ => Err(SpiffeIdError(text.to_owned())),
        }
    }
}

/// The key of a workload record in WDS, e.g. `cluster//Pod/ns/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadUid(Arc<str>);

impl WorkloadUid {
    /// The uid as it is on the wire.
    pub fn new(uid: &str) -> Self {
        Self(uid.into())
    }

    /// The uid of a pod's record.
    pub fn pod(cluster: &str, namespace: &str, name: &str) -> Self {
        Self(format!("{cluster}//Pod/{namespace}/{name}").into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkloadUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A service's key in WDS: `namespace/hostname`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey(Arc<str>);

impl ServiceKey {
    /// From the key's two parts.
    pub fn new(namespace: &str, hostname: &str) -> Self {
        Self(format!("{namespace}/{hostname}").into())
    }

    /// From the wire's form.
    pub fn from_wire(key: &str) -> Self {
        Self(key.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The namespace alone.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The host name alone.
    pub fn hostname(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, host)| host)
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A service's host name in the cluster's domain.
pub fn service_hostname(name: &str, namespace: &str) -> String {
    format!("{name}.{namespace}.svc.cluster.local")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spiffe_ids_are_parsed_as_they_are_printed_and_others_are_refused() {
        let id = SpiffeId::new("cluster.local", "shop", "cart");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in [
            "",
            "spiffe://td/ns/a",
            "spiffe:///ns/a/sa/b",
            "https://td/ns/a/sa/b",
            "spiffe://td/ns/a/sa/b/c",
            "spiffe://td/ns//sa/b",
        ] {
            assert_eq!(bad.parse::<SpiffeId>(), Err(SpiffeIdError(bad.into())));
        }
    }
}
