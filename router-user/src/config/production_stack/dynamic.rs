//! Their dynamic configuration, JSON or YAML: a table whose keys are the names of their flags with `_` for `-`; in YAML
//! `static_models` and `static_aliases` are tables themselves.
//!
//! Read whole or refused: an unknown key, a wrong kind of value and a key given twice are errors with file, line and
//! key. Bounded by [`BYTES_MAX`] and by what the parsers allow of nesting and of YAML's aliases.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use super::super::settings::{ConfigError, Source};
use super::flags::Flag;
use super::{Given, Takes};

/// Of a file at most.
pub const BYTES_MAX: u64 = 1 << 20;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// By `--dynamic-config-json`.
    Json,
    /// By `--dynamic-config-yaml`.
    Yaml,
}

/// A file of theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where.
    pub path: PathBuf,
    /// How it is written.
    pub format: Format,
}

impl File {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, is larger than [`BYTES_MAX`], or as [`parse`].
    pub fn read(&self) -> Result<Given, ConfigError> {
        use std::io::Read;
        let error = |message: String| ConfigError { at: self.path.display().to_string(), message };
        let mut text = String::new();
        std::fs::File::open(&self.path)
            .and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text))
            .map_err(|e| error(format!("cannot read it: {e}")))?;
        if text.len() as u64 > BYTES_MAX {
            return Err(error(format!("it is larger than {BYTES_MAX} bytes")));
        }
        parse(&self.path, &text, self.format)
    }
}

/// Reads the text of a file. `path` is for messages.
///
/// # Errors
/// What is wrong with it, with file, line and key.
pub fn parse(path: &Path, text: &str, format: Format) -> Result<Given, ConfigError> {
    let table = match format {
        Format::Json => serde_json::from_str::<Value>(text).map_err(|e| (e.line(), e.to_string())),
        Format::Yaml if text.trim().is_empty() => Ok(Value::Table(Vec::new())),
        Format::Yaml => serde_saphyr::from_str::<Value>(text).map_err(|e| {
            let line = e.location().map_or(1, |at| at.line() as usize);
            (line, e.without_snippet().to_string())
        }),
    };
    let file = Text { path, text };
    let table = table.map_err(|(line, message)| ConfigError::at(&file.line(line, ""), message))?;
    let Value::Table(members) = table else {
        return Err(ConfigError::at(&file.line(1, ""), "the file is no table of keys"));
    };
    let mut given = Given::default();
    for (key, value) in members {
        file.take(&key, value, &mut given)?;
    }
    Ok(given)
}

