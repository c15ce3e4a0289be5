//! Objects as the terminal shows them: kubectl's tables, names, YAML, JSON and JSONPath.

use jiff::Timestamp;
use serde_json::Value;
use std::fmt::Write;
use trysail_api::object::Kind;

/// Rows with columns padded to their widest cell, two spaces apart.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            write!(line, "{cell:<width$}   ").unwrap_or_default();
        }
        writeln!(out, "{}", line.trim_end()).unwrap_or_default();
    }
    out
}

fn text(value: &Value, path: &str) -> String {
    match value.pointer(path) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn number(value: &Value, path: &str) -> i64 {
    value.pointer(path).and_then(Value::as_i64).unwrap_or(0)
}

fn age(value: &Value) -> String {
    let created = text(value, "/metadata/creationTimestamp").parse::<Timestamp>();
    let seconds = created.map_or(0, |c| Timestamp::now().as_second() - c.as_second());
    match seconds {
        s if s < 120 => format!("{s}s"),
        s if s < 7200 => format!("{}m", s / 60),
        s if s < 172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86400),
    }
}

/// The STATUS column of a pod.
pub fn pod_status(pod: &Value) -> String {
    if pod.pointer("/metadata/deletionTimestamp").is_some() {
        return "Terminating".to_owned();
    }
    let reason = text(pod, "/status/reason");
    let waiting = pod.pointer("/status/containerStatuses").and_then(Value::as_array).into_iter().flatten();
    let waiting = waiting.map(|c| text(c, "/state/waiting/reason")).find(|r| !r.is_empty());
    waiting.or(Some(reason).filter(|r| !r.is_empty())).unwrap_or_else(|| text(pod, "/status/phase"))
}

/// A table of objects of one kind.
pub fn objects(kind: Kind, items: &[Value], wide: bool, namespaces: bool) -> String {
    let mut head: Vec<&str> = match kind {
        Kind::Pod => vec!["NAME", "READY", "STATUS", "RESTARTS", "AGE"],
        Kind::Deployment => vec!["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"],
        Kind::Service => vec!["NAME", "TYPE", "CLUSTER-IP", "PORT(S)", "AGE"],
        Kind::Namespace => vec!["NAME", "STATUS", "AGE"],
        Kind::PeerAuthentication => vec!["NAME", "MODE", "AGE"],
        Kind::AuthorizationPolicy => vec!["NAME", "ACTION", "AGE"],
        _ => vec!["NAME", "AGE"],
    };
    if wide && kind == Kind::Pod {
        head.extend(["IP", "NODE", "MESH"]);
    }
    if namespaces && kind.namespaced() {
        head.insert(0, "NAMESPACE");
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
    for item in items {
        let mut row = vec![text(item, "/metadata/name")];
        match kind {
            Kind::Pod => {
                let containers =
                    item.pointer("/status/containerStatuses").and_then(Value::as_array).cloned().unwrap_or_default();
                let total = item.pointer("/spec/containers").and_then(Value::as_array).map_or(0, Vec::len);
                let ready = containers.iter().filter(|c| c.get("ready") == Some(&Value::Bool(true))).count();
                let restarts: i64 = containers.iter().map(|c| number(c, "/restartCount")).sum();
                row.extend([format!("{ready}/{total}"), pod_status(item), restarts.to_string()]);
            }
            Kind::Deployment => {
                let wanted = item.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
                row.push(format!("{}/{wanted}", number(item, "/status/readyReplicas")));
                row.extend([
                    number(item, "/status/updatedReplicas").to_string(),
                    number(item, "/status/availableReplicas").to_string(),
                ]);
            }
            Kind::Service => {
                let ports = item.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
                let ports: Vec<String> = ports.map(|p| format!("{}/TCP", number(p, "/port"))).collect();
                row.extend(["ClusterIP".to_owned(), text(item, "/spec/clusterIP"), ports.join(",")]);
            }
            Kind::Namespace => row.push("Active".to_owned()),
            Kind::PeerAuthentication => row.push(text(item, "/spec/mtls/mode")),
            Kind::AuthorizationPolicy => row.push(text(item, "/spec/action")),
            _ => {}
        }
        row.push(age(item));
        if wide && kind == Kind::Pod {
            let mesh = text(item, "/metadata/annotations/ambient.istio.io~1redirection");
            row.extend([
                text(item, "/status/podIP"),
                text(item, "/spec/nodeName"),
                if mesh.is_empty() { "none".into() } else { mesh },
            ]);
        }
        if namespaces && kind.namespaced() {
            row.insert(0, text(item, "/metadata/namespace"));
        }
        rows.push(row);
    }
    table(&rows)
}

/// YAML of a JSON value.
pub fn yaml(value: &Value) -> String {
    let mut out = String::new();
    write_yaml(value, 0, &mut out);
    out
}

fn write_yaml(value: &Value, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, item) in map {
                write!(out, "{pad}{}:", scalar(&Value::String(key.clone()))).unwrap_or_default();
                nested(item, depth + 1, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                write_yaml(item, depth + 1, &mut inner);
                // The first line moves behind the dash.
                let inner = inner.strip_prefix(&"  ".repeat(depth + 1)).unwrap_or(&inner);
                write!(out, "{pad}- {inner}").unwrap_or_default();
            }
        }
        other => writeln!(out, "{pad}{}", scalar(other)).unwrap_or_default(),
    }
}

