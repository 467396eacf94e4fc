//! What a file of decision records holds, in a few numbers.

use std::collections::BTreeMap;
use std::io;

use anyhow::{Context, ensure};
use serde::Serialize;

use super::read::Item;
use super::words::{number, table};
use crate::decisions::Line;

/// Different reasons or backends counted; what comes later counts as "others", for a file may hold anything.
const NAMES_MAX: usize = 1024;
const OTHERS: &str = "others";

/// A file in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) decisions: u64,
    /// Lines that are no decision records.
    pub(super) unreadable_lines: u64,
    pub(super) by_reason: BTreeMap<String, u64>,
    /// By the backend that was chosen.
    pub(super) by_backend: BTreeMap<String, u64>,
    pub(super) prompt_tokens: u64,
    /// Of those, believed cached at the chosen backends.
    pub(super) matched_tokens: u64,
}

impl Summary {
    /// Counts a file.
    ///
    /// # Errors
    /// It cannot be read, or holds no decision.
    pub(super) fn of(items: impl Iterator<Item = io::Result<Item>>) -> anyhow::Result<Self> {
        let mut summary = Self::default();
        for item in items {
            match item.context("cannot be read")? {
                Item::Decision(line) => summary.add(*line),
                Item::Unreadable => summary.unreadable_lines += 1,
            }
        }
        let unreadable = summary.unreadable_lines;
        ensure!(
            summary.decisions > 0,
            "no decision record in it ({unreadable} lines that are something else)"
        );
        Ok(summary)
    }

    fn add(&mut self, line: Line) {
        self.decisions += 1;
        self.prompt_tokens = self.prompt_tokens.saturating_add(line.tokens);
        let chosen = line.candidates.iter().find(|c| c.backend == line.chosen);
        self.matched_tokens = self.matched_tokens.saturating_add(chosen.map_or(0, |c| c.matched));
        count(&mut self.by_reason, line.reason);
        count(&mut self.by_backend, line.chosen);
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let share = |part: u64, of: u64| format!("{:.1} %", part as f64 * 100.0 / of.max(1) as f64);
        let mut text = format!("{} decisions", number(self.decisions as f64));
        if self.unreadable_lines > 0 {
            text += &format!("; {} lines could not be read", number(self.unreadable_lines as f64));
        }
        text += &format!(
            "\n{} prompt tokens, of them {} believed cached where they were sent\n",
            number(self.prompt_tokens as f64),
            share(self.matched_tokens, self.prompt_tokens)
        );
        for (head, counts) in [("reason", &self.by_reason), ("backend", &self.by_backend)] {
            let mut counts: Vec<_> = counts.iter().collect();
            counts.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
            let row =
                |(name, n): (&String, &u64)| vec![name.clone(), number(*n as f64), share(*n, self.decisions)];
            let rows: Vec<_> = counts.into_iter().map(row).collect();
            text.push('\n');
            text += &table(&[head, "decisions", "share"], &rows);
        }
        text
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: String) {
    let is_full = counts.len() >= NAMES_MAX && !counts.contains_key(&name);
    *counts.entry(if is_full { OTHERS.to_owned() } else { name }).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::super::tests::line;
    use super::*;

    fn items(lines: impl IntoIterator<Item = Line>) -> impl Iterator<Item = io::Result<Item>> {
        lines.into_iter().map(|line| Ok(Item::Decision(Box::new(line))))
    }

    #[test]
    fn decisions_are_counted_by_reason_and_backend_and_other_lines_by_themselves() {
        let mut by_count = line(3, None, &[("b", 1.0)]);
        by_count.reason = "least_in_flight".into();
        let lines = [line(1, None, &[("a", 1.0)]), line(2, None, &[("a", 1.0)]), by_count];
        let found = Summary::of(items(lines).chain([Ok(Item::Unreadable)])).unwrap();
        assert_eq!((found.decisions, found.unreadable_lines), (3, 1));
        assert_eq!(found.by_backend, BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]));
        assert_eq!(found.by_reason["cost_with_prefix"], 2);
        let text = found.text();
        assert!(text.starts_with("3 decisions; 1 lines could not be read\n"), "{text}");
        assert!(text.contains("a                2  66.7 %"), "{text}");
    }

    #[test]
    fn a_file_without_a_decision_is_none() {
        let nothing = || [Ok(Item::Unreadable)].into_iter();
        assert!(Summary::of(nothing()).unwrap_err().to_string().contains("1 lines that are something else"));
    }

    #[test]
    fn names_without_end_do_not_fill_memory() {
        let lines = (0..5000).map(|n| line(n, None, &[(&format!("b{n}"), 1.0)]));
        let found = Summary::of(items(lines)).unwrap();
        assert_eq!(found.by_backend.len(), NAMES_MAX + 1);
        assert_eq!(found.by_backend[OTHERS], 5000 - NAMES_MAX as u64);
    }
}