/// The text of a file, for the lines of messages.
struct Text<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Text<'_> {
    fn take(&self, key: &str, value: Value, given: &mut Given) -> Result<(), ConfigError> {
        let source = self.source(key);
        let error = |message: String| ConfigError::at(&source, message);
        let is_flag = !key.contains('-') && !key.starts_with("dynamic_config_");
        let flag = Flag::find(&key.replace('_', "-")).filter(|_| is_flag);
        let flag = flag.ok_or_else(|| error("no such key".to_owned()))?;
        let text = match (flag.name, value) {
            (_, Value::Null) => return Ok(()),
            ("static-models", Value::Table(models)) => return self.models(models, given),
            ("static-aliases", Value::Table(aliases)) => pairs(aliases).map_err(error)?,
            (_, Value::Switch(on)) if flag.takes == Takes::Nothing => on.to_string(),
            (_, Value::Text(text)) if flag.takes == Takes::Value => text,
            (_, Value::List(entries)) if flag.takes == Takes::Value => list(entries).map_err(error)?,
            (_, other) => return Err(error(format!("a value of kind {} is not allowed here", other.kind()))),
        };
        given.add(flag, text, source);
        Ok(())
    }

    /// Models with their backends, as three lists with an entry for each backend.
    fn models(&self, models: Vec<(String, Value)>, given: &mut Given) -> Result<(), ConfigError> {
        let (mut urls, mut names, mut types) = (Vec::new(), Vec::new(), Vec::new());
        for (model, value) in models {
            let error = |key: &str, message: String| Err(ConfigError::at(&self.source(key), message));
            let Value::Table(members) = value else {
                return error(&model, "a model is a table with static_backends".to_owned());
            };
            if model.contains(',') {
                return error(&model, "a model's name has no comma".to_owned());
            }
            let (mut of_model, mut kind) = (Vec::new(), None);
            for (key, value) in members {
                match (key.as_str(), value) {
                    ("static_backends", Value::List(entries)) => {
                        of_model = list(entries)
                            .map_err(|m| ConfigError::at(&self.source(&key), m))?
                            .split(',')
                            .map(str::to_owned)
                            .collect();
                    }
                    ("static_model_type", Value::Text(text)) => kind = Some(text),
                    ("static_backends" | "static_model_type", other) => {
                        return error(&key, format!("a value of kind {} is not allowed here", other.kind()));
                    }
                    _ => return error(&key, format!("no such key of the model `{model}`")),
                }
            }
            names.extend(of_model.iter().map(|_| model.clone()));
            types.extend(kind.iter().flat_map(|kind| of_model.iter().map(move |_| kind.clone())));
            urls.extend(of_model);
        }
        if !types.is_empty() && types.len() != urls.len() {
            let source = self.source("static_model_type");
            return Err(ConfigError::at(&source, "all models have it or none"));
        }
        for (name, entries) in
            [("static-backends", urls), ("static-models", names), ("static-model-types", types)]
        {
            if let (false, Some(flag)) = (entries.is_empty(), Flag::find(name)) {
                given.add(flag, entries.join(","), self.source("static_models"));
            }
        }
        Ok(())
    }

    /// Where a key stands: the first line that begins with it, as neither parser says where a key of a table was.
    fn source(&self, key: &str) -> Source {
        let begins = |line: &str| {
            let line = line.trim_start_matches(['{', ',', ' ', '\t', '"', '\'']);
            line.strip_prefix(key).is_some_and(|rest| rest.starts_with(['"', '\'', ':', ' ']))
        };
        let line = self.text.lines().position(begins).map_or(1, |at| at + 1);
        self.line(line, key)
    }

    fn line(&self, line: usize, key: &str) -> Source {
        Source::File { path: self.path.to_owned(), line: line.max(1), key: key.to_owned() }
    }
}

/// Entries as their flags have them: one text with commas.
fn list(entries: Vec<Value>) -> Result<String, String> {
    let texts = entries.into_iter().map(|entry| match entry {
        Value::Text(text) if !text.contains(',') => Ok(text),
        Value::Text(text) => Err(format!("`{text}`: an entry has no comma")),
        other => Err(format!("an entry of kind {} is not allowed here", other.kind())),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join(","))
}

fn pairs(aliases: Vec<(String, Value)>) -> Result<String, String> {
    let texts = aliases.into_iter().map(|(alias, model)| match model {
        Value::Text(model) if ![&alias, &model].iter().any(|t| t.contains(',')) && !alias.contains(':') => {
            Ok(format!("{alias}:{model}"))
        }
        _ => Err(format!("`{alias}` and its model are texts without comma")),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join(","))
}

/// A value of either format. Numbers are kept as texts.
#[derive(Debug)]
enum Value {
    Null,
    Switch(bool),
    Text(String),
    List(Vec<Self>),
    /// In the order of the file, each key once.
    Table(Vec<(String, Self)>),
}

impl Value {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Switch(_) => "boolean",
            Self::Text(_) => "text or number",
            Self::List(_) => "list",
            Self::Table(_) => "table",
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, a boolean, a list or a table")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, on: bool) -> Result<Value, E> {
        Ok(Value::Switch(on))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(Value::Text(n.to_string()))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(Value::Text(n.to_string()))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Value, E> {
        Ok(Value::Text(n.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = seq.next_element()? {
            entries.push(entry);
        }
        Ok(Value::List(entries))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Vec::<(String, Value)>::new();
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            if members.iter().any(|(known, _)| *known == key) {
                return Err(serde::de::Error::custom(format!("`{key}` is given twice")));
            }
            members.push((key, value));
        }
        Ok(Value::Table(members))
    }
}
