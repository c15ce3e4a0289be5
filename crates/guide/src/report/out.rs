//! Where the report goes: checked before anything is measured, written whole or not at all, and never over one that holds more.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Room that is taken on the disk before the run, bytes: more than a report needs.
const ROOM: usize = 4 << 20;
/// The report's name.
const NAME: &str = "report.json";

/// A folder that can take the report: a file in it holds the room until then.
pub struct Out {
    dir: PathBuf,
    draft: PathBuf,
}

/// Where a report was written.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    /// The file.
    pub file: PathBuf,
    /// An earlier report that holds more, and was left as it is.
    pub kept: Option<PathBuf>,
}

impl Out {
    /// Makes the folder if need be, and takes the room.
    ///
    /// # Errors
    /// When the folder cannot be made or written to, or its disk is full.
    pub fn check(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let draft = dir.join(format!(".{NAME}.{}", std::process::id()));
        let out = Self { dir: dir.to_owned(), draft };
        let mut file = File::create(&out.draft)?;
        file.write_all(&vec![b' '; ROOM])?;
        file.sync_all()?;
        Ok(out)
    }

    /// Writes the report, into the room that was taken. Where one is that this one does not [cover](covers), it goes beside it.
    ///
    /// # Errors
    /// When it cannot be written after all; what was there stays as it was.
    pub fn write(self, report: &Value) -> io::Result<Written> {
        let text = format!("{report:#}\n");
        let mut file = File::options().write(true).open(&self.draft)?;
        file.write_all(text.as_bytes())?;
        file.set_len(text.len() as u64)?;
        file.sync_all()?;
        let first = self.dir.join(NAME);
        let before = fs::read_to_string(&first).ok();
        // What cannot be read is no report.
        let better =
            before.and_then(|text| serde_json::from_str::<Value>(&text).ok()).filter(|old| !covers(report, old));
        let (file, kept) = match better {
            None => (first, None),
            Some(_) => {
                let free = |n: &u32| !self.dir.join(format!("report-{n}.json")).exists();
                let number = (2..).find(free).unwrap_or(u32::MAX);
                (self.dir.join(format!("report-{number}.json")), Some(first))
            }
        };
        fs::rename(&self.draft, &file)?;
        Ok(Written { file, kept })
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        // After a report was written there is nothing left to remove.
        fs::remove_file(&self.draft).unwrap_or_default();
    }
}

/// Whether the report `new` holds at least what `old` does: every case and mode, measured at least as long.
pub fn covers(new: &Value, old: &Value) -> bool {
    let same_kind = new.get("schema") == old.get("schema");
    same_kind
        && cells(old).is_subset(&cells(new))
        && CASES.iter().all(|case| seconds(new, case) >= seconds(old, case) || !has(old, case))
}

/// Cases whose length can be chosen.
const CASES: [&str; 3] = ["latency", "rollout", "retry"];

fn has(report: &Value, case: &str) -> bool {
    cells(report).iter().any(|(c, _)| c == case)
}

/// What was measured: cases, and the modes or ways in each.
fn cells(report: &Value) -> BTreeSet<(String, String)> {
    let cases = report.get("cases").and_then(Value::as_object).into_iter().flatten();
    let inner = |(case, modes): (&String, &Value)| {
        let modes: Vec<_> =
            modes.as_object().into_iter().flatten().map(|(mode, _)| (case.clone(), mode.clone())).collect();
        modes
    };
    cases.flat_map(inner).collect()
}

/// Seconds of load that a mode of a case was given.
fn seconds(report: &Value, case: &str) -> f64 {
    let number = |key: &str| report.pointer(&format!("/settings/{case}/{key}")).and_then(Value::as_f64);
    match case {
        "latency" => number("rounds").unwrap_or(0.0) * number("seconds").unwrap_or(0.0),
        "retry" => number("seconds").unwrap_or(0.0),
        _ => number("baseline_s").unwrap_or(0.0) + number("hardened_s").unwrap_or(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(modes: &[&str], rounds: u32) -> Value {
        let latency: serde_json::Map<String, Value> = modes.iter().map(|m| ((*m).to_owned(), json!({}))).collect();
        json!({"schema": "s/v1", "settings": {"latency": {"rounds": rounds, "seconds": 5}}, "cases": {"latency": latency}})
    }

    #[test]
    fn a_report_is_covered_by_one_that_holds_as_much() {
        let both = report(&["none", "sidecar"], 4);
        assert!(
            covers(&both, &both)
                && covers(&both, &report(&["none"], 4))
                && covers(&report(&["none", "sidecar"], 6), &both)
        );
        assert!(!covers(&report(&["none"], 6), &both) && !covers(&report(&["none", "sidecar"], 3), &both));
        assert!(!covers(&both, &json!({"schema": "other"})));
        // How long a case was to be, of which nothing was measured, does not matter.
        assert!(covers(
            &both,
            &json!({"schema": "s/v1", "settings": {"rollout": {"baseline_s": 9}}, "cases": {"rollout": {}}})
        ));
    }

    #[test]
    fn found_f52_a_shorter_run_is_written_beside_a_longer_one() {
        let dir = std::env::temp_dir().join(format!("trysail-out-{}", std::process::id()));
        let write = |report: &Value| Out::check(&dir).unwrap().write(report).unwrap();
        let (first, second) = (dir.join("report.json"), dir.join("report-2.json"));
        assert_eq!(write(&report(&["none"], 4)), Written { file: first.clone(), kept: None });
        assert_eq!(write(&report(&["none"], 1)), Written { file: second.clone(), kept: Some(first.clone()) });
        assert_eq!(write(&report(&["none"], 5)), Written { file: first.clone(), kept: None });
        fs::write(&first, "").unwrap();
        assert_eq!(write(&report(&["none"], 1)), Written { file: first.clone(), kept: None });
        let mut left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
        left.sort();
        assert_eq!(left, [second, first]);
        assert!(Out::check(Path::new("/proc/none")).is_err());
        fs::remove_dir_all(dir).unwrap();
    }
}
