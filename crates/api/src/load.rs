//! YAML text to objects. Every document stands alone: one that cannot be read does not take its neighbours with it.

use crate::diagnostic::{Diagnostic, Origin, Severity};
use crate::object::{Kind, Object};
use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object and where it was written.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The object.
    pub object: Object,
    /// The first line of its document.
    pub origin: Origin,
    /// Line of every field, by path.
    pub lines: Lines,
}

/// Line of every field, by path such as `spec.ports[0].port`.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    base: usize,
    by_path: BTreeMap<String, usize>,
}

impl Lines {
    /// The line of `path`, or of the nearest field that encloses it.
    pub fn of(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some(line) = self.by_path.get(path) {
                return *line;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = path.get(..end).unwrap_or_default(),
                None => return self.base,
            }
        }
    }
}

/// What a text holds.
#[derive(Debug, Default)]
pub struct Load {
    /// The objects that can be used.
    pub objects: Vec<Loaded>,
    /// What is wrong with the rest.
    pub diagnostics: Vec<Diagnostic>,
}

impl Load {
    /// Whether something was refused.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|d| d.severity == Severity::Error)
    }

    /// Adds another text's content.
    pub fn merge(&mut self, other: Load) {
        self.objects.extend(other.objects);
        self.diagnostics.extend(other.diagnostics);
    }
}

/// Reads a stream of YAML documents. `file` is used in messages alone.
pub fn load(file: &str, text: &str) -> Load {
    let mut out = Load::default();
    let file: Arc<str> = file.into();
    for (first, document) in documents(text) {
        match one(&file, first, document) {
            Ok(Some((loaded, mut notes))) => {
                if notes.iter().all(|d| d.severity != Severity::Error) {
                    out.objects.push(*loaded);
                }
                out.diagnostics.append(&mut notes);
            }
            Ok(None) => {}
            Err(diagnostic) => out.diagnostics.push(*diagnostic),
        }
    }
    out
}

/// Reads one YAML document, such as an annotation's text; null when there is none.
pub fn yaml(text: &str) -> Result<Value, String> {
    let nodes = MarkedYaml::load_from_str(text).map_err(|e| format!("not valid YAML: {}", e.info()))?;
    let mut lines = Lines { base: 1, by_path: BTreeMap::new() };
    Ok(nodes.first().map_or(Value::Null, |node| to_json(node, "", 1, &mut lines)))
}

/// Splits at lines `---`; each with the number of its first line.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    let (mut start, mut first, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let bare = line.trim_end();
        if bare == "---" || bare.starts_with("--- ") {
            out.push((first, text.get(start..offset).unwrap_or_default()));
            start = offset + line.len();
            first = index + 2;
        }
        offset += line.len();
    }
    out.push((first, text.get(start..).unwrap_or_default()));
    out
}

type Parsed = Option<(Box<Loaded>, Vec<Diagnostic>)>;

fn one(file: &Arc<str>, first: usize, text: &str) -> Result<Parsed, Box<Diagnostic>> {
    let fail = |line: usize, object: &str, field: &str, message: String, cure: &str| {
        Box::new(Diagnostic {
            severity: Severity::Error,
            origin: Origin { file: file.clone(), line },
            object: object.to_owned(),
            field: field.to_owned(),
            message,
            cure: cure.to_owned(),
        })
    };
    let nodes = MarkedYaml::load_from_str(text).map_err(|error| {
        let line = first + error.marker().line().saturating_sub(1);
        fail(line, "", "", format!("not valid YAML: {}", error.info()), "")
    })?;
    let Some(node) = nodes.first() else { return Ok(None) };
    if matches!(node.data, YamlData::Value(Scalar::Null)) {
        return Ok(None);
    }
    let mut lines = Lines { base: first + node.span.start.line().saturating_sub(1), by_path: BTreeMap::new() };
    let value = to_json(node, "", first, &mut lines);
    let text_at = |path: &[&str]| path.iter().try_fold(&value, |at, key| at.get(*key)).and_then(Value::as_str);
    let (kind, version) = (text_at(&["kind"]).unwrap_or_default(), text_at(&["apiVersion"]).unwrap_or_default());
    let name = text_at(&["metadata", "name"]).unwrap_or_default().to_owned();
    let named = match text_at(&["metadata", "namespace"]) {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    };
    if kind.is_empty() || version.is_empty() {
        return Err(fail(lines.base, "", "", "not a Kubernetes object: kind or apiVersion is missing".into(), ""));
    }
    let known = Kind::ALL.iter().copied().find(|k| k.as_str() == kind && k.versions().contains(&version));
    let Some(kind) = known else {
        let same = Kind::ALL.iter().copied().find(|k| k.as_str() == kind);
        let cure = match same {
            Some(kind) => format!("use apiVersion {}", kind.versions().join(" or ")),
            None => format!("supported kinds: {}", Kind::ALL.iter().map(|k| k.as_str()).collect::<Vec<_>>().join(", ")),
        };
        let field = if same.is_some() { "apiVersion" } else { "kind" };
        return Err(fail(lines.of(field), &named, field, format!("{version} {kind} is not supported"), &cure));
    };
    if name.is_empty() {
        return Err(fail(lines.of("metadata"), &named, "metadata.name", "a name is required".into(), ""));
    }
    let (object, ignored) = Object::from_json(kind, value)
        .map_err(|error| fail(lines.of(&error.field), &named, &error.field, error.message.clone(), ""))?;
    let notes = ignored
        .iter()
        .map(|field| *fail(lines.of(field), &named, field, "unknown field".into(), "correct its name or remove it"))
        .collect();
    let origin = Origin { file: file.clone(), line: lines.base };
    Ok(Some((Box::new(Loaded { object, origin, lines }), notes)))
}

fn to_json(node: &MarkedYaml<'_>, path: &str, first: usize, lines: &mut Lines) -> Value {
    if !path.is_empty() {
        lines.by_path.entry(path.to_owned()).or_insert(first + node.span.start.line().saturating_sub(1));
    }
    match &node.data {
        YamlData::Value(scalar) => scalar_to_json(scalar),
        YamlData::Sequence(items) => {
            let each = |(index, item)| to_json(item, &format!("{path}[{index}]"), first, lines);
            Value::Array(items.iter().enumerate().map(each).collect())
        }
        YamlData::Mapping(entries) => {
            let mut map = Map::new();
            for (key, item) in entries {
                let key_text = match &key.data {
                    YamlData::Value(Scalar::String(text)) => text.to_string(),
                    YamlData::Value(other) => scalar_to_json(other).to_string(),
                    _ => continue,
                };
                let below = if path.is_empty() { key_text.clone() } else { format!("{path}.{key_text}") };
                lines.by_path.insert(below.clone(), first + key.span.start.line().saturating_sub(1));
                let value = to_json(item, &below, first, lines);
                // As for the Kubernetes API, null is absence.
                if !value.is_null() {
                    map.insert(key_text, value);
                }
            }
            Value::Object(map)
        }
        YamlData::Tagged(_, inner) => to_json(inner, path, first, lines),
        _ => Value::Null,
    }
}

fn scalar_to_json(scalar: &Scalar<'_>) -> Value {
    match scalar {
        Scalar::Null => Value::Null,
        Scalar::Boolean(value) => Value::Bool(*value),
        Scalar::Integer(value) => Value::from(*value),
        Scalar::FloatingPoint(value) => Value::from(value.into_inner()),
        Scalar::String(text) => Value::String(text.to_string()),
    }
}

#[cfg(test)]
mod tests;
