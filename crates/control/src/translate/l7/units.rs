//! Durations, shares, patterns and names, read from their text forms.

use super::findings::Findings;
use trysail_wire::l7::{self as wire, text};

/// A duration as Gateway API and Istio write it: `1h30m`, `2.5s`, `100ms`; milliseconds. Nothing but digits and units.
pub fn milliseconds(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a duration such as 500ms, 2s or 1m30s");
    if text == "0" {
        return Ok(0);
    }
    let (mut total, mut rest) = (0.0, text);
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let number: f64 = number.parse().map_err(|_| bad())?;
        total += number
            * match unit {
                "ns" => 1e-6,
                "us" | "µs" => 1e-3,
                "ms" => 1.0,
                "s" => 1e3,
                "m" => 60e3,
                "h" => 3600e3,
                _ => return Err(bad()),
            };
        rest = after;
    }
    // Anything above nothing is at least one: 0 means no limit.
    let rounded = total.round().max(if total > 0.0 { 1.0 } else { 0.0 });
    if rounded > 1e15 { Err(bad()) } else { Ok(rounded as u64) }
}

/// The milliseconds of an optional field; 0 when it is absent or unreadable, which is said.
pub fn duration(given: Option<&String>, field: &str, findings: &mut Findings) -> u64 {
    given.map_or(0, |text| {
        milliseconds(text).unwrap_or_else(|why| {
            findings.error(field, why);
            0
        })
    })
}

/// Checks a pattern, which must match as a whole.
pub fn pattern(text: &str, field: &str, findings: &mut Findings) -> String {
    if let Err(error) = regex::Regex::new(text) {
        let last = error.to_string().lines().last().unwrap_or_default().to_owned();
        findings.error(field, format!("{text:?} is not a regular expression: {last}"));
    }
    text.to_owned()
}

/// A text that must be equal.
pub fn exact(value: &str) -> wire::Text {
    wire::Text { kind: Some(text::Kind::Exact(value.to_owned())) }
}

/// Checks a percentage.
pub fn share(value: f64, field: &str, findings: &mut Findings) -> f64 {
    if !(0.0..=100.0).contains(&value) {
        findings.error(field, format!("{value} is not between 0 and 100"));
    }
    value.clamp(0.0, 100.0)
}

/// Checks a header's name (RFC 9110).
pub fn header_name(name: &str, field: &str, findings: &mut Findings) {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        findings.error(field, format!("{name:?} is not a header name"));
    }
}

/// Checks a header's value.
pub fn header_value(value: &str, field: &str, findings: &mut Findings) {
    if value.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
        findings.error(field, "a header value must not hold control characters");
    }
}

/// Checks a method.
pub fn method(value: &str, field: &str, findings: &mut Findings) {
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') {
        findings.error(field, format!("{value:?} is not a method: methods are upper case"));
    }
}

/// Checks a host name, with `*.` in front where that is allowed.
pub fn hostname(value: &str, field: &str, findings: &mut Findings) {
    let bare = value.strip_prefix("*.").unwrap_or(value);
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
    };
    if bare.is_empty() || bare.len() > 253 || !bare.split('.').all(label) {
        findings.error(field, format!("{value:?} is not a host name"));
    }
}

#[cfg(test)]
mod tests {
    use super::milliseconds;

    #[test]
    fn durations() {
        for (text, wanted) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("2s", 2000),
            ("1m30s", 90_000),
            ("1h", 3_600_000),
            ("2.5s", 2500),
            ("1us", 1),
        ] {
            assert_eq!(milliseconds(text), Ok(wanted), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1 s", "1d", "1e3s", "10s5"] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
    }
}
