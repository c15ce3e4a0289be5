//! What a machine can check of the layout: who may depend on whom, sizes, and words that must not occur.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Direct dependencies on our own crates that are allowed. `api` and `base` are open to all but the crates below them.
const EDGES: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("api", &[]),
    ("wire", &[]),
    ("netns", &[]),
    ("policy", &["api"]),
    ("mesh", &["api", "policy", "wire"]),
    ("identity", &["api", "base", "wire"]),
    ("xds", &["api", "base", "wire"]),
    ("hbone", &["api", "base", "identity"]),
    ("l4", &["api", "base", "wire", "policy", "mesh", "identity", "xds", "netns", "hbone"]),
    ("l7", &["api", "base", "wire", "policy", "mesh", "identity", "xds", "netns", "hbone"]),
    ("control", &["api", "base", "wire", "policy", "mesh", "identity", "xds"]),
    ("node", &["api", "base", "wire", "netns"]),
    // The lab issues tokens and seeds the authority, as a cluster's API server and an administrator would.
    ("lab", &["api", "base", "netns", "node", "identity", "control"]),
    ("load", &["base"]),
    ("guide", &["api", "base", "lab", "load"]),
    ("trysail", &["api", "base", "l4", "l7", "control", "node", "lab", "load", "guide"]),
];
/// Crates whose whole dependency tree is free of an asynchronous runtime.
const PURE: &[&str] = &["api", "policy", "wire", "mesh"];
/// A dependency and the only crates that may have it directly.
const RESERVED: &[(&str, &[&str])] = &[
    ("rtnetlink", &["netns"]),
    ("kube", &["cluster"]),
    ("hyper", &["base", "load", "lab", "l7"]),
    ("anyhow", &["trysail"]),
];
const LONGEST_FILE: usize = 600;

/// Runs every check and reports all findings together.
pub fn run(root: &Path) -> Result<()> {
    let mut findings = Vec::new();
    edges(root, &mut findings)?;
    sources(root, &mut findings)?;
    if !findings.is_empty() {
        bail!("{} findings:\n  {}", findings.len(), findings.join("\n  "));
    }
    println!("layout: {} crates, edges, sizes and words are as they must be", EDGES.len());
    Ok(())
}

fn edges(root: &Path, findings: &mut Vec<String>) -> Result<()> {
    let output = Command::new("cargo").args(["metadata", "--format-version", "1"]).current_dir(root).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let names: BTreeMap<String, String> =
        list(&metadata, "packages").iter().map(|p| (text(p, "id"), text(p, "name"))).collect();
    // Normal dependencies of every package, by name.
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in list(metadata.get("resolve").unwrap_or(&Value::Null), "nodes") {
        let normal = |dep: &Value| list(dep, "dep_kinds").iter().any(|k| k.get("kind").is_none_or(Value::is_null));
        let below = list(&node, "deps")
            .iter()
            .filter(|d| normal(d))
            .filter_map(|d| names.get(&text(d, "pkg")).cloned())
            .collect();
        graph.insert(names.get(&text(&node, "id")).cloned().unwrap_or_default(), below);
    }
    let own = |name: &str| {
        if name == "trysail" { Some("trysail".to_owned()) } else { name.strip_prefix("trysail-").map(str::to_owned) }
    };
    for (package, below) in &graph {
        let Some(name) = own(package) else { continue };
        let Some((_, allowed)) = EDGES.iter().find(|(known, _)| *known == name) else {
            findings.push(format!("crate {name} is not in the list of edges"));
            continue;
        };
        for dependency in below.iter().filter_map(|d| own(d)).filter(|d| !allowed.contains(&d.as_str())) {
            findings.push(format!("crate {name} must not depend on {dependency}"));
        }
        for (reserved, users) in RESERVED {
            if below.contains(*reserved) && !users.contains(&name.as_str()) {
                findings.push(format!("crate {name} must not use {reserved} itself"));
            }
        }
        if PURE.contains(&name.as_str()) && reaches(&graph, package, "tokio", &mut BTreeSet::new()) {
            findings.push(format!("crate {name} must not have tokio anywhere below it"));
        }
    }
    Ok(())
}

fn reaches(graph: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str, seen: &mut BTreeSet<String>) -> bool {
    if from == to {
        return true;
    }
    seen.insert(from.to_owned()) && graph.get(from).into_iter().flatten().any(|next| reaches(graph, next, to, seen))
}

fn sources(root: &Path, findings: &mut Vec<String>) -> Result<()> {
    let mut files = Vec::new();
    for folder in ["crates", "tests", "xtask/src"] {
        walk(&root.join(folder), &mut files)?;
    }
    for file in files {
        let shown = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let text = std::fs::read_to_string(&file)?;
        let generated = shown.contains("/gen/");
        if !generated && text.lines().count() > LONGEST_FILE {
            findings.push(format!("{shown} has more than {LONGEST_FILE} lines: split it by what it does"));
        }
        for (word, allowed) in [
            (concat!("allow(", "unsafe_code)"), "crates/netns/"),
            (concat!("#[", "ignore"), "-"),
            (concat!("todo", "!("), "-"),
            (concat!("unimplemented", "!("), "-"),
        ] {
            if text.contains(word) && !shown.starts_with(allowed) {
                findings.push(format!("{shown}: {word} is not allowed here"));
            }
        }
    }
    Ok(())
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, out)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
    Ok(())
}
