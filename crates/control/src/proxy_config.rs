//! Settings of one proxy, from the annotation `proxy.istio.io/config` of its pod or Gateway (Istio's ProxyConfig, as YAML).

use serde_json::Value;
use trysail_api::k8s_openapi::api::core::v1::EnvVar;

/// The annotation.
pub const ANNOTATION: &str = "proxy.istio.io/config";

/// An annotation that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProxyConfig {
    /// What it means for the proxy's environment.
    pub env: Vec<EnvVar>,
    /// Fields that have no effect here.
    pub ignored: Vec<String>,
}

/// Reads an annotation; the error says what is wrong with it.
pub fn read(text: &str) -> Result<ProxyConfig, String> {
    let mut out = ProxyConfig::default();
    let value = trysail_api::load::yaml(text)?;
    let fields = match &value {
        Value::Null => return Ok(out),
        Value::Object(fields) => fields,
        _ => return Err("not a mapping".to_owned()),
    };
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("terminationDrainDuration", Value::String(text)) => out.put("TERMINATION_DRAIN_DURATION", text.clone()),
            ("proxyMetadata", Value::Object(entries)) => {
                for (name, value) in entries {
                    out.put(name, plain(value).ok_or_else(|| format!("proxyMetadata.{name}: not a text"))?);
                }
            }
            ("tracing", Value::Object(entries)) => {
                for (name, value) in entries {
                    match (name.as_str(), plain(value)) {
                        ("sampling", Some(share)) => out.put("TRACE_SAMPLING", share),
                        _ => out.ignored.push(format!("tracing.{name}")),
                    }
                }
            }
            // An application always waits for its sidecar.
            ("holdApplicationUntilProxyStarts", Value::Bool(true)) => {}
            ("terminationDrainDuration" | "proxyMetadata" | "tracing", _) => {
                return Err(format!("{key}: not of the type that it must have"));
            }
            _ => out.ignored.push(key.clone()),
        }
    }
    Ok(out)
}

impl ProxyConfig {
    fn put(&mut self, name: &str, value: String) {
        self.env.push(EnvVar { name: name.to_owned(), value: Some(value), value_from: None });
    }
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_set_and_what_is_not_is_named() {
        let text = "terminationDrainDuration: 30s\nproxyMetadata:\n  EXIT_ON_ZERO_ACTIVE_CONNECTIONS: \"true\"\n  N: 3\ntracing: {sampling: 10, zipkin: {}}\nconcurrency: 2\nholdApplicationUntilProxyStarts: true\n";
        let read = read(text).unwrap();
        let mut env: Vec<String> =
            read.env.iter().map(|e| format!("{}={}", e.name, e.value.clone().unwrap())).collect();
        env.sort();
        assert_eq!(
            env,
            ["EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "N=3", "TERMINATION_DRAIN_DURATION=30s", "TRACE_SAMPLING=10"]
        );
        assert_eq!(read.ignored, ["concurrency", "tracing.zipkin"]);
        assert_eq!(super::read("{\"proxyMetadata\": {\"A\": \"b\"}}").unwrap().env.len(), 1, "JSON is YAML");
        assert_eq!(super::read("").unwrap(), ProxyConfig::default());
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for text in ["- a", "proxyMetadata: x", "a: [", "terminationDrainDuration: 3", "proxyMetadata: {A: [1]}"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
