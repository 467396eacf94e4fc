//! Names that stand for models, as `alias:model`.

use super::settings::{ConfigError, Settings, Source};

/// At most so many.
const ALIASES_MAX: usize = 1024;

/// Reads them. Of an alias given twice both must say the same, and none stands for another.
///
/// # Errors
/// What is no such pair, or contradicts another.
pub(super) fn read(settings: &Settings) -> Result<Vec<(String, String)>, ConfigError> {
    let mut all: Vec<(String, String, &Source)> = Vec::new();
    for given in settings.all("model-alias") {
        let error = |message: String| Err(ConfigError::at(&given.source, message));
        let pair = given.text.split_once(':').filter(|(alias, model)| !alias.is_empty() && !model.is_empty());
        let Some((alias, model)) = pair else {
            return error(format!("`{}` is no alias:model", given.text));
        };
        let before = all.iter().find(|(known, ..)| known == alias).map(|(_, model, _)| model.as_str());
        if before.is_some_and(|before| before != model) {
            return error(format!("`{alias}` stands for two models"));
        }
        if all.len() == ALIASES_MAX {
            return error(format!("more than {ALIASES_MAX} aliases"));
        }
        if before.is_none() && alias != model {
            all.push((alias.to_owned(), model.to_owned(), &given.source));
        }
    }
    if let Some((alias, model, source)) =
        all.iter().find(|(_, model, _)| all.iter().any(|(other, ..)| other == model))
    {
        let message = format!("`{alias}` stands for `{model}`, which is an alias itself");
        return Err(ConfigError::at(source, message));
    }
    Ok(all.into_iter().map(|(alias, model, _)| (alias, model)).collect())
}
