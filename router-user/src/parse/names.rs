//! Which model a name stands for: an alias is another word for a model, so both must give the same chain.
//!
//! There are two sorts. A backend's own alias (`alias=`) is a name that its engine knows: here it owns only what the
//! hash domain needs, who may serve it is the policy's filter, and it goes to the engine as the client wrote it. An
//! alias of the router (`model-alias`) is one that engines need not know: the model's name takes its place before
//! anything else looks at the request ([`Aliases`]). Invariant: a name that could stand for two models stands for itself, so that
//! prompts of different models never share a block.

use std::collections::HashMap;

use router_policy::BackendSpec;

use super::json::{Scanner, name};

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

/// The router's own aliases: the model's name takes an alias's place in the request.
#[derive(Clone, Debug, Default)]
pub struct Aliases(HashMap<String, String>);

impl Aliases {
    /// From pairs of an alias and its model.
    #[must_use]
    pub fn new(pairs: &[(String, String)]) -> Self {
        Self(pairs.iter().cloned().collect())
    }

    /// The model that an alias stands for; `None` for any other name. O(1).
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&str> {
        // Mostly there are none, and hashing the name would be for nothing.
        if self.0.is_empty() { None } else { self.0.get(name).map(String::as_str) }
    }

    /// The aliases with their models.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(alias, model)| (alias.as_str(), model.as_str()))
    }
}

/// The body with another model's name, byte for byte the same elsewhere; `None` if it names none. Of a repeated key
/// all values are replaced, as the engine may take any. O(bytes).
#[must_use]
pub fn rename(body: &[u8], model: &str) -> Option<Vec<u8>> {
    let mut values = Vec::new();
    let scan = Scanner::new(body).object(|s, key| {
        let value = s.skip()?;
        if name(key).as_ref() == b"model" {
            let at = value.as_ptr() as usize - body.as_ptr() as usize;
            values.push(at..at + value.len());
        }
        Ok(())
    });
    if scan.is_err() || values.is_empty() {
        return None;
    }
    let name = serde_json::Value::from(model).to_string();
    let mut renamed = Vec::with_capacity(body.len() + values.len() * name.len());
    let mut from = 0;
    for value in values {
        renamed.extend_from_slice(&body[from..value.start]);
        renamed.extend_from_slice(name.as_bytes());
        from = value.end;
    }
    renamed.extend_from_slice(&body[from..]);
    Some(renamed)
}

#[cfg(test)]
mod tests {
    use super::{Aliases, BackendSpec, Names, rename};

    fn backend(model: Option<&str>, aliases: &[&str]) -> BackendSpec {
        let aliases = aliases.iter().map(|&alias| alias.to_owned()).collect();
        BackendSpec { model: model.map(str::to_owned), aliases, ..BackendSpec::default() }
    }

    #[test]
    fn only_the_models_name_changes_in_a_body() {
        for (body, renamed) in [
            (r#"{"model":"a","x":{"model":"a"}}"#, Some(r#"{"model":"real/\"m\"","x":{"model":"a"}}"#)),
            (
                "{ \"x\" : 1.50,\n\"model\" :  \"\\u0061\" ,\"y\":\"a\" }",
                Some("{ \"x\" : 1.50,\n\"model\" :  \"real/\\\"m\\\"\" ,\"y\":\"a\" }"),
            ),
            (r#"{"model":"b","model":"a"}"#, Some(r#"{"model":"real/\"m\"","model":"real/\"m\""}"#)),
            (r#"{"\u006dodel":"a"}"#, Some(r#"{"\u006dodel":"real/\"m\""}"#)),
            (r#"{"x":"model"}"#, None),
            (r#"{"model":"#, None),
        ] {
            let found = rename(body.as_bytes(), "real/\"m\"").map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(found.as_deref(), renamed, "{body}");
        }
    }

    #[test]
    fn an_alias_of_the_router_has_a_model_and_no_other_name_has() {
        let aliases = Aliases::new(&[("a".into(), "m".into())]);
        assert_eq!(["a", "m", ""].map(|name| aliases.model(name)), [Some("m"), None, None]);
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
