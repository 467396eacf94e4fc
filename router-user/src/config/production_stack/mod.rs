//! Coming from the vLLM production stack: the flags of its router, and the files of its dynamic configuration, as
//! settings of ours.
//!
//! Pure, and a folder of its own that can go one day: it knows our keys by name and nothing else, and nothing but the
//! command line asks it. Invariant: each of their words that is given has an effect, or a notice that says why it has
//! none, or is refused by name.

mod backends;
pub mod dynamic;
mod flags;
mod translate;

use std::collections::BTreeMap;

use super::settings::{Setting, Source};

pub use flags::{FLAGS, Flag, Means, Takes, says_theirs};
pub use translate::{Translated, translate};

/// What was given in their words: by the flag's name without dashes.
#[derive(Clone, Debug, Default)]
pub struct Given(BTreeMap<&'static str, Setting>);

impl Given {
    /// Adds a text; of several the last counts, as with them. A switch has the text `true` or `false`.
    pub fn add(&mut self, flag: &'static Flag, text: String, source: Source) {
        self.0.insert(flag.name, Setting { text, source });
    }

    /// These, with those of `weaker` for what is absent here.
    #[must_use]
    pub fn over(mut self, weaker: Self) -> Self {
        for (name, setting) in weaker.0 {
            self.0.entry(name).or_insert(setting);
        }
        self
    }

    fn get(&self, name: &str) -> Option<&Setting> {
        self.0.get(name)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.get(name).map(|setting| setting.text.as_str())
    }

    fn is_on(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }
}

#[cfg(test)]
mod tests;
