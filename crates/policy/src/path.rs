//! Readings of a request's path. Servers disagree on what a path means; a policy must hold for every meaning that one of them may see.
//! The readings decide, the path itself is sent on as it came.

/// Up to three meanings of one path, without query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readings {
    /// Escapes of unreserved characters (RFC 3986) decoded.
    pub decoded: String,
    /// Also `\` as `/`, and dot segments resolved: what routes are matched against.
    pub resolved: String,
    /// Also escaped `/` and `\` decoded, parameters (`;…`) cut, slashes merged.
    pub merged: String,
}

/// Why a path is refused whatever the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// `%` without two hexadecimal digits.
    #[error("a malformed escape in the path")]
    Escape,
    /// An escaped NUL.
    #[error("an escaped NUL in the path")]
    Nul,
    /// A raw control character or blank.
    #[error("a control character in the path")]
    Control,
    /// Neither `/…` nor `*`.
    #[error("the path does not begin with a slash")]
    NotAbsolute,
}

impl Readings {
    /// The readings of `path`, which has no query.
    pub fn of(path: &str) -> Result<Self, BadPath> {
        if path == "*" {
            let star = || "*".to_owned();
            return Ok(Self { decoded: star(), resolved: star(), merged: star() });
        }
        if !path.starts_with('/') {
            return Err(BadPath::NotAbsolute);
        }
        if path.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(BadPath::Control);
        }
        let decoded = decode(path, unreserved)?;
        let resolved = resolve(&decoded.replace('\\', "/"), false);
        let slashes = decode(&decoded, |c| c == b'/' || c == b'\\')?.replace('\\', "/");
        let cut: Vec<&str> = slashes.split('/').map(|part| part.split(';').next().unwrap_or_default()).collect();
        let merged = resolve(&cut.join("/"), true);
        Ok(Self { decoded, resolved, merged })
    }

    /// The different ones among them.
    pub fn distinct(&self) -> Vec<&str> {
        let mut all = vec![self.decoded.as_str()];
        for other in [self.resolved.as_str(), self.merged.as_str()] {
            if !all.contains(&other) {
                all.push(other);
            }
        }
        all
    }
}

fn unreserved(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~')
}

/// Decodes the escapes of characters that `wanted` holds of; the others stay as they are.
fn decode(path: &str, wanted: impl Fn(u8) -> bool) -> Result<String, BadPath> {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let digits = escape.get(1..3).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit())).ok_or(BadPath::Escape)?;
        let code = u8::from_str_radix(digits, 16).map_err(|_| BadPath::Escape)?;
        match code {
            0 => return Err(BadPath::Nul),
            code if wanted(code) => out.push(char::from(code)),
            _ => out.push_str(escape.get(..3).unwrap_or_default()),
        }
        rest = escape.get(3..).unwrap_or_default();
    }
    out.push_str(rest);
    Ok(out)
}

/// Removes dot segments (RFC 3986, 5.2.4); with `merge`, empty segments too.
fn resolve(path: &str, merge: bool) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let last = segments.len().saturating_sub(1);
    for (index, segment) in segments.iter().enumerate() {
        let dots = matches!(*segment, "." | "..");
        match *segment {
            ".." => {
                kept.pop();
            }
            "." => {}
            "" if merge && index != last => {}
            other => kept.push(other),
        }
        // A path that ends in dots is a folder.
        if dots && index == last {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_of_odd_paths() {
        for (path, decoded, resolved, merged) in [
            ("/", "/", "/", "/"),
            ("/a/b", "/a/b", "/a/b", "/a/b"),
            ("/public/../admin", "/public/../admin", "/admin", "/admin"),
            ("/public/%2e%2E/admin", "/public/../admin", "/admin", "/admin"),
            ("/x%2f..%2fadmin", "/x%2f..%2fadmin", "/x%2f..%2fadmin", "/admin"),
            ("//admin", "//admin", "//admin", "/admin"),
            ("/files/a%2Fb", "/files/a%2Fb", "/files/a%2Fb", "/files/a/b"),
            ("/a;v=1", "/a;v=1", "/a;v=1", "/a"),
            ("/public/..;/admin", "/public/..;/admin", "/public/..;/admin", "/admin"),
            ("/a\\..\\admin", "/a\\..\\admin", "/admin", "/admin"),
            ("/a%5c..%5cadmin", "/a%5c..%5cadmin", "/a%5c..%5cadmin", "/admin"),
            ("/../../etc", "/../../etc", "/etc", "/etc"),
            ("/a/.", "/a/.", "/a/", "/a/"),
            ("/a/b/..", "/a/b/..", "/a/", "/a/"),
            ("/%61%64min", "/admin", "/admin", "/admin"),
            ("/%2561", "/%2561", "/%2561", "/%2561"),
            ("/a/", "/a/", "/a/", "/a/"),
        ] {
            let read = Readings::of(path).unwrap();
            assert_eq!((&*read.decoded, &*read.resolved, &*read.merged), (decoded, resolved, merged), "{path}");
        }
        for (path, why) in [
            ("/%", BadPath::Escape),
            ("/%2", BadPath::Escape),
            ("/%zz", BadPath::Escape),
            ("/%00", BadPath::Nul),
            ("/a\u{1}", BadPath::Control),
            ("admin", BadPath::NotAbsolute),
        ] {
            assert_eq!(Readings::of(path), Err(why), "{path}");
        }
    }
}
