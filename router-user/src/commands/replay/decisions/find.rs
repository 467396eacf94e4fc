//! The decisions that an ID names: by the request's id, by the decision's number, or by the beginning of a request's
//! id, in this order. A request that was placed several times has several decisions.

use std::io;

use anyhow::{Context, bail, ensure};

use super::read::Item;
use crate::decisions::Line;

/// Decisions shown of one request, and named where an ID is ambiguous.
pub(super) const SHOWN_MAX: usize = 16;

/// What an ID named.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// In the order of the file, at least one.
    pub(super) decisions: Vec<Line>,
    /// More of the same request, beyond [`SHOWN_MAX`].
    pub(super) more: u64,
}

/// Decisions that are named in the same way.
#[derive(Default)]
struct Matches {
    decisions: Vec<Line>,
    more: u64,
    are_of_several: bool,
}

impl Matches {
    fn add(&mut self, line: Line) {
        let first = self.decisions.first();
        // Two of which nobody knows the request are of two.
        self.are_of_several |= first.is_some_and(|f| f.request.is_none() || f.request != line.request);
        if self.decisions.len() < SHOWN_MAX {
            self.decisions.push(line);
        } else {
            self.more += 1;
        }
    }
}

/// Looks for the decisions that `id` names.
///
/// # Errors
/// It names none, or those of several requests; or the file cannot be read, or holds no decision at all.
pub(super) fn find(items: impl Iterator<Item = io::Result<Item>>, id: &str) -> anyhow::Result<Found> {
    let [mut by_request, mut by_number, mut by_beginning] = [const { None::<Matches> }; 3];
    let number = id.parse::<u64>().ok();
    let (mut decisions, mut unreadable) = (0_u64, 0_u64);
    for item in items {
        let Item::Decision(line) = item.context("cannot be read")? else {
            unreadable += 1;
            continue;
        };
        decisions += 1;
        let request = line.request.as_deref().unwrap_or_default();
        let named = if request == id {
            &mut by_request
        } else if number == Some(line.id) {
            &mut by_number
        } else if request.starts_with(id) {
            &mut by_beginning
        } else {
            continue;
        };
        named.get_or_insert_default().add(*line);
    }
    ensure!(decisions > 0, "no decision record in it ({unreadable} lines that are something else)");
    let Some(found) = by_request.or(by_number).or(by_beginning) else {
        bail!("`{id}` names none of its {decisions} decisions{}", also(unreadable));
    };
    if found.are_of_several {
        bail!("`{id}` names decisions of several requests: {}", names(&found));
    }
    Ok(Found { decisions: found.decisions, more: found.more })
}

fn also(unreadable: u64) -> String {
    if unreadable == 0 { String::new() } else { format!(" ({unreadable} more lines could not be read)") }
}

fn names(found: &Matches) -> String {
    let name = |line: &Line| match &line.request {
        Some(request) => format!("{request} (decision {})", line.id),
        None => format!("decision {} at {} ns", line.id, line.at_ns),
    };
    let names: Vec<String> = found.decisions.iter().map(name).collect();
    let more = if found.more == 0 { String::new() } else { format!(" and {} more", found.more) };
    names.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::super::tests::line;
    use super::*;

    fn found(lines: &[(u64, Option<&str>)], id: &str) -> Result<Vec<u64>, String> {
        let item = |(id, request): &(u64, Option<&str>)| {
            Ok(Item::Decision(Box::new(line(*id, *request, &[("a", 1.0)]))))
        };
        find(lines.iter().map(item).chain([Ok(Item::Unreadable)]), id)
            .map(|found| found.decisions.iter().map(|line| line.id).collect())
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn an_id_is_a_request_then_a_number_then_the_beginning_of_a_request() {
        let lines = [(1, Some("2")), (2, Some("abc")), (3, Some("abd")), (4, None), (5, Some("abc"))];
        for (id, want) in [("abc", &[2, 5][..]), ("abd", &[3]), ("2", &[1]), ("3", &[3]), ("4", &[4])] {
            assert_eq!(found(&lines, id).unwrap(), want, "{id}");
        }
        assert_eq!(found(&lines[..2], "a").unwrap(), [2], "unambiguous");
    }

    #[test]
    fn what_names_none_or_several_is_said() {
        let lines = [(1, Some("abc")), (2, Some("abd")), (7, None), (7, None)];
        for (id, want) in [
            ("x", "names none of its 4 decisions (1 more lines"),
            ("ab", "several requests: abc (decision 1), abd (decision 2)"),
            ("7", "several requests: decision 7 at"),
        ] {
            let error = found(&lines, id).unwrap_err();
            assert!(error.contains(want), "{id}: {error}");
        }
        assert!(found(&[], "1").unwrap_err().contains("no decision record"));
    }

    #[test]
    fn of_a_request_with_very_many_decisions_some_are_shown_and_the_rest_counted() {
        let many = (0..100).map(|id| Ok(Item::Decision(Box::new(line(id, Some("same"), &[("a", 1.0)])))));
        let found = find(many, "same").unwrap();
        assert_eq!((found.decisions.len(), found.more), (SHOWN_MAX, 100 - SHOWN_MAX as u64));
    }

    #[test]
    fn a_file_that_breaks_off_is_an_error() {
        let items = [Err(io::Error::other("disk"))].into_iter();
        assert!(format!("{:#}", find(items, "1").unwrap_err()).contains("disk"));
    }
}
