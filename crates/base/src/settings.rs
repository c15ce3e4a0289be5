//! The only reader of the environment. A section asks for each key once; all errors are shown together.

use std::fmt::Display;
use std::str::FromStr;

/// Reads settings and gathers what is wrong with them.
pub struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    errors: Vec<String>,
}

/// Everything wrong with the settings, one line each.
#[derive(Debug, thiserror::Error)]
#[error("settings cannot be used:\n  {}", .0.join("\n  "))]
pub struct SettingsError(Vec<String>);

/// Parses one section from the process's environment.
pub fn from_env<T>(parse: impl FnOnce(&mut Reader<'_>) -> T) -> Result<T, SettingsError> {
    #[expect(clippy::disallowed_methods, reason = "this module is the one place that reads the environment")]
    let lookup = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
    from_source(&lookup, parse)
}

/// Parses one section from `lookup`.
pub fn from_source<T>(
    lookup: &dyn Fn(&str) -> Option<String>,
    parse: impl FnOnce(&mut Reader<'_>) -> T,
) -> Result<T, SettingsError> {
    let mut reader = Reader { lookup, errors: Vec::new() };
    let section = parse(&mut reader);
    if reader.errors.is_empty() { Ok(section) } else { Err(SettingsError(reader.errors)) }
}

impl Reader<'_> {
    /// The value of `key`, or `default` when it is absent or empty.
    pub fn value<T>(&mut self, key: &str, default: T) -> T
    where
        T: FromStr,
        T::Err: Display,
    {
        let Some(text) = (self.lookup)(key) else { return default };
        match text.parse() {
            Ok(value) => value,
            Err(error) => {
                self.errors.push(format!("{key}={text:?}: {error}"));
                default
            }
        }
    }

    /// The text of `key`, or `default`.
    pub fn text(&mut self, key: &str, default: &str) -> String {
        self.value(key, default.to_owned())
    }

    /// The text of `key`, which must be given.
    pub fn required(&mut self, key: &str) -> String {
        (self.lookup)(key).unwrap_or_else(|| {
            self.errors.push(format!("{key} is not set"));
            String::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_errors_are_shown_together() {
        let lookup = |key: &str| (key == "PORT").then(|| "many".to_owned());
        let error = from_source(&lookup, |r| (r.value("PORT", 1u16), r.required("NODE_NAME"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "settings cannot be used:\n  PORT=\"many\": invalid digit found in string\n  NODE_NAME is not set"
        );
    }
}
