//! Reads what a guest prints on its serial line.
//!
//! A guest that crashes ends as one that is done, so only what it said counts: each check must have said `ok`, and
//! the end must have come. Invariant: every check counts once; one that said nothing has failed.

use std::collections::BTreeMap;

use crate::test::parse::Totals;

/// What `guest.sh` checks, in its order.
pub(super) const CHECKS: [&str; 24] = [
    "agent",
    "serves",
    "programs",
    "edge",
    "awaiting",
    "requests",
    "phases",
    "engine-host",
    "killed",
    "reopened",
    "answered",
    "streams",
    "ended",
    "detached",
    "again",
    "held",
    "unseen",
    "left",
    "put-right",
    "by-sockets",
    "detached-again",
    "answered-at-devices",
    "devices",
    "detached-at-last",
];

/// What a guest has said so far.
#[derive(Debug, Default)]
pub(super) struct Console {
    /// Whether each check that spoke was content.
    checks: BTreeMap<String, bool>,
    has_ended: bool,
}

impl Console {
    /// Takes one line; returns what is worth showing of it.
    pub(super) fn line<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        let said = line.trim_end().strip_prefix("@@ ")?;
        if let Some(name) = said.strip_prefix("ok ") {
            self.checks.entry(name.to_owned()).or_insert(true);
        } else if let Some(rest) = said.strip_prefix("FAILED ") {
            let name = rest.split(':').next().unwrap_or(rest);
            self.checks.insert(name.to_owned(), false);
        } else if said == "end" {
            self.has_ended = true;
            return None;
        }
        Some(said)
    }

    /// The results. What a check that nobody knows says is a failure, as script and list must agree.
    pub(super) fn totals(&self) -> Totals {
        let passed = CHECKS.iter().filter(|name| self.checks.get(**name) == Some(&true)).count();
        let unknown = self.checks.keys().filter(|name| !CHECKS.contains(&name.as_str())).count();
        let failed = CHECKS.len() - passed + unknown + usize::from(!self.has_ended);
        Totals { passed, failed, skipped: 0 }
    }

    /// What was not said, for people.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let silent = CHECKS.into_iter().filter(|name| !self.checks.contains_key(*name));
        silent.chain((!self.has_ended).then_some("the end")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Console {
        let mut console = Console::default();
        for line in text.lines() {
            console.line(line);
        }
        console
    }

    fn all_ok() -> String {
        CHECKS.iter().map(|name| format!("@@ ok {name}\r\n")).collect()
    }

    #[test]
    fn all_checks_and_the_end_are_a_pass() {
        let console = read(&format!("booting\n{}@@ end\r\n[ 9.1] reboot: Power down\n", all_ok()));
        assert_eq!(console.totals(), Totals { passed: CHECKS.len(), failed: 0, skipped: 0 });
        assert!(console.missing().is_empty());
    }

    #[test]
    fn a_guest_that_crashed_has_failed_even_after_its_last_check() {
        let console = read(&all_ok());
        assert_eq!(console.totals(), Totals { passed: CHECKS.len(), failed: 1, skipped: 0 });
        assert_eq!(console.missing(), ["the end"]);
        assert_eq!(read("").totals().failed, CHECKS.len() + 1);
    }

    #[test]
    fn a_missing_check_has_failed() {
        let console = read(&format!("{}@@ end\n", all_ok().replace("@@ ok edge", "ok edge")));
        assert_eq!(console.totals(), Totals { passed: CHECKS.len() - 1, failed: 1, skipped: 0 });
        assert_eq!(console.missing(), ["edge"]);
    }

    #[test]
    fn a_failure_counts_once_whatever_else_the_check_said() {
        let text = format!("{}@@ FAILED edge: seen '@@ ok edge'\n@@ ok edge\n@@ end\n", all_ok());
        let console = read(&text);
        assert_eq!(console.totals(), Totals { passed: CHECKS.len() - 1, failed: 1, skipped: 0 });
        assert!(console.missing().is_empty());
    }

    #[test]
    fn a_check_that_is_not_listed_is_a_failure() {
        let console = read(&format!("{}@@ ok another\n@@ end\n", all_ok()));
        assert_eq!(console.totals(), Totals { passed: CHECKS.len(), failed: 1, skipped: 0 });
    }

    #[test]
    fn what_is_left_out_is_shown_and_counts_nothing() {
        let mut console = Console::default();
        assert_eq!(console.line("@@ left out \"seed: EINVAL\"\r"), Some("left out \"seed: EINVAL\""));
        assert_eq!(console.line("[    1.0] printk"), None);
        assert!(console.checks.is_empty());
    }

    #[test]
    fn the_script_has_the_checks_in_their_order() {
        let script = include_str!("guest.sh");
        let names = script.lines().filter_map(|line| line.strip_prefix("check ")?.split(' ').next());
        assert_eq!(names.collect::<Vec<_>>(), CHECKS);
    }
}
