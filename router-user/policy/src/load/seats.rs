//! Seats of an engine: how many requests it runs at once, and how we know.
//!
//! In this order: configured; reported; learned from scrapes; learned from waiting; proven by use. Without the
//! last two a cold router would repeat the failure the cost was made for: long streams hold a shared prompt on
//! one engine, nothing charges for its seats, and every new session with that prompt queues there.

use crate::signal::Signal;
use crate::time::Nanos;

/// Seats and how they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seats {
    /// Configured.
    Configured(u32),
    /// The engine told.
    Reported(u32),
    /// Three scrapes, a second apart, with the same `running` while others waited.
    LearnedFromScrapes(u32),
    /// A request stayed unanswered while this many streamed.
    LearnedFromWaiting(u32),
    /// The most ever seen streaming at once, or reported as running, in the pool; at least 1.
    ProvenByUse(u32),
}

impl Seats {
    /// How many, at least 1.
    #[must_use]
    pub fn count(self) -> u32 {
        match self {
            Self::Configured(n)
            | Self::Reported(n)
            | Self::LearnedFromScrapes(n)
            | Self::LearnedFromWaiting(n)
            | Self::ProvenByUse(n) => n.max(1),
        }
    }

    /// The source as one word.
    #[must_use]
    pub const fn source(self) -> &'static str {
        match self {
            Self::Configured(_) => "configured",
            Self::Reported(_) => "reported",
            Self::LearnedFromScrapes(_) => "learned_from_scrapes",
            Self::LearnedFromWaiting(_) => "learned_from_waiting",
            Self::ProvenByUse(_) => "proven_by_use",
        }
    }

    /// Whether somebody told us, so that it is no estimate.
    #[must_use]
    pub const fn is_told(self) -> bool {
        matches!(self, Self::Configured(_) | Self::Reported(_))
    }
}

/// Scrapes that must agree, and how far apart they must be, in seconds (a second less the jitter of a timer).
const SCRAPES: u32 = 3;
const APART_SECONDS: f64 = 0.9;

/// What one engine has taught about its seats.
#[derive(Clone, Debug, Default)]
pub struct SeatLearner {
    from_scrapes: Option<u32>,
    from_waiting: Option<u32>,
    proven: u32,
    streak: Option<Streak>,
}

#[derive(Clone, Copy, Debug)]
struct Streak {
    running: u32,
    reports: u32,
    last: Nanos,
}

impl SeatLearner {
    /// A scrape said so many run and so many wait; `decoding` of ours are past their prefill.
    ///
    /// Where more run than decode, somebody's prefill may be what the others wait for: that is no evidence.
    pub fn on_report(&mut self, now: Nanos, running: Signal<u32>, waiting: Signal<u32>, decoding: u32) {
        let Some(running) = running.value() else {
            self.streak = None;
            return;
        };
        self.proven = self.proven.max(running);
        if self.from_scrapes.is_some_and(|s| running > s) {
            self.from_scrapes = None;
        }
        if self.from_waiting.is_some_and(|s| running > s) {
            self.from_waiting = None;
        }
        if running == 0 || running > decoding || waiting.value().is_none_or(|w| w == 0) {
            self.streak = None;
            return;
        }
        let reports = match self.streak {
            Some(s) if s.running == running && now.seconds_since(s.last) < APART_SECONDS => return,
            Some(s) if s.running == running => s.reports + 1,
            _ => 1,
        };
        self.streak = Some(Streak { running, reports, last: now });
        if reports >= SCRAPES {
            self.from_scrapes = Some(running);
        }
    }

    /// So many stream there now.
    pub fn on_streaming(&mut self, streaming: u32) {
        self.proven = self.proven.max(streaming);
        if self.from_waiting.is_some_and(|s| streaming > s) {
            self.from_waiting = None;
        }
    }

    /// A request stayed unanswered far too long while `streaming` others streamed.
    pub fn on_waited_too_long(&mut self, streaming: u32) {
        if streaming > 0 {
            self.from_waiting = Some(streaming);
        }
    }

    /// What scrapes, and what waiting, have taught.
    #[must_use]
    pub const fn learned(&self) -> (Option<u32>, Option<u32>) {
        (self.from_scrapes, self.from_waiting)
    }

    /// Takes over what another was taught, where nothing is known yet. No seats are no seats.
    pub fn resume(&mut self, from_scrapes: Option<u32>, from_waiting: Option<u32>, proven: u32) {
        let fits = |seats: &u32| *seats > 0 && *seats >= self.proven;
        self.from_scrapes = self.from_scrapes.or_else(|| from_scrapes.filter(fits));
        self.from_waiting = self.from_waiting.or_else(|| from_waiting.filter(fits));
        self.proven = self.proven.max(proven);
    }

