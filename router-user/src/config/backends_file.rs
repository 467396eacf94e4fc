//! Lists of backends in files of their own, which may change while the router serves.
//!
//! A list in TOML, JSON or YAML, at the top or under the key `backends`. Each entry is a text as for `--backend`, or
//! a table of its keys with the URL under `url`. The whole file is right or nothing of it is used. Pure but for reading
//! the key files that entries name, which the caller lends.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::document::{Node, Notation, SyntaxError, Value};
use super::settings::ConfigError;
use super::{BackendConfig, backend};

/// Bytes of a file at most: a full list of long entries fits four times.
pub const BYTES_MAX: u64 = 1 << 20;

/// Keys whose values are numbers; the others' are texts, and a number there is one that lost its quotes.
const NUMBERS: [&str; 5] = ["max-in-flight", "max-num-seqs", "kv-tokens", "weight", "metrics-port"];

/// Reads the text of such a file. Key files are read by the function it is lent.
pub type Parse =
    fn(&Path, &str, &dyn Fn(&Path) -> io::Result<String>) -> Result<Vec<BackendConfig>, ConfigError>;

/// A file with a list of backends, and how it is to be read.
#[derive(Clone)]
pub struct BackendsFile {
    /// Where it is.
    pub path: PathBuf,
    /// What reads its text.
    pub parse: Parse,
}

impl BackendsFile {
    /// A file in one of the notations here.
    ///
    /// # Errors
    /// The name does not end as one of them.
    pub fn new(path: PathBuf) -> Result<Self, String> {
        match Notation::of(&path) {
            Some(_) => Ok(Self { path, parse }),
            None => Err(format!("`{}` does not end in .toml, .json, .yaml or .yml", path.display())),
        }
    }
}

impl fmt::Debug for BackendsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BackendsFile").field(&self.path).finish()
    }
}

impl PartialEq for BackendsFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && std::ptr::fn_addr_eq(self.parse, other.parse)
    }
}

/// Reads the text of a backends file. `path` is for messages and tells the notation.
///
/// # Errors
/// The first thing that is wrong, with file, line where it is known, entry (from 1) and key.
pub fn parse(
    path: &Path,
    text: &str,
    read: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Vec<BackendConfig>, ConfigError> {
    let located = |line: Option<usize>, message: String| ConfigError {
        at: match line {
            Some(line) => format!("{}:{line}", path.display()),
            None => path.display().to_string(),
        },
        message,
    };
    if text.trim().is_empty() {
        // As a file is for a moment while an editor or `>` writes it.
        return Err(located(None, "the file is empty; a list of no backends is `backends: []`".to_owned()));
    }
    let notation = Notation::of(path).unwrap_or(Notation::Toml);
    let root = notation.parse(text).map_err(|SyntaxError { line, message }| located(line, message))?;
    let mut all = Vec::new();
    for (at, entry) in list(&root).map_err(|e| located(e.line, e.message))?.iter().enumerate() {
        let one = entry_of(entry, read).and_then(|one| {
            backend::add(&mut all, one).map_err(|message| Wrong { line: entry.line, message })
        });
        one.map_err(|e| located(e.line.or(entry.line), format!("entry {}: {}", at + 1, e.message)))?;
    }
    Ok(all)
}

/// What is wrong, and where as far as it is known.
struct Wrong {
    line: Option<usize>,
    message: String,
}

impl Wrong {
    fn at(node: &Node, message: impl Into<String>) -> Self {
        Self { line: node.line, message: message.into() }
    }
}

fn list(root: &Node) -> Result<&[Node], Wrong> {
    let node = match &root.value {
        Value::Table(all) => match &all[..] {
            [(key, node)] if key == "backends" => node,
            _ => match all.iter().find(|(key, _)| key != "backends") {
                Some((key, node)) => {
                    return Err(Wrong::at(node, format!("{key}: no such key; only `backends`")));
                }
                None => return Err(Wrong::at(root, "there must be one list `backends`")),
            },
        },
        _ => root,
    };
    match &node.value {
        Value::List(all) => Ok(all),
        other => Err(Wrong::at(node, format!("a list of backends is wanted, not {}", other.kind()))),
    }
}

fn entry_of(entry: &Node, read: &dyn Fn(&Path) -> io::Result<String>) -> Result<BackendConfig, Wrong> {
    let pairs = match &entry.value {
        Value::Text(text) => return backend::parse(text, read).map_err(|e| Wrong::at(entry, e)),
        Value::Table(pairs) => pairs,
        other => return Err(Wrong::at(entry, format!("an URL or a table is wanted, not {}", other.kind()))),
    };
    let urls: Vec<_> = pairs.iter().filter(|(key, _)| key == "url").collect();
    let [(_, url)] = urls[..] else {
        return Err(Wrong::at(entry, "there must be one `url`"));
    };
    let mut one = backend::from_url(scalar("url", url)?).map_err(|e| Wrong::at(url, e))?;
    for (key, node) in pairs.iter().filter(|(key, _)| key != "url") {
        set(&mut one, key, node, read)
            .map_err(|e| Wrong { message: format!("{key}: {}", e.message), ..e })?;
    }
    backend::whole(one).map_err(|e| Wrong::at(entry, e))
}

fn set(
    one: &mut BackendConfig,
    key: &str,
    node: &Node,
    read: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<(), Wrong> {
    match (key, &node.value) {
        ("alias", Value::List(all)) => all.iter().try_for_each(|alias| set(one, key, alias, read)),
        ("labels", Value::Table(all)) => all.iter().try_for_each(|(label, node)| {
            let label = backend::label(label, scalar(label, node)?).map_err(|e| Wrong::at(node, e))?;
            one.labels.push(label);
            Ok(())
        }),
        _ => backend::set(one, key, scalar(key, node)?, read).map_err(|e| Wrong::at(node, e)),
    }
}

fn scalar<'n>(key: &str, node: &'n Node) -> Result<&'n str, Wrong> {
    match &node.value {
        Value::Text(text) if text.is_empty() => Err(Wrong::at(node, "there is no value")),
        Value::Text(text) => Ok(text),
        Value::Number(text) if NUMBERS.contains(&key) => Ok(text),
        Value::Number(text) => Err(Wrong::at(node, format!("{text} is a number; write it in quotes"))),
        other => Err(Wrong::at(node, format!("{} is not allowed here", other.kind()))),
    }
}

#[cfg(test)]
#[path = "backends_file_tests.rs"]
mod tests;
