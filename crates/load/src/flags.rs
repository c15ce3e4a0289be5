//! Go-style flags: `-name value`, `-name=value`, with one dash or two.

use std::collections::BTreeMap;

/// A flag that is understood: its name, and whether it takes a value.
pub type Known = (&'static str, bool);

/// Parsed words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Flags {
    given: BTreeMap<String, Vec<String>>,
    /// What is no flag.
    pub rest: Vec<String>,
}

/// What is wrong with the words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// Not a flag of this command.
    #[error("flag provided but not defined: -{0}")]
    Unknown(String),
    /// A value is missing.
    #[error("flag needs an argument: -{0}")]
    NoValue(String),
    /// A value is malformed.
    #[error("invalid value {value:?} for flag -{flag}: {reason}")]
    Value {
        /// The flag.
        flag: String,
        /// Its value.
        value: String,
        /// Why.
        reason: String,
    },
}

impl Flags {
    /// Parses `words` against the flags in `known`.
    pub fn parse(words: &[String], known: &[Known]) -> Result<Self, FlagError> {
        let mut out = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).filter(|n| !n.is_empty())
            else {
                out.rest.push(word.clone());
                continue;
            };
            let (name, inline) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let (_, takes) =
                known.iter().find(|(k, _)| *k == name).ok_or_else(|| FlagError::Unknown(name.to_owned()))?;
            let value = match (inline, takes) {
                (Some(value), _) => value,
                (None, true) => words.next().cloned().ok_or_else(|| FlagError::NoValue(name.to_owned()))?,
                (None, false) => "true".to_owned(),
            };
            out.given.entry(name.to_owned()).or_default().push(value);
        }
        Ok(out)
    }

    /// All values of a flag.
    pub fn all(&self, name: &str) -> &[String] {
        self.given.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The last value of a flag.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.all(name).last().map(String::as_str)
    }

    /// Whether a switch is on.
    pub fn on(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    /// A parsed value, or `default`.
    pub fn value<T>(&self, name: &str, default: T, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, FlagError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        parse(text).map_err(|reason| FlagError::Value { flag: name.to_owned(), value: text.to_owned(), reason })
    }
}

/// A duration as Go writes it: `10ms`, `1.5s`, `2m30s`.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or("missing unit in duration")?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            other => return Err(format!("unknown unit {other:?} in duration")),
        };
        total += number.parse::<f64>().map_err(|e| e.to_string())? * factor;
        rest = tail;
    }
    if text.is_empty() { Err("an empty duration".to_owned()) } else { Ok(std::time::Duration::from_secs_f64(total)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let words: Vec<String> = ["-qps", "200", "--t=1m30s", "-json", "-", "-H", "a: b", "-H", "c: d", "http://x"]
            .map(str::to_owned)
            .to_vec();
        let flags = Flags::parse(&words, &[("qps", true), ("t", true), ("json", true), ("H", true)]).unwrap();
        assert_eq!(
            (flags.text("json"), flags.all("H").len(), flags.rest.as_slice()),
            (Some("-"), 2, ["http://x".to_owned()].as_slice())
        );
        assert_eq!(flags.value("t", Default::default(), duration).unwrap().as_secs(), 90);
        assert_eq!(Flags::parse(&["-nope".into()], &[]), Err(FlagError::Unknown("nope".into())));
        assert!(duration("10").is_err() && duration("1x").is_err());
    }
}
