//! Which request gets which fault, and how many got one.
//!
//! A rule with a rate draws its lot for each request that it is asked about, by its place, the seed and the number
//! of requests it was asked about before. So adding a rule behind another changes nothing for the first.
//! Invariant: a rule gives no more than its `next`.

use serde::Serialize;

use super::spec::{Delay, Fault, Faults, On};
use crate::mix::{fraction, mix};

/// What a request is, to the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A chat or a completion.
    Generation,
    /// `/health` or `/v1/models`.
    Probe,
}

/// What one request gets: perhaps a delay, perhaps another fault, perhaps both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// How late it is.
    pub delay: Delay,
    /// What else happens; never [`Fault::Delay`].
    pub fault: Option<Fault>,
}

/// How often each fault was given since the engine began; a restart does not clear it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Given {
    /// Requests with a delay.
    pub delayed: u64,
    /// Requests refused by a status.
    pub status: u64,
    /// Connections reset before a byte.
    pub reset: u64,
    /// Connections closed before a byte.
    pub closed: u64,
    /// Requests that never got a byte.
    pub hung: u64,
    /// Answers broken off.
    pub cut: u64,
    /// Answers of `/metrics` that were not as they should be.
    pub metrics: u64,
    /// Connections that had to wait.
    pub connections_delayed: u64,
}

/// The set in force, and what it has given.
#[derive(Debug, Default)]
pub struct Injector {
    faults: Faults,
    /// Requests that each rule was asked about.
    asked: Vec<u64>,
    given: Given,
}

impl Injector {
    /// Puts a checked set in force in place of the one before; counts go on.
    pub fn set(&mut self, faults: Faults) {
        self.asked = vec![0; faults.rules.len()];
        self.faults = faults;
    }

    /// The set in force; `next` is what is left of it.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// How often each fault was given.
    #[must_use]
    pub fn given(&self) -> Given {
        self.given
    }

    /// Decides one request. O(rules).
    pub fn decide(&mut self, asked: Asked) -> Fate {
        let mut delay = None;
        let mut fault = None;
        for index in 0..self.faults.rules.len() {
            let is_delay = matches!(self.faults.rules[index].fault, Fault::Delay(_));
            if (if is_delay { delay.is_some() } else { fault.is_some() }) || !self.hits(index, asked) {
                continue;
            }
            match self.faults.rules[index].fault {
                Fault::Delay(found) => delay = Some(found),
                other => fault = Some(other),
            }
        }
        self.count(delay, fault);
        Fate { delay: delay.unwrap_or_default(), fault }
    }

    /// Time that a new connection waits.
    pub fn connect_delay_ms(&mut self) -> u64 {
        let ms = self.faults.connect_delay_ms;
        self.given.connections_delayed += u64::from(ms > 0);
        ms
    }

    /// Counts an answer of `/metrics` that was not as it should be.
    pub fn count_metrics(&mut self) {
        self.given.metrics += 1;
    }

    fn hits(&mut self, index: usize, asked: Asked) -> bool {
        let rule = &mut self.faults.rules[index];
        let is_about = match rule.on {
            On::All => true,
            On::Generation => asked == Asked::Generation,
            On::Probe => asked == Asked::Probe,
        };
        if !is_about || rule.next == Some(0) {
            return false;
        }
        let nth = self.asked[index];
        self.asked[index] += 1;
        let lot = fraction(self.faults.seed ^ mix((index as u64) << 48 ^ nth));
        let is_hit = lot < rule.rate;
        if is_hit {
            rule.next = rule.next.map(|left| left - 1);
        }
        is_hit
    }