fn nested(item: &Value, depth: usize, out: &mut String) {
    let block = match item {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if block {
        out.push('\n');
        // A list stands at the depth of its key.
        write_yaml(item, if item.is_array() { depth - 1 } else { depth }, out);
    } else {
        writeln!(out, " {}", scalar(item)).unwrap_or_default();
    }
}

/// A scalar that a YAML reader takes back as what it is. JSON strings are YAML strings.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
            let word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') && text.chars().all(plain);
            let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
                .contains(&text.to_ascii_lowercase().as_str());
            if word && !reserved { text.clone() } else { value.to_string() }
        }
        other => other.to_string(),
    }
}

/// kubectl's JSONPath, as far as fields, indexes and `[*]` go: `{.items[0].metadata.name}`.
pub fn jsonpath(value: &Value, template: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, after) = rest.split_at(open);
        out.push_str(before);
        let close = after.find('}').ok_or_else(|| format!("jsonpath {template:?}: a brace is not closed"))?;
        let expression = after.get(1..close).unwrap_or_default();
        if let Some(literal) = expression.strip_prefix('"').and_then(|e| e.strip_suffix('"')) {
            out.push_str(&literal.replace("\\n", "\n").replace("\\t", "\t"));
        } else {
            let found = select(value, expression).map_err(|e| format!("jsonpath {template:?}: {e}"))?;
            let shown: Vec<String> =
                found.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
            out.push_str(&shown.join(" "));
        }
        rest = after.get(close + 1..).unwrap_or_default();
    }
    out.push_str(rest);
    Ok(out)
}

fn select<'a>(value: &'a Value, expression: &str) -> Result<Vec<&'a Value>, String> {
    let mut current = vec![value];
    let mut rest = expression.trim_start_matches('$');
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let close = after.find(']').ok_or("a bracket is not closed")?;
            let inside = after.get(..close).unwrap_or_default();
            rest = after.get(close + 1..).unwrap_or_default();
            current = if inside == "*" {
                current.into_iter().flat_map(|v| v.as_array().into_iter().flatten()).collect()
            } else if let Ok(index) = inside.parse::<usize>() {
                let missing = format!("array index out of bounds: index {index}");
                let found: Vec<_> = current.into_iter().filter_map(|v| v.get(index)).collect();
                if found.is_empty() { return Err(missing) } else { found }
            } else {
                let key = inside.trim_matches(['\'', '"']);
                current.into_iter().filter_map(|v| v.get(key)).collect()
            };
            continue;
        }
        let after = rest.strip_prefix('.').ok_or_else(|| format!("{rest:?} is not supported"))?;
        let mut key = String::new();
        let mut consumed = 0;
        let mut escaped = false;
        for c in after.chars() {
            if !escaped && (c == '.' || c == '[') {
                break;
            }
            consumed += c.len_utf8();
            // A dot inside a key is written `\.`.
            escaped = !escaped && c == '\\';
            if !escaped {
                key.push(c);
            }
        }
        rest = after.get(consumed..).unwrap_or_default();
        if !key.is_empty() {
            current = current.into_iter().filter_map(|v| v.get(&key)).collect();
        }
    }
    Ok(current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_and_yaml() {
        let value = json!({"items": [{"metadata": {"name": "a", "annotations": {"x.y/z": "on"}}}, {"metadata": {"name": "b"}}]});
        assert_eq!(jsonpath(&value, "{.items[0].metadata.name}").unwrap(), "a");
        assert_eq!(jsonpath(&value, "{.items[*].metadata.name}{\"\\n\"}").unwrap(), "a b\n");
        assert_eq!(jsonpath(&value, "{.items[0].metadata.annotations.x\\.y/z}").unwrap(), "on");
        assert!(jsonpath(&value, "{.items[7].metadata.name}").is_err());
        insta::assert_snapshot!(yaml(&value));
        let read = trysail_api::load::load("x", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n");
        let pod = read.objects[0].object.to_json();
        assert_eq!(trysail_api::load::load("x", &yaml(&pod)).objects[0].object, read.objects[0].object);
    }
}
