//! Which model a name stands for: an alias is another word for a model, so both must give the same chain.
//!
//! It owns only what the hash domain needs. Who may serve a name is the policy's filter, and the name goes to the
//! engine as the client wrote it. Invariant: a name that could stand for two models stands for itself, so that
//! prompts of different models never share a block.

use std::collections::HashMap;

use router_policy::BackendSpec;

/// The model behind each configured alias. Made once from the backends' configuration; a look-up is O(1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(HashMap<String, String>);

impl Names {
    /// From all backends. An alias counts when every backend that answers to it serves the same configured model.
    #[must_use]
    pub fn new<'a>(backends: impl IntoIterator<Item = &'a BackendSpec>) -> Self {
        let mut models: HashMap<&str, Option<&str>> = HashMap::new();
        for spec in backends {
            let Some(model) = &spec.model else { continue };
            for name in [model].into_iter().chain(&spec.aliases) {
                let stands_for = models.entry(name).or_insert(Some(model));
                if *stands_for != Some(model.as_str()) {
                    *stands_for = None;
                }
            }
        }
        let known = models.into_iter().filter_map(|(name, model)| model.map(|model| (name, model)));
        let aliases = known.filter(|(name, model)| name != model);
        Self(aliases.map(|(name, model)| (name.to_owned(), model.to_owned())).collect())
    }

    /// The model that `name` stands for; itself if it is no alias.
    #[must_use]
    pub fn model<'n>(&'n self, name: &'n str) -> &'n str {
        self.0.get(name).map_or(name, String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::{BackendSpec, Names};

    fn backend(model: Option<&str>, aliases: &[&str]) -> BackendSpec {
        let aliases = aliases.iter().map(|&alias| alias.to_owned()).collect();
        BackendSpec { model: model.map(str::to_owned), aliases, ..BackendSpec::default() }
    }

    #[test]
    fn an_alias_stands_for_its_model_and_all_else_for_itself() {
        let names = Names::new(&[backend(Some("big"), &["fast", "gpt"]), backend(Some("big"), &["fast"])]);
        let stands_for = ["fast", "gpt", "big", "other", ""].map(|name| names.model(name));
        assert_eq!(stands_for, ["big", "big", "big", "other", ""]);
    }

    #[test]
    fn a_name_of_two_models_stands_for_itself() {
        let two = [backend(Some("a"), &["x", "b"]), backend(Some("b"), &["x", "y"]), backend(None, &[])];
        let names = Names::new(&two);
        let stands_for = ["x", "b", "a", "y"].map(|name| names.model(name));
        assert_eq!(stands_for, ["x", "b", "a", "b"], "x is both, and b is a model of its own besides");
    }
}
