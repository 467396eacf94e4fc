//! The TOML file: one flat table, the same keys as the flags. Unknown keys and nested tables are refused with their
//! line; what values mean is not judged here.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{Arity, ConfigError, Key, Settings, Source};

/// Reads the text of a file. `path` is for messages.
///
/// # Errors
/// Text that is no TOML, an unknown key, or a value of a kind that no key has: with file, line and key.
pub fn parse(path: &Path, text: &str) -> Result<Settings, ConfigError> {
    let source = |at: usize, key: &str| Source::File {
        path: path.to_owned(),
        line: line(text, at),
        key: key.to_owned(),
    };
    let table = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        ConfigError::at(&source(at, ""), e.message())
    })?;
    let mut settings = Settings::default();
    for (name, value) in table.get_ref() {
        let at = source(name.span().start, name.get_ref());
        let key = Key::find(name.get_ref()).ok_or_else(|| ConfigError::at(&at, "no such key"))?;
        match (key.arity, value.get_ref()) {
            (Arity::Many, DeValue::Array(values)) => {
                for value in values.iter() {
                    let source = source(value.span().start, key.name);
                    settings.add(key, scalar(value, &source)?, source);
                }
            }
            _ => settings.add(key, scalar(value, &at)?, at),
        }
    }
    Ok(settings)
}

/// A value as the text that a flag would have. Numbers may be quoted.
fn scalar(value: &Spanned<DeValue<'_>>, source: &Source) -> Result<String, ConfigError> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(n) if n.radix() == 10 => Ok(n.as_str().to_owned()),
        DeValue::Boolean(b) => Ok(b.to_string()),
        other => {
            Err(ConfigError::at(source, format!("a value of kind {} is not allowed here", other.type_str())))
        }
    }
}

/// The line of a byte, from 1.
pub(super) fn line(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::path::Path;

    fn error(text: &str) -> String {
        parse(Path::new("u.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn scalars_and_lists_become_settings_with_their_line() {
        let text = "# c\nworkers = 4\ndebug-headers = true\nbackend = [\n  \"http://a\",\n  \"http://b,model=m\",\n]\n";
        let s = parse(Path::new("u.toml"), text).unwrap();
        assert_eq!(s.all("workers")[0].text, "4");
        assert_eq!(s.all("debug-headers")[0].text, "true");
        let backends = s.all("backend");
        assert_eq!(backends.len(), 2);
        assert_eq!(backends[1].source.to_string(), "u.toml:6: backend");
    }

    #[test]
    fn errors_name_file_line_and_key() {
        assert_eq!(error("\nwokers = 4\n"), "u.toml:2: wokers: no such key");
        assert_eq!(error("[limits]\nx = 1\n"), "u.toml:1: limits: no such key");
        assert!(error("workers = [1]").starts_with("u.toml:1: workers: a value of kind array"));
        assert!(error("listen = 1.5").starts_with("u.toml:1: listen: "));
        assert!(error("workers = 1\nworkers = 2").starts_with("u.toml:2: "));
        assert!(error("a = \n").starts_with("u.toml:1: "));
    }
}
