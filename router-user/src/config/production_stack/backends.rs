//! Lists that belong together by position, as texts of `--backend`.

use super::super::ModelType;
use super::super::settings::{ConfigError, Setting};
use super::Given;

/// One engine of theirs: a URL may come several times, each time with a model.
#[derive(Debug)]
struct Engine<'a> {
    url: &'a str,
    models: Vec<&'a str>,
    types: Vec<&'a str>,
    labels: Vec<&'a str>,
}

/// The texts of `--backend`, in their order.
///
/// # Errors
/// Lists of unequal lengths, an empty entry, an unknown type, with the flag that has it.
pub(super) fn backends(given: &Given) -> Result<Vec<String>, ConfigError> {
    let Some(urls) = given.get("static-backends") else {
        return match ["static-models", "static-model-labels", "static-model-types"]
            .iter()
            .find_map(|name| given.get(name))
        {
            Some(lonely) => {
                Err(ConfigError::at(&lonely.source, "it belongs to --static-backends, which is missing"))
            }
            None => Ok(Vec::new()),
        };
    };
    let urls = entries(urls)?;
    let list = |name| beside(given.get(name), urls.len());
    let (models, types, labels) =
        (list("static-models")?, list("static-model-types")?, list("static-model-labels")?);
    check_types(given.get("static-model-types"), &types)?;
    check_labels(given.get("static-model-labels"), &labels)?;
    let mut engines: Vec<Engine<'_>> = Vec::new();
    for (at, &url) in urls.iter().enumerate() {
        let known = engines.iter().position(|engine| engine.url == url);
        let index = known.unwrap_or_else(|| {
            engines.push(Engine { url, models: Vec::new(), types: Vec::new(), labels: Vec::new() });
            engines.len() - 1
        });
        let engine = &mut engines[index];
        for (list, into) in
            [(&models, &mut engine.models), (&types, &mut engine.types), (&labels, &mut engine.labels)]
        {
            into.extend(list.get(at).filter(|entry| !into.contains(entry)).copied());
        }
    }
    Ok(engines.iter().map(Engine::text).collect())
}

impl Engine<'_> {
    /// A second model of an engine is an alias of the first: it goes to the engine under its own name.
    fn text(&self) -> String {
        let mut text = self.url.to_owned();
        for (at, model) in self.models.iter().enumerate() {
            text += &format!(",{}={model}", if at == 0 { "model" } else { "alias" });
        }
        if !self.types.is_empty() {
            text += &format!(",types={}", self.types.join(";"));
        }
        if !self.labels.is_empty() {
            let labels: Vec<_> = self.labels.iter().map(|label| format!("model:{label}")).collect();
            text += &format!(",labels={}", labels.join(";"));
        }
        text
    }
}

/// The pairs of an alias and its model.
///
/// # Errors
/// What is no such pair.
pub(super) fn aliases(given: &Given) -> Result<Vec<String>, ConfigError> {
    let Some(setting) = given.get("static-aliases") else { return Ok(Vec::new()) };
    let pairs = entries(setting)?;
    for pair in &pairs {
        if pair.split_once(':').is_none_or(|(alias, model)| alias.is_empty() || model.is_empty()) {
            return Err(ConfigError::at(&setting.source, format!("`{pair}` is no alias:model")));
        }
    }
    Ok(pairs.into_iter().map(str::to_owned).collect())
}

fn entries(setting: &Setting) -> Result<Vec<&str>, ConfigError> {
    let all: Vec<_> = setting.text.split(',').map(str::trim).collect();
    match all.iter().position(|entry| entry.is_empty()) {
        Some(at) => Err(ConfigError::at(&setting.source, format!("entry {} of the list is empty", at + 1))),
        None => Ok(all),
    }
}

/// A list with an entry for each backend; one that is absent is empty.
fn beside(setting: Option<&Setting>, backends: usize) -> Result<Vec<&str>, ConfigError> {
    let Some(setting) = setting else { return Ok(Vec::new()) };
    let all = entries(setting)?;
    if all.len() == backends {
        return Ok(all);
    }
    let message = format!(
        "{} entries for {backends} of --static-backends: they belong together by position",
        all.len()
    );
    Err(ConfigError::at(&setting.source, message))
}

fn check_types(setting: Option<&Setting>, types: &[&str]) -> Result<(), ConfigError> {
    let Some(setting) = setting else { return Ok(()) };
    let wrong = types.iter().find_map(|name| ModelType::parse(name).err());
    wrong.map_or(Ok(()), |message| Err(ConfigError::at(&setting.source, message)))
}

fn check_labels(setting: Option<&Setting>, labels: &[&str]) -> Result<(), ConfigError> {
    let Some(setting) = setting else { return Ok(()) };
    match labels.iter().find(|label| label.contains(';')) {
        Some(label) => Err(ConfigError::at(&setting.source, format!("`{label}`: a label has no `;`"))),
        None => Ok(()),
    }
}
