//! Reads what libtest prints, line by line.
//!
//! A test that cannot run here prints `SKIP <test name>: <reason>` and returns, so libtest calls it passed; here
//! it counts as skipped. Invariant: a test is counted once, in exactly one of the three.

use std::collections::BTreeSet;

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Totals {
    pub(crate) const fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// The line that ends `cargo xtask test`.
    pub(crate) fn line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Collects the results of one `cargo test`, which runs one binary after another.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    totals: Totals,
    /// Tests of the running binary that libtest called passed.
    passed: BTreeSet<String>,
    /// Names and reasons of the running binary's skips.
    skips: Vec<(String, String)>,
    /// Every skip so far, as `name: reason`.
    reported: Vec<String>,
    /// Inside the output of passed tests, which is noise but for skips.
    in_successes: bool,
    /// A binary has begun and not yet printed its result.
    is_open: bool,
}

impl Parser {
    /// Takes one line; returns whether it is worth showing.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        if let Some(rest) = line.strip_prefix("SKIP ") {
            let (name, reason) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
            self.skips.push((name.to_owned(), reason.to_owned()));
            return true;
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ if line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test") => self.open(),
            _ => {}
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.close(result);
        } else if let Some(outcome) = line.strip_prefix("test ") {
            self.one(outcome);
        }
        !self.in_successes
    }

    /// The start of one binary. One still open has died without a result.
    fn open(&mut self) {
        if self.is_open {
            self.totals.failed += 1;
            self.passed.clear();
            self.skips.clear();
        }
        self.is_open = true;
    }

    fn one(&mut self, line: &str) {
        let Some((name, outcome)) = line.rsplit_once(" ... ") else { return };
        // A test that is expected to panic has that after its name.
        let name = name.split(" - should panic").next().unwrap_or(name);
        match outcome.split(',').next().unwrap_or(outcome).trim() {
            "ok" => drop(self.passed.insert(name.to_owned())),
            "ignored" => self.reported.push(format!("{name}: ignored in the source")),
            _ => {}
        }
    }

    /// The end of one binary: `ok. 3 passed; 0 failed; 0 ignored; …`.
    fn close(&mut self, result: &str) {
        let count = |what| number_before(result, what);
        let mut skipped = BTreeSet::new();
        for (name, reason) in std::mem::take(&mut self.skips) {
            let full = self.passed.iter().find(|full| **full == name || full.ends_with(&format!("::{name}")));
            // One that printed SKIP and then failed has failed.
            if let Some(full) = full
                && skipped.insert(full.clone())
            {
                self.reported.push(format!("{full}: {reason}"));
            }
        }
        self.totals.add(Totals {
            passed: count("passed").saturating_sub(skipped.len()),
            failed: count("failed"),
            skipped: count("ignored") + skipped.len(),
        });
        self.passed.clear();
        self.is_open = false;
    }

    /// The results, given whether cargo ended well. A build error or a binary that died without a result counts
    /// as one failure: it must not look like fewer tests.
    pub(crate) fn finish(mut self, is_success: bool) -> (Totals, Vec<String>) {
        if self.is_open || (!is_success && self.totals.failed == 0) {
            self.totals.failed += 1;
        }
        (self.totals, self.reported)
    }
}

fn number_before(text: &str, what: &str) -> usize {
    let words: Vec<_> = text.split([' ', ';', '.']).filter(|word| !word.is_empty()).collect();
    words.windows(2).find(|pair| pair[1] == what).and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the text; returns totals, skips and what was shown.
    fn parse(text: &str, is_success: bool) -> (Totals, Vec<String>, String) {
        let mut parser = Parser::default();
        let shown: Vec<_> = text.lines().filter(|line| parser.line(line)).collect();
        let shown = shown.join("\n");
        let (totals, skips) = parser.finish(is_success);
        (totals, skips, shown)
    }

    const GOOD: &str = "
running 3 tests
test a::first ... ok
test a::second ... ok
test third - should panic ... ok

successes:

---- a::second stdout ----
chatter
SKIP second: needs root

---- third stdout ----
more chatter


successes:
    a::first
    a::second
    third

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    #[test]
    fn a_skip_is_not_a_pass_and_keeps_its_reason() {
        let (totals, skips, shown) = parse(GOOD, true);
        assert_eq!(totals, Totals { passed: 2, failed: 0, skipped: 1 });
        assert_eq!(skips, ["a::second: needs root"]);
        assert!(shown.contains("SKIP second: needs root") && !shown.contains("chatter"), "{shown}");
    }

    #[test]
    fn binaries_add_up() {
        let (totals, ..) = parse(&format!("{GOOD}{GOOD}"), true);
        assert_eq!(totals.line(), "4 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn a_failure_shows_its_output() {
        let text = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nsuccesses:\n\nfailures:\n\n\
                    ---- b stdout ----\nwhy it failed\n\n\
                    test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let (totals, skips, shown) = parse(text, false);
        assert_eq!(totals, Totals { passed: 1, failed: 1, skipped: 0 });
        assert!(skips.is_empty() && shown.contains("why it failed"), "{shown}");
    }

    #[test]
    fn a_skip_that_fails_is_a_failure() {
        let text = "running 1 test\ntest b ... FAILED\nSKIP b: no kernel\n\
                    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(parse(text, false).0, Totals { passed: 0, failed: 1, skipped: 0 });
    }

    #[test]
    fn an_ignored_test_is_skipped() {
        let text = "running 1 test\ntest src/lib.rs - f (line 3) ... ignored\n\
                    test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";
        let (totals, skips, _) = parse(text, true);
        assert_eq!(totals, Totals { passed: 0, failed: 0, skipped: 1 });
        assert_eq!(skips, ["src/lib.rs - f (line 3): ignored in the source"]);
    }

    #[test]
    fn a_build_error_and_a_dead_binary_are_failures() {
        assert_eq!(parse("", false).0.failed, 1);
        assert_eq!(parse("running 2 tests\ntest a ... ok\n", false).0.failed, 1);
        let one_died_then_one_failed = "running 2 tests\ntest a ... ok\nrunning 1 test\ntest b ... FAILED\n\
            test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(parse(one_died_then_one_failed, false).0, Totals { passed: 0, failed: 2, skipped: 0 });
        let one_failed_then_one_died = "running 1 test\ntest a ... FAILED\n\
            test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\nrunning 1 test\n";
        assert_eq!(parse(one_failed_then_one_died, false).0.failed, 2);
    }
}
