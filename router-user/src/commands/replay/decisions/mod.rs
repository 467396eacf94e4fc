//! `replay --decisions FILE`: what a router decided, read back from what `serve --record` wrote.
//!
//! Reading order: `read` (a file line by line), `find` (what an ID names), `explained` (a decision with names for its
//! numbers), `because` (the sentence), `text` and `words` (the tables), `summary` (a file without an ID). Explains
//! with what the record holds alone; nothing is decided again. Invariant: memory does not grow with the file.

mod because;
mod explained;
mod find;
mod read;
mod summary;
#[cfg(test)]
mod tests;
mod text;
mod words;

use std::path::Path;

use anyhow::Context;
use explained::Explained;
use read::Lines;
use summary::Summary;

use super::packed;

/// The answer: a file in short, or what `explain` names in it; as text or as JSON.
///
/// # Errors
/// The file cannot be read or holds no decision; the ID names none, or several.
pub(super) fn answer(path: &Path, explain: Option<&str>, json: bool) -> anyhow::Result<String> {
    let stream = packed::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let answer = match explain {
        Some(id) => explain_in(Lines::new(stream), id, json),
        None => summarise(Lines::new(stream), json),
    };
    answer.with_context(|| path.display().to_string())
}

fn explain_in(lines: Lines<impl std::io::BufRead>, id: &str, json: bool) -> anyhow::Result<String> {
    let found = find::find(lines, id)?;
    let explained: Vec<Explained> = found.decisions.iter().map(Explained::new).collect();
    if json {
        return Ok(serde_json::to_string_pretty(&explained)? + "\n");
    }
    let mut text = explained.iter().map(text::text).collect::<Vec<_>>().join("\n");
    if found.more > 0 {
        text += &format!("\nand {} more decisions for the same request\n", found.more);
    }
    Ok(text)
}

fn summarise(lines: Lines<impl std::io::BufRead>, json: bool) -> anyhow::Result<String> {
    let summary = Summary::of(lines)?;
    Ok(if json { serde_json::to_string_pretty(&summary)? + "\n" } else { summary.text() })
}