    fn count(&mut self, delay: Option<Delay>, fault: Option<Fault>) {
        self.given.delayed += u64::from(delay.is_some());
        let count = match fault {
            Some(Fault::Status { .. }) => &mut self.given.status,
            Some(Fault::Reset) => &mut self.given.reset,
            Some(Fault::Close) => &mut self.given.closed,
            Some(Fault::Hang) => &mut self.given.hung,
            Some(Fault::Cut { .. }) => &mut self.given.cut,
            Some(Fault::Delay(_)) | None => return,
        };
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Rule;

    const STATUS: Fault = Fault::Status { code: 500, retry_after_s: None };

    fn injector(seed: u64, rules: Vec<Rule>) -> Injector {
        let mut injector = Injector::default();
        injector.set(Faults { seed, rules, ..Faults::default() });
        injector
    }

    fn faults_of(injector: &mut Injector, requests: usize) -> Vec<Option<Fault>> {
        (0..requests).map(|_| injector.decide(Asked::Generation).fault).collect()
    }

    #[test]
    fn the_next_so_many_are_hit_and_no_more() {
        let mut injector = injector(0, vec![Rule::next(STATUS, 2)]);
        assert_eq!(faults_of(&mut injector, 4), [Some(STATUS), Some(STATUS), None, None]);
        assert_eq!(injector.given().status, 2);
        assert_eq!(injector.faults().rules[0].next, Some(0), "what is left is shown");
    }

    #[test]
    fn a_rate_hits_its_share_by_the_seed() {
        let hits = |seed, rate| faults_of(&mut injector(seed, vec![Rule::rate(STATUS, rate)]), 2000);
        let count = |faults: &[Option<Fault>]| faults.iter().flatten().count();
        assert_eq!(hits(1, 0.2), hits(1, 0.2), "the same seed gives the same hits");
        assert_ne!(hits(1, 0.2), hits(2, 0.2), "another seed gives others");
        assert!((320..480).contains(&count(&hits(1, 0.2))), "{} of 2000 at 0.2", count(&hits(1, 0.2)));
        assert_eq!((count(&hits(1, 0.0)), count(&hits(1, 1.0))), (0, 2000));
    }

    #[test]
    fn the_first_rule_that_hits_wins_and_the_others_keep_their_turn() {
        let mut injector = injector(0, vec![Rule::next(STATUS, 1), Rule::next(Fault::Reset, 1)]);
        assert_eq!(faults_of(&mut injector, 3), [Some(STATUS), Some(Fault::Reset), None]);
    }

    #[test]
    fn a_delay_comes_beside_another_fault() {
        let delay = |first_byte_ms| Delay { first_byte_ms, between_chunks_ms: 0 };
        let mut injector = injector(
            0,
            vec![
                Rule::always(Fault::Delay(delay(5))),
                Rule::always(Fault::Delay(delay(9))),
                Rule::always(Fault::Hang),
            ],
        );
        let fate = injector.decide(Asked::Generation);
        assert_eq!(fate, Fate { delay: delay(5), fault: Some(Fault::Hang) });
        assert_eq!((injector.given().delayed, injector.given().hung), (1, 1));
    }

    #[test]
    fn a_rule_is_asked_only_about_its_requests() {
        for (on, generation, probe) in
            [(On::Generation, true, false), (On::Probe, false, true), (On::All, true, true)]
        {
            let mut injector = injector(0, vec![Rule { on, ..Rule::always(STATUS) }]);
            assert_eq!(injector.decide(Asked::Generation).fault.is_some(), generation, "{on:?}");
            assert_eq!(injector.decide(Asked::Probe).fault.is_some(), probe, "{on:?}");
        }
    }

    #[test]
    fn a_new_set_begins_anew_and_the_counts_go_on() {
        let mut injector = injector(0, vec![Rule::next(STATUS, 1)]);
        faults_of(&mut injector, 2);
        injector.set(Faults { rules: vec![Rule::next(STATUS, 1)], ..Faults::default() });
        assert_eq!(faults_of(&mut injector, 1), [Some(STATUS)]);
        injector.set(Faults::default());
        assert_eq!(faults_of(&mut injector, 1), [None]);
        assert_eq!(injector.given().status, 2);
    }

    #[test]
    fn only_a_connection_that_waits_is_counted() {
        let mut injector = Injector::default();
        assert_eq!(injector.connect_delay_ms(), 0);
        injector.set(Faults { connect_delay_ms: 3, ..Faults::default() });
        assert_eq!(injector.connect_delay_ms(), 3);
        assert_eq!(injector.given().connections_delayed, 1);
    }
}
