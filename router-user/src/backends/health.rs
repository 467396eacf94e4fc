//! What becomes of the trust in one engine: `healthy → suspect → ejected → half-open → healthy by slow start`.
//!
//! | sign | suspect | ejected |
//! |---|---|---|
//! | requests it failed in a row (5xx, answers it cut, requests left late without a byte) | at half of `eject_failures`, of the last kind at one | at `eject_failures`; one on trial, two during slow start |
//! | their share of a window, from a least number on | | at `eject_ratio` |
//! | no byte at all for longer than a request may wait | at the limit | at twice the limit |
//! | probes without an answer in a row while no byte comes, or with a wrong one | | at `unhealthy_threshold` |
//! | its host acknowledges nothing, or takes nothing | while it lasts | |
//!
//! Suspicion ends with what disproves it, or in a trial; an ejection by requests ends in a trial after a time that
//! doubles, one by probes with good probes. A byte disproves that an engine hangs, whatever was decided; a restart
//! disproves everything. Nobody is there: that is [`super::watch`]'s, who has the port's word for it. Answers of 4xx are
//! no sign at all. Pure: no clock, no IO. Invariant: a time without requests or probes never makes a state worse.

use std::time::Duration;

use router_policy::{Nanos, Trust};

/// When an engine is suspected, ejected and taken back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Probes that fail in a row until the engine is taken out, at least 1.
    pub unhealthy_threshold: u32,
    /// Probes that pass in a row until it is taken back, at least 1.
    pub healthy_threshold: u32,
    /// Requests that it fails in a row until it is ejected; 0: any number.
    pub eject_failures: u32,
    /// Share of failed requests from which it is ejected, 0 to 1; 0: none is.
    pub eject_ratio: f64,
    /// Requests within the window from which the share counts.
    pub eject_requests_min: u32,
    /// The window.
    pub eject_window: Duration,
    /// The first ejection; the next ones double.
    pub eject_min: Duration,
    /// The longest.
    pub eject_max: Duration,
    /// Time in which it comes back to its whole share; zero: at once.
    pub slow_start: Duration,
    /// Requests at a time while it is half-open, at least 1.
    pub trial_requests: u32,
    /// Times its expected first-byte time that an engine may be silent.
    pub hung_factor: f64,
    /// Added to that, seconds.
    pub hung_seconds: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            unhealthy_threshold: 3,
            healthy_threshold: 2,
            eject_failures: 5,
            eject_ratio: 0.5,
            eject_requests_min: 20,
            eject_window: Duration::from_secs(10),
            eject_min: Duration::from_secs(5),
            eject_max: Duration::from_secs(15),
            slow_start: Duration::from_secs(10),
            trial_requests: 1,
            hung_factor: 4.0,
            hung_seconds: 5.0,
        }
    }
}

/// What is held against an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It answered 5xx.
    Errors,
    /// It broke answers off.
    Cut,
    /// Clients left after a long wait, without a byte.
    Unanswered,
    /// It sends nothing although it has requests.
    Hung,
    /// It does not answer probes.
    ProbeTimeout,
    /// It answers probes wrongly.
    ProbeFailed,
    /// The kernel sees that its host does not answer.
    Unreachable,
}

impl Cause {
    /// The cause as one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Errors => "errors",
            Self::Cut => "cut",
            Self::Unanswered => "unanswered",
            Self::Hung => "hung",
            Self::ProbeTimeout => "probe_timeout",
            Self::ProbeFailed => "probe_failed",
            Self::Unreachable => "unreachable",
        }
    }

    /// Whether any byte from the engine disproves it.
    const fn is_silence(self) -> bool {
        matches!(self, Self::Hung | Self::ProbeTimeout | Self::Unreachable)
    }

    const fn is_of_probes(self) -> bool {
        matches!(self, Self::ProbeTimeout | Self::ProbeFailed)
    }
}

/// How a probe went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// As it should.
    Passed,
    /// With an answer that it should not give.
    Failed,
    /// Without an answer in time; `alive`: bytes of requests came meanwhile.
    TimedOut {
        /// Whether.
        alive: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Healthy,
    /// Until then, if nothing new comes.
    Suspect(Cause, Nanos),
    /// Until then; by probes, until they pass.
    Ejected(Cause, Nanos),
    /// For what it was ejected or suspected, and since when.
    HalfOpen(Cause, Nanos),
    SlowStart(Nanos),
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    answered: u32,
    failed: u32,
}