    /// The most ever seen at once here.
    #[must_use]
    pub const fn proven(&self) -> u32 {
        self.proven
    }

    /// What is known, given what was configured and reported and what the pool has proven.
    #[must_use]
    pub fn seats(&self, configured: Option<u32>, reported: Signal<u32>, pool_proven: u32) -> Seats {
        if let Some(n) = configured {
            Seats::Configured(n)
        } else if let Some(n) = reported.value().filter(|&n| n > 0) {
            Seats::Reported(n)
        } else if let Some(n) = self.from_scrapes {
            Seats::LearnedFromScrapes(n)
        } else if let Some(n) = self.from_waiting {
            Seats::LearnedFromWaiting(n)
        } else {
            Seats::ProvenByUse(pool_proven.max(1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Nanos, SeatLearner, Seats, Signal};

    fn at(s: f64) -> Nanos {
        Nanos::from_secs_f64(s)
    }

    fn report(l: &mut SeatLearner, s: f64, running: u32, waiting: u32) {
        l.on_report(at(s), Signal::known(running, at(s)), Signal::known(waiting, at(s)), running);
    }

    fn known(l: &SeatLearner) -> Seats {
        l.seats(None, Signal::default(), l.proven())
    }

    #[test]
    fn three_scrapes_a_second_apart_that_agree_teach_the_seats() {
        let mut l = SeatLearner::default();
        report(&mut l, 1.0, 4, 2);
        report(&mut l, 1.2, 4, 2);
        report(&mut l, 1.4, 4, 2);
        assert_eq!(known(&l), Seats::ProvenByUse(4), "scrapes too close together are one");
        report(&mut l, 2.0, 4, 1);
        report(&mut l, 3.0, 4, 1);
        assert_eq!(known(&l), Seats::LearnedFromScrapes(4));
        report(&mut l, 4.0, 5, 0);
        assert_eq!(known(&l), Seats::ProvenByUse(5), "forgotten when running exceeds it");
    }

    #[test]
    fn a_scrape_without_waiting_or_without_the_gauge_breaks_the_streak() {
        for breaker in [Signal::known(0, at(2.0)), Signal::default()] {
            let mut l = SeatLearner::default();
            report(&mut l, 1.0, 4, 2);
            l.on_report(at(2.0), Signal::known(4, at(2.0)), breaker, 4);
            report(&mut l, 3.0, 4, 2);
            report(&mut l, 4.0, 4, 2);
            assert_eq!(known(&l), Seats::ProvenByUse(4));
        }
    }

    #[test]
    fn requests_that_wait_for_a_prefill_teach_nothing() {
        let mut l = SeatLearner::default();
        for s in 1..9 {
            let now = at(f64::from(s));
            l.on_report(now, Signal::known(4, now), Signal::known(2, now), 3);
        }
        assert_eq!(known(&l), Seats::ProvenByUse(4), "one of the four is not decoding yet");
    }

    #[test]
    fn waiting_teaches_until_more_are_seen_streaming() {
        let mut l = SeatLearner::default();
        l.on_streaming(3);
        l.on_waited_too_long(3);
        assert_eq!(known(&l), Seats::LearnedFromWaiting(3));
        l.on_streaming(4);
        assert_eq!(known(&l), Seats::ProvenByUse(4));
        l.on_waited_too_long(0);
        assert_eq!(known(&l), Seats::ProvenByUse(4), "nobody streaming is no evidence of seats");
    }

    #[test]
    fn the_order_is_told_before_learned_before_proven() {
        let mut l = SeatLearner::default();
        assert_eq!(known(&l), Seats::ProvenByUse(1), "at least one");
        l.on_streaming(2);
        l.on_waited_too_long(2);
        for s in 1..=3 {
            report(&mut l, f64::from(s), 2, 1);
        }
        assert_eq!(known(&l), Seats::LearnedFromScrapes(2));
        assert_eq!(l.seats(None, Signal::known(8, at(1.0)), 2), Seats::Reported(8));
        assert_eq!(l.seats(Some(6), Signal::known(8, at(1.0)), 2), Seats::Configured(6));
        assert_eq!(
            l.seats(None, Signal::known(0, at(1.0)), 2),
            Seats::LearnedFromScrapes(2),
            "0 seats is no report"
        );
    }
}
