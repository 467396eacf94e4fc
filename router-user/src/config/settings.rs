//! Settings as they were given, before anybody understood them: texts by key, each with where it came from.
//!
//! One table of keys makes flags, environment variables, keys of the file and their help, so that they cannot
//! differ. Nothing here knows what a value means. Invariant: a [`Settings`] holds keys of the table only.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

pub use super::keys::KEYS;

/// One key: flag `--name`, environment variable `UNLATCH_NAME`, `name` in the file.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in kebab case.
    pub name: &'static str,
    /// What its value is called in the help.
    pub value: &'static str,
    /// The default as one would write it; empty where there is none or the help says it.
    pub default: &'static str,
    /// How often it may be given.
    pub arity: Arity,
    /// Meaning, unit, bounds, effect of zero.
    pub help: &'static str,
}

/// How often a key may be given, and whether with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Once, with a value.
    One,
    /// Any number of times; in the environment separated by blanks, in the file a list.
    Many,
    /// Once; as a flag the value `true` may be left out.
    Switch,
}

impl Key {
    /// The key of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|k| k.name == name)
    }

    /// Its environment variable.
    #[must_use]
    pub fn env(&self) -> String {
        format!("UNLATCH_{}", self.name.to_uppercase().replace('-', "_"))
    }
}

/// Where a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Flag(&'static str),
    /// The environment.
    Env(String),
    /// A file.
    File {
        /// Which.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key; empty if the line holds none.
        key: String,
    },
    /// The default.
    Default(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Default(name) => write!(f, "--{name}"),
            Self::Env(name) => f.write_str(name),
            Self::File { path, line, key } if key.is_empty() => write!(f, "{}:{line}", path.display()),
            Self::File { path, line, key } => write!(f, "{}:{line}: {key}", path.display()),
        }
    }
}

/// A configuration that cannot be used. Names the flag, variable, or file, line and key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {message}")]
pub struct ConfigError {
    /// Where.
    pub at: String,
    /// What is wrong. Never quotes a secret.
    pub message: String,
}

impl ConfigError {
    /// An error at a setting.
    #[must_use]
    pub fn at(source: &Source, message: impl Into<String>) -> Self {
        Self { at: source.to_string(), message: message.into() }
    }
}

/// A text and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The text.
    pub text: String,
    /// Where from.
    pub source: Source,
}

/// Texts by key.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, Vec<Setting>>,
}

impl Settings {
    /// Adds a text to a key.
    pub fn add(&mut self, key: &'static Key, text: String, source: Source) {
        self.values.entry(key.name).or_default().push(Setting { text, source });
    }

    /// These settings, with those of `weaker` for keys that are absent here.
    #[must_use]
    pub fn over(mut self, weaker: Self) -> Self {
        for (key, settings) in weaker.values {
            self.values.entry(key).or_insert(settings);
        }
        self
    }

    /// The keys whose texts differ, in the order of [`KEYS`].
    #[must_use]
    pub fn differ(&self, other: &Self) -> Vec<&'static str> {
        let texts =
            |of: &Self, key: &Key| of.all(key.name).iter().map(|s| s.text.clone()).collect::<Vec<_>>();
        KEYS.iter().filter(|key| texts(self, key) != texts(other, key)).map(|key| key.name).collect()
    }

    /// What was given for a key.
    #[must_use]
    pub fn all(&self, name: &str) -> &[Setting] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }
}
