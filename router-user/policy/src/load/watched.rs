//! What this process had at an engine from report to report: what a report is read beside.

use crate::time::Nanos;

/// An engine's gauges lag behind its answers, by a step and more: a request that ended so shortly before a report was
/// asked for may still be in it, and is not somebody else's.
const GAUGE_LAG_SECONDS: f64 = 0.1;

/// What we had at an engine between two reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Had {
    /// Some request was there all the time.
    pub all_along: bool,
    /// Some stream began.
    pub began: bool,
}

/// Keeps watch over what we have at an engine, from report to report.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// When this report was asked for, and the one before; `None` before the first.
    asked: Option<Nanos>,
    asked_before: Option<Nanos>,
    /// Fewest streams at once since this report was asked for; before that, since the one before.
    pub(super) streams_least: u32,
    streams_least_before: u32,
    /// Streams that began since the last report came.
    pub(super) streams_began: u32,
    /// Requests dispatched since then.
    pub(super) dispatched: u32,
    /// Most requests at once since the last report was asked for, or a moment before.
    peak: u32,
    /// Most requests at once when one ended lately, and when.
    lately: (u32, Nanos),
}

impl Watched {
    /// A report is asked for while so much is there.
    pub(super) fn report_begins(&mut self, now: Nanos, requests: u32, streaming: u32) {
        (self.asked_before, self.asked) = (self.asked, Some(now));
        (self.streams_least_before, self.streams_least) = (self.streams_least, streaming);
        self.peak = if self.is_lately(now) { requests.max(self.lately.0) } else { requests };
    }

    /// It came: the peak.
    pub(super) const fn report_ends(&mut self) -> u32 {
        (self.streams_began, self.dispatched) = (0, 0);
        self.peak
    }

    /// One was dispatched, with which there are so many.
    pub(super) fn dispatches(&mut self, requests: u32) {
        self.peak = self.peak.max(requests);
        self.dispatched = self.dispatched.saturating_add(1);
    }

    /// One of so many ends.
    pub(super) fn ends(&mut self, now: Nanos, requests: u32) {
        if requests >= self.lately.0 || !self.is_lately(now) {
            self.lately = (requests, now);
        }
    }

    fn is_lately(&self, now: Nanos) -> bool {
        now.seconds_since(self.lately.1) <= GAUGE_LAG_SECONDS
    }

    /// What we had since the report before was asked for. `oldest_sent` is of the requests without an answer.
    pub(super) fn had(&self, oldest_sent: Option<Nanos>) -> Had {
        let Some(since) = self.asked_before else { return Had::default() };
        Had {
            all_along: oldest_sent.is_some_and(|sent| sent <= since)
                || self.streams_least.min(self.streams_least_before) > 0,
            began: self.streams_began > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Had, Nanos, Watched};

    const HELD: Had = Had { all_along: true, began: false };
    const BEGAN: Had = Had { all_along: false, began: true };
    const NOTHING: Had = Had { all_along: false, began: false };

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn what_was_there_all_along_began_before_the_report_before() {
        let mut w = Watched::default();
        assert_eq!(w.had(Some(at(0))), NOTHING, "no report before");
        w.report_begins(at(1), 0, 0);
        assert_eq!(w.had(Some(at(0))), NOTHING, "nor before the first");
        w.report_begins(at(2), 0, 0);
        assert_eq!(w.had(Some(at(1))), HELD);
        assert_eq!(w.had(Some(Nanos(at(1).0 + 1))), NOTHING, "sent after the report before was asked for");
        assert_eq!(w.had(None), NOTHING);
        w.report_begins(at(3), 1, 1);
        assert_eq!(w.had(None), NOTHING, "no stream before it");
        w.report_begins(at(4), 2, 2);
        assert_eq!(w.had(None), HELD);
        w.streams_least = 0;
        assert_eq!(w.had(None), NOTHING, "the last one ended in between");
        w.streams_began = 1;
        assert_eq!(w.had(None), BEGAN);
    }
}
