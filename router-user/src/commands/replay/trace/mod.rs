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

/// Share of neighbouring times that must differ by the same for it to be the step of a coarse clock.
const TICK_SHARE: f64 = 0.8;

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
    /// Whether these calls are all that one client sent; else nobody recorded whose they are.
    pub(super) is_one_client: bool,
}

/// A whole trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Trace {
    /// Sessions as they were recorded.
    pub(super) sessions: Vec<Session>,
    /// Start times are so far apart, with exceptions; spreading over it undoes the rounding.
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
        let tick_seconds = tick_seconds(starts());
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

/// The step of a clock that was read coarsely: what most neighbouring times differ by; 0 if times differ freely.
fn tick_seconds(starts: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<u64> = starts.map(|s| (s * 1e3).round() as u64).collect();
    times.sort_unstable();
    let many = times.len();
    times.dedup();
    let mut steps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    steps.sort_unstable();
    let median = steps.get(steps.len() / 2).copied().unwrap_or_default();
    let like_it = steps.iter().filter(|step| step.abs_diff(median) <= median / 100).count();
    // Times without a clock's step are seldom equal and seldom equally far apart.
    let is_coarse = many > times.len() && like_it as f64 >= TICK_SHARE * steps.len() as f64;
    if is_coarse { median as f64 / 1e3 } else { 0.0 }
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
        Session { start_seconds: Some(start), calls: vec![call], is_one_client: false }
    }

    #[test]
    fn what_two_percent_use_is_shared() {
        let sessions = (0..100).map(|i| single(i as f64, &[u64::from(i % 2 == 0), 2 + i / 2, 1000 + i]));
        let trace = Trace::new(sessions.collect());
        assert!(trace.is_shared(0) && trace.is_shared(1) && trace.is_shared(2), "2 of 100");
        assert!(!trace.is_shared(1000), "one alone");
    }

    #[test]
    fn a_coarse_clock_is_known_by_its_step() {
        let trace = |starts: &[f64]| Trace::new(starts.iter().map(|s| single(*s, &[1])).collect());
        let coarse = [0.0, 0.0, 3.0, 5.999, 5.999, 9.0, 12.0, 13.0];
        assert_eq!(trace(&coarse).tick_seconds, 3.0, "a millisecond off, and an odd one out, do not matter");
        assert_eq!(trace(&coarse).duration_seconds, 16.0);
        assert_eq!(trace(&[0.0, 0.0, 3.0, 3.5, 7.0, 9.0]).tick_seconds, 0.0, "steps differ");
        assert_eq!(trace(&[0.0, 3.0, 6.0]).tick_seconds, 0.0, "no two at once: the times are exact");
        assert_eq!(trace(&[5.0]).tick_seconds, 0.0);
    }
}
