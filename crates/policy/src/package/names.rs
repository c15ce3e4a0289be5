//! Names of what is made. They are part of the format: other tools find objects by them.

/// The longest name.
const LONGEST: usize = 250;

/// A text as a name: lower case, what is not a letter or digit as one dash, and nothing but letters at both ends.
pub fn sanitise(text: &str) -> String {
    let mut out = String::new();
    for c in text.to_lowercase().chars() {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            out.push(c);
        } else if !out.ends_with('-') {
            out.push('-');
        }
    }
    out.truncate(LONGEST);
    out.trim_matches(|c: char| !c.is_ascii_lowercase()).to_owned()
}

/// Eight letters that tell hosts apart whose names would be the same: the first four bytes of the SHA-256, a letter per half byte.
pub fn mark(host: &str) -> String {
    use sha2::{Digest, Sha256};
    let letter = |nibble: u8| char::from(b'a' + nibble);
    Sha256::digest(host).iter().take(4).flat_map(|byte| [letter(byte >> 4), letter(byte & 0xf)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_letters_and_inner_digits_alone() {
        for (text, name) in [
            ("allow-shop-Ingress-Port 8080", "allow-shop-ingress-port"),
            ("shop-udp-5353", "shop-udp"),
            ("shop-tenant-app1", "shop-tenant-app"),
            ("allow-x-Ingress-all pods-*-all pods-TCP", "allow-x-ingress-all-pods-all-pods-tcp"),
            ("8080-web Istio tenant gateway", "web-istio-tenant-gateway"),
            ("Ünï__code", "n-code"),
            ("42", ""),
        ] {
            assert_eq!(sanitise(text), name, "{text}");
        }
        assert_eq!(sanitise(&"x".repeat(300)).len(), LONGEST);
    }

    #[test]
    fn marks_are_eight_letters_that_differ() {
        assert_eq!(mark("app1.uds.dev").len(), 8);
        assert!(mark("app1.uds.dev").bytes().all(|b| (b'a'..=b'p').contains(&b)));
        assert_ne!(mark("app1.uds.dev"), mark("app2.uds.dev"));
    }
}
