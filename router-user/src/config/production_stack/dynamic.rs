//! Their dynamic configuration, JSON or YAML: a table whose keys are the names of their flags with `_` for `-`; in YAML
//! `static_models` and `static_aliases` are tables themselves.
//!
//! Read whole or refused: an unknown key, a wrong kind of value and a key given twice are errors with file, line and
//! key. Bounded by [`BYTES_MAX`] and by the depth of a [`document`](super::super::document).

use std::path::{Path, PathBuf};

use super::super::document::{Node, Notation, Value};
use super::super::read_text;
use super::super::settings::{ConfigError, Source};
use super::flags::Flag;
use super::{Given, Takes};

/// Of a file at most.
pub const BYTES_MAX: u64 = 1 << 20;

/// A file of theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where.
    pub path: PathBuf,
    /// How it is written.
    pub notation: Notation,
}

impl File {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, is larger than [`BYTES_MAX`], or as [`parse`].
    pub fn read(&self) -> Result<Given, ConfigError> {
        let text = read_text(&self.path, BYTES_MAX).map_err(|e| ConfigError {
            at: self.path.display().to_string(),
            message: format!("cannot read it: {e}"),
        })?;
        parse(&self.path, &text, self.notation)
    }
}

/// Reads the text of a file. `path` is for messages.
///
/// # Errors
/// What is wrong with it, with file, line and key.
pub fn parse(path: &Path, text: &str, notation: Notation) -> Result<Given, ConfigError> {
    let file = Text { path, text };
    let root =
        notation.parse(text).map_err(|e| ConfigError::at(&file.line(e.line.unwrap_or(1), ""), e.message))?;
    let members = match root.value {
        // An empty file, or one of comments.
        Value::Null => return Ok(Given::default()),
        Value::Table(members) => once(members).map_err(|key| file.twice(&key))?,
        _ => return Err(ConfigError::at(&file.line(1, ""), "the file is no table of keys")),
    };
    let mut given = Given::default();
    for (key, node) in members {
        file.take(&key, node.value, &mut given)?;
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
            (_, Value::Bool(on)) if flag.takes == Takes::Nothing => on.to_string(),
            // YAML's truth values are texts.
            (_, Value::Text(text)) if flag.takes == Takes::Nothing && ["true", "false"].contains(&&*text) => {
                text
            }
            (_, Value::Text(text) | Value::Number(text)) if flag.takes == Takes::Value => text,
            (_, Value::List(entries)) if flag.takes == Takes::Value => list(entries).map_err(error)?,
            (_, other) => return Err(error(format!("{} is not allowed here", other.kind()))),
        };
        given.add(flag, text, source);
        Ok(())
    }

    /// Models with their backends, as three lists with an entry for each backend.
    fn models(&self, models: Vec<(String, Node)>, given: &mut Given) -> Result<(), ConfigError> {
        let (mut urls, mut names, mut types) = (Vec::new(), Vec::new(), Vec::new());
        for (model, node) in once(models).map_err(|key| self.twice(&key))? {
            let error = |key: &str, message: String| Err(ConfigError::at(&self.source(key), message));
            let Value::Table(members) = node.value else {
                return error(&model, "a model is a table with static_backends".to_owned());
            };
            if model.contains(',') {
                return error(&model, "a model's name has no comma".to_owned());
            }
            let (mut of_model, mut kind) = (Vec::new(), None);
            for (key, node) in once(members).map_err(|key| self.twice(&key))? {
                match (key.as_str(), node.value) {
                    ("static_backends", Value::List(entries)) => {
                        of_model = list(entries)
                            .map_err(|m| ConfigError::at(&self.source(&key), m))?
                            .split(',')
                            .map(str::to_owned)
                            .collect();
                    }
                    ("static_model_type", Value::Text(text)) => kind = Some(text),
                    ("static_backends" | "static_model_type", other) => {
                        return error(&key, format!("{} is not allowed here", other.kind()));
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

    /// Where a key stands: the first line that begins with it, as JSON's parser does not say where it was.
    fn source(&self, key: &str) -> Source {
        let begins = |line: &str| {
            let line = line.trim_start_matches(['{', ',', ' ', '\t', '"', '\'']);
            line.strip_prefix(key).is_some_and(|rest| rest.starts_with(['"', '\'', ':', ' ']))
        };
        let line = self.text.lines().position(begins).map_or(1, |at| at + 1);
        self.line(line, key)
    }

    fn twice(&self, key: &str) -> ConfigError {
        ConfigError::at(&self.source(key), "the key is given twice")
    }

    fn line(&self, line: usize, key: &str) -> Source {
        Source::File { path: self.path.to_owned(), line: line.max(1), key: key.to_owned() }
    }
}

/// Entries as their flags have them: one text with commas.
fn list(entries: Vec<Node>) -> Result<String, String> {
    let texts = entries.into_iter().map(|entry| match entry.value {
        Value::Text(text) if !text.contains(',') => Ok(text),
        Value::Text(text) => Err(format!("`{text}`: an entry has no comma")),
        other => Err(format!("{} is not allowed as an entry", other.kind())),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join(","))
}

fn pairs(aliases: Vec<(String, Node)>) -> Result<String, String> {
    let texts = aliases.into_iter().map(|(alias, node)| match node.value {
        Value::Text(model) if ![&alias, &model].iter().any(|t| t.contains(',')) && !alias.contains(':') => {
            Ok(format!("{alias}:{model}"))
        }
        _ => Err(format!("`{alias}` and its model are texts without comma")),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join(","))
}

/// Members whose keys come once.
///
/// # Errors
/// The key that comes twice.
fn once(members: Vec<(String, Node)>) -> Result<Vec<(String, Node)>, String> {
    let is_known = |at: usize| members[..at].iter().any(|(key, _)| *key == members[at].0);
    match (0..members.len()).find(|&at| is_known(at)) {
        Some(at) => Err(members[at].0.clone()),
        None => Ok(members),
    }
}
