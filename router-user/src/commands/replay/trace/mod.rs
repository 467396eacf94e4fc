//! What was recorded: sessions of calls, from any of the formats, in one form.
//!
//! A prompt is a list of ids, each naming a fixed number of tokens and all before them; equal ids mean equal
//! prefixes. A request of an open-loop trace is a session of one call. No text is kept.

mod azure;
mod blocks;
mod read;
mod sessions;

pub(super) use read::load;

/// Share of the sessions that must use an id for it to count as shared by all.
const SHARED_SHARE: f64 = 0.02;

/// Sessions start within so many seconds of each other where the trace has no times. Only the proportion to the
/// sessions' own length matters, as a load scales it.
const UNTIMED_SECONDS: f64 = 600.0;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    /// Ids of the prompt, in order; the last may be partial.
    pub(super) ids: Box<[u64]>,
    /// Tokens each id stands for, a multiple of 16.
    pub(super) unit_tokens: u32,
    /// Prompt tokens, at least 1.
    pub(super) prompt_tokens: u32,
    /// Tokens of the answer, at least 1.
    pub(super) output_tokens: u32,
    /// Wait since the answer before it, or since the session's start, in seconds.
    pub(super) gap_seconds: f64,
}

/// Calls of one client, each sent when the one before it was answered.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Session {
    /// Start in seconds of the trace; `None` where none was recorded.
    pub(super) start_seconds: Option<f64>,
    /// Its calls, at least one.
    pub(super) calls: Vec<Call>,
}

/// A whole trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Trace {
    /// Sessions as they were recorded.
    pub(super) sessions: Vec<Session>,
    /// Start times are multiples of this; spreading over it undoes the rounding.
    pub(super) tick_seconds: f64,
    /// Seconds that the starts span, more than 0.
    pub(super) duration_seconds: f64,
    /// Ids that every copy of the trace has in common, sorted.
    shared: Vec<u64>,
}

impl Trace {
    /// A trace of these sessions, at least one.
    pub(super) fn new(sessions: Vec<Session>) -> Self {
        let starts = || sessions.iter().filter_map(|s| s.start_seconds);
        let tick_ms = starts().map(|s| (s * 1e3).round() as u64).fold(0, gcd);
        let tick_seconds = if tick_ms >= 10 { tick_ms as f64 / 1e3 } else { 0.0 };
        let last = starts().fold(0.0, f64::max);
        let duration_seconds = if last > 0.0 { last + tick_seconds } else { UNTIMED_SECONDS };
        let shared = shared_ids(&sessions);
        Self { sessions, tick_seconds, duration_seconds, shared }
    }

    /// Calls of all sessions.
    pub(super) fn calls(&self) -> usize {
        self.sessions.iter().map(|s| s.calls.len()).sum()
    }

    /// Calls per second as recorded.
    pub(super) fn rate(&self) -> f64 {
        self.calls() as f64 / self.duration_seconds
    }

    /// Whether every session has a recorded start.
    pub(super) fn is_timed(&self) -> bool {
        self.sessions.iter().all(|s| s.start_seconds.is_some())
    }

    /// Whether copies of the trace keep this id.
    pub(super) fn is_shared(&self, id: u64) -> bool {
        self.shared.binary_search(&id).is_ok()
    }
}

/// Ids that 2 % of the sessions use, and at least two.
fn shared_ids(sessions: &[Session]) -> Vec<u64> {
    let mut used = std::collections::HashMap::<u64, usize>::new();
    for session in sessions {
        let mut ids: Vec<u64> = session.calls.iter().flat_map(|c| c.ids.iter().copied()).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            *used.entry(id).or_default() += 1;
        }
    }
    let least = (sessions.len() as f64 * SHARED_SHARE).max(2.0);
    let mut shared: Vec<u64> =
        used.into_iter().filter(|(_, count)| *count as f64 >= least).map(|(id, _)| id).collect();
    shared.sort_unstable();
    shared
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(start: f64, ids: &[u64]) -> Session {
        let call = Call {
            ids: ids.into(),
            unit_tokens: 512,
            prompt_tokens: 512 * ids.len() as u32,
            output_tokens: 1,
            gap_seconds: 0.0,
        };
        Session { start_seconds: Some(start), calls: vec![call] }
    }

    #[test]
    fn what_two_percent_use_is_shared() {
        let sessions = (0..100).map(|i| single(i as f64, &[u64::from(i % 2 == 0), 2 + i / 2, 1000 + i]));
        let trace = Trace::new(sessions.collect());
        assert!(trace.is_shared(0) && trace.is_shared(1) && trace.is_shared(2), "2 of 100");
        assert!(!trace.is_shared(1000), "one alone");
    }

    #[test]
    fn the_tick_is_what_all_starts_are_multiples_of() {
        let trace = |starts: &[f64]| Trace::new(starts.iter().map(|s| single(*s, &[1])).collect());
        assert_eq!(trace(&[0.0, 3.0, 9.0]).tick_seconds, 3.0);
        assert_eq!(trace(&[0.0, 3.0, 9.0]).duration_seconds, 12.0);
        assert_eq!(trace(&[0.0, 3.001]).tick_seconds, 3.001, "one start has no other tick");
        assert_eq!(trace(&[0.0, 3.0, 3.001]).tick_seconds, 0.0, "a millisecond is no tick");
    }
}