/// What is known of one engine.
#[derive(Clone, Debug)]
pub struct Health {
    rules: Rules,
    state: State,
    /// Ejections that the next one's length goes by.
    ejections: u32,
    /// When the last ejection ended.
    back_since: Nanos,
    failed_in_row: u32,
    probes_failed: u32,
    probes_passed: u32,
    /// The half of the window that runs, and the one before.
    window: [Counts; 2],
    window_ends: Nanos,
}

impl Health {
    /// Of an engine that nothing is known against.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            state: State::Healthy,
            ejections: 0,
            back_since: Nanos::default(),
            failed_in_row: 0,
            probes_failed: 0,
            probes_passed: 0,
            window: Default::default(),
            window_ends: Nanos::default(),
        }
    }

    /// The rules it is judged by.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// How far it is trusted now.
    #[must_use]
    pub fn trust(&self, now: Nanos) -> Trust {
        match self.state {
            State::Healthy => Trust::Full,
            State::Suspect(..) => Trust::Suspect,
            State::Ejected(..) => Trust::Ejected,
            State::HalfOpen(..) => Trust::Trial(self.rules.trial_requests),
            State::SlowStart(since) => {
                let share = now.seconds_since(since) / self.rules.slow_start.as_secs_f64().max(1e-9);
                if share < 1.0 { Trust::Rising(share as f32) } else { Trust::Full }
            }
        }
    }

    /// What is held against it, if anything is.
    #[must_use]
    pub const fn cause(&self) -> Option<Cause> {
        match self.state {
            State::Suspect(cause, _) | State::Ejected(cause, _) | State::HalfOpen(cause, _) => Some(cause),
            State::Healthy | State::SlowStart(_) => None,
        }
    }

    /// From when on requests count for the question whether it hangs: on trial, those of the trial only.
    #[must_use]
    pub const fn counts_from(&self) -> Nanos {
        match self.state {
            State::HalfOpen(_, since) => since,
            _ => Nanos(0),
        }
    }

    /// Requests got the first byte of an answer that is no error, so many since this was last called.
    pub fn answered(&mut self, now: Nanos, requests: u32) {
        if requests == 0 {
            return;
        }
        self.turn_window(now);
        self.failed_in_row = 0;
        self.window[0].answered = self.window[0].answered.saturating_add(requests);
        match self.state {
            State::Suspect(cause, _) if !cause.is_of_probes() => self.state = State::Healthy,
            State::Ejected(cause, _) if cause.is_silence() => self.comes_back(now),
            State::HalfOpen(..) if self.ejections > 0 => self.comes_back(now),
            State::HalfOpen(..) => self.state = State::Healthy,
            _ => {}
        }
    }

    /// Bytes came from it, of whatever answer.
    pub fn alive(&mut self, now: Nanos) {
        match self.state {
            State::Suspect(cause, _) if cause.is_silence() => self.state = State::Healthy,
            State::Ejected(cause, _) | State::HalfOpen(cause, _) if cause.is_silence() => {
                self.comes_back(now)
            }
            _ => {}
        }
    }

    /// It failed a request.
    pub fn failed(&mut self, now: Nanos, cause: Cause) {
        self.turn_window(now);
        self.failed_in_row = self.failed_in_row.saturating_add(1);
        self.window[0].failed = self.window[0].failed.saturating_add(1);
        let row = self.rules.eject_failures;
        // A client that waited in vain says as much as a silence that was looked at.
        let suspect_at = if cause == Cause::Unanswered { 1 } else { row.div_ceil(2) };
        let is_row = |least: u32| row > 0 && self.failed_in_row >= least;
        match self.state {
            State::HalfOpen(..) if row > 0 => self.eject(now, cause),
            State::SlowStart(_) if is_row(row.min(2)) => self.eject(now, cause),
            State::Ejected(..) => {}
            _ if is_row(row) || self.fails_too_much() => self.eject(now, cause),
            State::Healthy | State::Suspect(..) if is_row(suspect_at) => {
                self.state = State::Suspect(cause, now + self.rules.eject_min);
            }
            _ => {}
        }
    }

    /// How long it may send nothing while a request waits whose first byte is expected after `expected_seconds`.
    #[must_use]
    pub fn patience_seconds(&self, expected_seconds: f64) -> f64 {
        self.rules.hung_factor * expected_seconds + self.rules.hung_seconds
    }

    /// It has requests and sent nothing for `silent_seconds`, the oldest of them being expected to be answered after
    /// `expected_seconds`.
    pub fn silent(&mut self, now: Nanos, silent_seconds: f64, expected_seconds: f64) {
        let patience = self.patience_seconds(expected_seconds);
        if silent_seconds <= patience {
            return;
        }
        match self.state {
            State::Ejected(..) => {}
            State::HalfOpen(..) => self.eject(now, Cause::Hung),
            _ if silent_seconds > 2.0 * patience => self.eject(now, Cause::Hung),
            _ => self.state = State::Suspect(Cause::Hung, now + self.rules.eject_min),
        }
    }

    /// The kernel sees that its host does not answer.
    pub fn unreachable(&mut self, now: Nanos) {
        if matches!(self.state, State::Healthy | State::SlowStart(_) | State::Suspect(Cause::Unreachable, _))
        {
            self.state = State::Suspect(Cause::Unreachable, now + self.rules.eject_min);
        }
    }

    /// A probe ended.
    pub fn probed(&mut self, now: Nanos, probe: Probe) {
        let cause = match probe {
            Probe::TimedOut { alive: true } => {
                self.probes_failed = 0;
                return;
            }
            Probe::Passed => {
                self.probes_failed = 0;
                self.probes_passed = self.probes_passed.saturating_add(1);
                let is_enough = self.probes_passed >= self.rules.healthy_threshold;
                if matches!(self.state, State::Ejected(cause, _) if cause.is_of_probes() && is_enough) {
                    self.comes_back(now);
                }
                return;
            }
            Probe::Failed => Cause::ProbeFailed,
            Probe::TimedOut { alive: false } => Cause::ProbeTimeout,
        };
        self.probes_passed = 0;
        self.probes_failed = self.probes_failed.saturating_add(1);
        if self.probes_failed >= self.rules.unhealthy_threshold {
            match &mut self.state {
                // For what it was ejected last is what must be disproved.
                State::Ejected(was, _) => *was = cause,
                _ => self.eject(now, cause),
            }
        }
    }

    /// An inference of our own was answered, or not: the best proof there is.
    pub fn inferred(&mut self, now: Nanos, is_answered: bool) {
        if is_answered {
            match self.state {
                State::Ejected(..) | State::HalfOpen(..) => self.comes_back(now),
                State::Suspect(..) => self.state = State::Healthy,
                State::Healthy | State::SlowStart(_) => {}
            }
            self.failed_in_row = 0;
        } else {
            self.failed(now, Cause::Unanswered);
        }
    }

    /// Another process answers at its address, or it was away: what was held against it is void, and it starts slowly.
    pub fn restarted(&mut self, now: Nanos) {
        *self = Self { back_since: now, ..Self::new(self.rules) };
        self.starts_slowly(now);
    }

    /// Time passes. To be called a few times a second.
    pub fn tick(&mut self, now: Nanos) {
        match self.state {
            State::Suspect(cause, until) if now >= until => self.state = State::HalfOpen(cause, now),
            State::Ejected(cause, until) if now >= until && !cause.is_of_probes() => {
                self.state = State::HalfOpen(cause, now);
            }
            State::SlowStart(since) if now >= since + self.rules.slow_start => self.state = State::Healthy,
            _ => {}
        }
    }

    fn eject(&mut self, now: Nanos, cause: Cause) {
        let Rules { eject_min, eject_max, .. } = self.rules;
        // What is long past counts no more.
        if self.ejections > 0 && now >= self.back_since + eject_max.saturating_mul(4) {
            self.ejections = 0;
        }
        let pause = eject_min.saturating_mul(1 << self.ejections.min(16)).min(eject_max.max(eject_min));
        self.ejections = self.ejections.saturating_add(1);
        (self.back_since, self.probes_passed) = (now + pause, 0);
        self.state = State::Ejected(cause, now + pause);
    }

    fn comes_back(&mut self, now: Nanos) {
        (self.back_since, self.failed_in_row, self.probes_failed) = (now, 0, 0);
        self.window = Default::default();
        self.starts_slowly(now);
    }

    fn starts_slowly(&mut self, now: Nanos) {
        self.state = if self.rules.slow_start.is_zero() { State::Healthy } else { State::SlowStart(now) };
    }

    fn turn_window(&mut self, now: Nanos) {
        let half = self.rules.eject_window / 2;
        if now < self.window_ends {
            return;
        }
        let is_next = now < self.window_ends + half;
        self.window = [Counts::default(), if is_next { self.window[0] } else { Counts::default() }];
        self.window_ends = now + half;
    }

    fn fails_too_much(&self) -> bool {
        let sum = |of: fn(&Counts) -> u32| self.window.iter().map(of).map(f64::from).sum::<f64>();
        let (failed, all) = (sum(|c| c.failed), sum(|c| c.failed.saturating_add(c.answered)));
        let Rules { eject_ratio, eject_requests_min, .. } = self.rules;
        eject_ratio > 0.0 && all >= f64::from(eject_requests_min.max(1)) && failed >= eject_ratio * all
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
