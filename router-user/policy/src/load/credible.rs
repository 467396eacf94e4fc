//! Whether what an engine says of its load can be true, given what we have there.
//!
//! An engine that hangs, or whose gauges nobody updates, looks idle or ever the same. Two things give it away: it says
//! that nothing runs and nothing waits while a request of ours has been there since before the last report; or its
//! whole text stays the same although it has work, its own word or ours. Such a report is unknown, not zero.

use super::watched::Had;
use crate::backend::Report;
use crate::signal::{Signal, Why};
use crate::time::Nanos;

/// A text is frozen when so many reports in a row brought no change, over so many seconds. Engines update their
/// gauges every few steps, some of them each second only.
const UNCHANGED_REPORTS: u32 = 3;
const UNCHANGED_SECONDS: f64 = 5.0;

/// What an engine's reports were like.
#[derive(Clone, Debug, Default)]
pub struct Credible {
    fingerprint: Option<u64>,
    /// Since when, and over how many reports, the text has been the same while there was work.
    unchanged_since: Nanos,
    unchanged: u32,
}

impl Credible {
    /// The report as far as it can be true; `had` is what was there since the last one was asked for.
    pub fn judge(&mut self, now: Nanos, mut report: Report, had: Had) -> Report {
        let total = match (report.running, report.waiting) {
            (Signal::Known { value: running, .. }, Signal::Known { value: waiting, .. }) => {
                running.saturating_add(waiting)
            }
            _ => {
                // Unknown as it is; the next one is compared with nothing.
                *self = Self::default();
                return report;
            }
        };
        let is_frozen = self.is_frozen(now, report.fingerprint, had.all_along || had.began || total > 0);
        let why = match total {
            0 if had.all_along => Why::Contradicted,
            _ if is_frozen => Why::Frozen,
            _ => return report,
        };
        (report.running, report.waiting) = (Signal::Unknown(why), Signal::Unknown(why));
        report.kv_use = Signal::Unknown(why);
        report
    }

    fn is_frozen(&mut self, now: Nanos, fingerprint: Option<u64>, has_work: bool) -> bool {
        let is_same = fingerprint.is_some() && fingerprint == self.fingerprint;
        self.fingerprint = fingerprint;
        if !is_same || !has_work {
            (self.unchanged_since, self.unchanged) = (now, 0);
            return false;
        }
        self.unchanged = self.unchanged.saturating_add(1);
        self.unchanged >= UNCHANGED_REPORTS && now.seconds_since(self.unchanged_since) >= UNCHANGED_SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::{Credible, Had, Nanos, Report, Signal, Why};

    const HELD: Had = Had { all_along: true, began: false };
    const BEGAN: Had = Had { all_along: false, began: true };
    const NOTHING: Had = Had { all_along: false, began: false };

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    fn report(running: u32, waiting: u32, fingerprint: u64) -> Report {
        let (running, waiting) = (Signal::known(running, at(0)), Signal::known(waiting, at(0)));
        Report { running, waiting, fingerprint: Some(fingerprint), ..Report::default() }
    }

    fn why(report: &Report) -> Option<Why> {
        assert_eq!(report.running.why(), report.waiting.why());
        report.running.why()
    }

    #[test]
    fn nothing_there_is_contradicted_by_what_was_there_all_along_and_by_nothing_less() {
        for (running, waiting, had, expected) in [
            (0, 0, HELD, Some(Why::Contradicted)),
            (0, 0, BEGAN, None),
            (0, 0, NOTHING, None),
            (1, 0, HELD, None),
            (0, 1, HELD, None),
        ] {
            let judged = Credible::default().judge(at(1), report(running, waiting, 7), had);
            assert_eq!(why(&judged), expected, "{running} {waiting} {had:?}");
        }
    }

    #[test]
    fn a_text_that_stays_the_same_while_there_is_work_is_frozen_until_it_changes() {
        for (running, had, expected) in
            [(1, NOTHING, true), (0, BEGAN, true), (2, HELD, true), (0, NOTHING, false)]
        {
            let mut c = Credible::default();
            let said: Vec<_> = (0..9).map(|s| why(&c.judge(at(s), report(running, 0, 7), had))).collect();
            let frozen = |from: usize| (0..9).map(|s| (s >= from).then_some(Why::Frozen)).collect::<Vec<_>>();
            assert_eq!(said, frozen(if expected { 5 } else { 9 }), "{running} {had:?}");
            assert_eq!(why(&c.judge(at(9), report(running, 0, 8), had)), None, "it moves again");
        }
    }

    #[test]
    fn few_reports_far_apart_or_many_in_a_moment_freeze_nothing() {
        let mut c = Credible::default();
        let mut say = |seconds| why(&c.judge(at(seconds), report(1, 0, 7), HELD));
        assert_eq!([say(0), say(100), say(200)], [None; 3]);
        assert_eq!(say(300), Some(Why::Frozen));
        let mut c = Credible::default();
        for ms in 0..4_999 {
            assert_eq!(why(&c.judge(Nanos(ms * 1_000_000), report(1, 0, 7), HELD)), None, "{ms} ms");
        }
    }

    #[test]
    fn without_a_fingerprint_nothing_is_compared_and_what_is_unknown_stays_so() {
        let mut c = Credible::default();
        for s in 0..20 {
            let no_text = Report { fingerprint: None, ..report(3, 0, 0) };
            assert_eq!(why(&c.judge(at(s), no_text, HELD)), None);
        }
        let half = Report { running: Signal::Unknown(Why::Missing), ..report(0, 0, 7) };
        let judged = c.judge(at(21), half, HELD);
        assert_eq!((judged.running.why(), judged.waiting.value()), (Some(Why::Missing), Some(0)));
    }
}
