//! What is fuzzed of the router, by its source: linking the whole router instrumented would take minutes to build.

// Whole modules of which the targets use a part.
#![allow(dead_code, reason = "the router uses the rest")]

#[path = "../../src/backends/metrics_text.rs"]
pub mod metrics_text;
#[path = "../../src/parse/mod.rs"]
pub mod parse;

// The scanner beside serde_json, as the unit tests compare them.
#[path = "../../src/parse/json/model_tests.rs"]
mod model;

use parse::BodyError;
use parse::json::{Scanner, unescape};

/// A raw key and a raw value.
pub type Member<'a> = (&'a [u8], &'a [u8]);

/// How the scanner and serde_json differ over a text, if they do where they must not.
pub fn differs(text: &[u8]) -> Option<String> {
    model::differs(text)
}

/// Members of an object, raw; `None` if it is none, or has a key twice.
pub fn distinct_members(text: &[u8]) -> Option<Vec<Member<'_>>> {
    let members = model::members(text).ok()?;
    let mut keys: Vec<_> = members.iter().map(|(key, _)| unescape(key)).collect();
    keys.sort_unstable();
    keys.windows(2).all(|pair| pair[0] != pair[1]).then_some(members)
}
