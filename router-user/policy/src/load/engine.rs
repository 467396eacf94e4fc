//! This process's requests at one engine, and what their course teaches: decode time, prefill rate, characters per
//! token, seats.

use std::collections::VecDeque;

use super::ewma::Ewma;
use super::learned::Learned;
use super::seats::SeatLearner;
use super::table::InFlight;
use super::taught::AVERAGES;
use super::watched::{Had, Watched};
use crate::time::Nanos;
use crate::tuning::Tuning;

/// Gain of the mean request's averages.
const MEAN_REQUEST_GAIN: f64 = 0.05;

/// Samples outside are an engine's or a clock's nonsense and are clamped.
pub(super) const RATE_BOUNDS: (f64, f64) = (10.0, 1e7);
pub(super) const DECODE_BOUNDS: (f64, f64) = (1e-3, 3600.0);
pub(super) const CHARS_PER_TOKEN_BOUNDS: (f64, f64) = (1.0, 16.0);

/// A prompt shorter than this is mostly template: it says nothing about characters per token.
const CHARS_PER_TOKEN_MIN_TOKENS: u64 = 64;

/// Oldest unanswered requests looked at per check; the oldest wait the longest.
const WAITING_LOOKED_AT: usize = 64;

/// Patience is at least half a second by default, so looking more often than this finds nothing new.
const WAITING_CHECK_NS: u64 = 20_000_000;

#[derive(Clone, Copy, Debug)]
struct Unanswered {
    id: u64,
    uncached_tokens: u64,
    sent: Nanos,
    stream: bool,
    /// When a non-streamed request is predicted to leave Q; the end of time when it left, or streams.
    leaves_q_at: Nanos,
}

/// A request as it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatch {
    pub(crate) id: u64,
    pub(crate) uncached_tokens: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) stream: bool,
}

/// Prefills that took together what their step took.
#[derive(Clone, Copy, Debug)]
struct Prefill {
    tokens: u64,
    seconds: f64,
}

/// First bytes this close together came of one step of the engine.
const SAME_STEP_SECONDS: f64 = 0.002;

const NEVER: Nanos = Nanos(u64::MAX);

/// What this process has in flight at one engine.
#[derive(Clone, Debug)]
pub struct EngineLoad {
    requests: u32,
    q_tokens: u64,
    c_tokens: u64,
    /// Oldest first, which is by ticket id.
    unanswered: VecDeque<Unanswered>,
    /// The earliest `leaves_q_at`.
    next_leave: Nanos,
    streaming: u32,
    last_first_byte: Option<Nanos>,
    /// The last step's prefills, not yet a sample.
    prefill: Option<Prefill>,
    waiting_checked: Nanos,
    watched: Watched,
    decode_seconds: Ewma,
    plain_seconds: Ewma,
    prefill_rate: Ewma,
    chars_per_token: Ewma,
    mean_uncached: Ewma,
    mean_prompt: Ewma,
    /// What was learned of its seats.
    pub seats: SeatLearner,
}

impl EngineLoad {
    /// Nothing in flight, nothing learned.
    #[must_use]
    pub fn new(tuning: &Tuning) -> Self {
        Self {
            requests: 0,
            q_tokens: 0,
            c_tokens: 0,
            unanswered: VecDeque::new(),
            next_leave: NEVER,
            streaming: 0,
            last_first_byte: None,
            prefill: None,
            waiting_checked: Nanos(0),
            watched: Watched::default(),
            decode_seconds: Ewma::new(tuning.decode_gain),
            plain_seconds: Ewma::new(tuning.decode_gain),
            prefill_rate: Ewma::new(tuning.prefill_rate_gain),
            chars_per_token: Ewma::new(tuning.chars_per_token_gain),
            mean_uncached: Ewma::new(MEAN_REQUEST_GAIN),
            mean_prompt: Ewma::new(MEAN_REQUEST_GAIN),
            seats: SeatLearner::default(),
        }
    }

    /// The counts now.
    #[must_use]
    pub const fn in_flight(&self) -> InFlight {
        InFlight { requests: self.requests, q_tokens: self.q_tokens, c_tokens: self.c_tokens }
    }

    /// Requests past their prefill: streams that have begun, and plain ones predicted to have.
    #[must_use]
    pub fn decoding(&self) -> u32 {
        let plain = self.unanswered.iter().filter(|w| !w.stream && w.leaves_q_at == NEVER).count();
        self.streaming.saturating_add(plain as u32)
    }

    /// Streams that have begun and not ended.
    #[must_use]
    pub const fn streaming(&self) -> u32 {
        self.streaming
    }

    /// First-byte-to-end time in seconds (D).
    #[must_use]
    pub const fn decode_seconds(&self) -> &Ewma {
        &self.decode_seconds
    }

    /// Prefill rate in tokens per second (R).
    #[must_use]
    pub const fn prefill_rate(&self) -> &Ewma {
        &self.prefill_rate
    }

    /// Bytes of JSON text per prompt token (c).
    #[must_use]
    pub const fn chars_per_token(&self) -> &Ewma {
        &self.chars_per_token
    }

    pub(super) const fn averages(&self) -> [&Ewma; AVERAGES] {
        [
            &self.decode_seconds,
            &self.prefill_rate,
            &self.chars_per_token,
            &self.mean_uncached,
            &self.mean_prompt,
            &self.plain_seconds,
        ]
    }

    pub(super) const fn averages_mut(&mut self) -> [&mut Ewma; AVERAGES] {
        [
            &mut self.decode_seconds,
            &mut self.prefill_rate,
            &mut self.chars_per_token,
            &mut self.mean_uncached,
            &mut self.mean_prompt,
            &mut self.plain_seconds,
        ]
    }

    /// Requests without a byte whose tickets are that one or later. O(log of those without).
    #[must_use]
    pub fn unanswered_since(&self, ticket: u64) -> usize {
        self.unanswered.len() - self.unanswered.partition_point(|w| w.id < ticket)
    }

    /// The oldest request without a byte of those sent at `since` or later: when, and whether it is a stream. O(log).
    #[must_use]
    pub fn oldest_unanswered(&self, since: Nanos) -> Option<(Nanos, bool)> {
        let at = self.unanswered.partition_point(|w| w.sent < since);
        self.unanswered.get(at).map(|w| (w.sent, w.stream))
    }

    /// From dispatch to the end of an answer that is no stream, seconds.
    #[must_use]
    pub const fn plain_seconds(&self) -> &Ewma {
        &self.plain_seconds
    }

    /// An answer that is no stream came whole.
    pub(crate) fn learn_plain_seconds(&mut self, seconds: f64) {
        self.plain_seconds.observe(seconds.clamp(DECODE_BOUNDS.0, DECODE_BOUNDS.1));
    }

    /// What it has taught.
    #[must_use]
    pub fn learned(&self, tuning: &Tuning) -> Learned {
        let value = |mean: &Ewma| mean.value().unwrap_or(f64::NAN);
        let (start, weight) = (tuning.decode_seconds_start, tuning.decode_start_samples);
        let with_start = |(mean, n): (f64, u64)| (mean * n as f64 + start * weight) / (n as f64 + weight);
        Learned {
            decode_seconds: self.decode_seconds.with_count().map_or(f64::NAN, with_start),
            prefill_rate: value(&self.prefill_rate),
            uncached: value(&self.mean_uncached),
            prompt: value(&self.mean_prompt),
            chars_per_token: value(&self.chars_per_token),
            proven_seats: self.seats.proven(),
        }
    }

    /// When time alone will change something: a predicted prefill ends, or waiting may begin to teach.
    pub(crate) fn due(&self) -> Nanos {
        if self.streaming == 0 || self.unanswered.is_empty() {
            return self.next_leave;
        }
        self.next_leave.min(Nanos(self.waiting_checked.0.saturating_add(WAITING_CHECK_NS)))
    }

    /// Requests dispatched since the last report.
    #[must_use]
    pub const fn dispatched_since_report(&self) -> u32 {
        self.watched.dispatched
    }

    /// A report is asked for.
    pub fn report_begins(&mut self, now: Nanos) {
        self.watched.report_begins(now, self.requests, self.streaming);
    }

    /// What of ours the engine had since the report before this one was asked for.
    #[must_use]
    pub fn had(&self) -> Had {
        self.watched.had(self.unanswered.front().map(|oldest| oldest.sent))
    }

    /// The report came: the most that was in flight since it was asked for, or a moment before.
    pub const fn report_ends(&mut self) -> u32 {
        self.watched.report_ends()
    }

    /// Counts a request. `rate` predicts when a non-streamed one leaves Q. Allocates only while the queue grows.
    pub(crate) fn dispatch(&mut self, now: Nanos, d: Dispatch, rate: f64) {
        self.requests += 1;
        self.q_tokens += d.uncached_tokens;
        self.c_tokens += d.prompt_tokens;
        self.watched.dispatches(self.requests);
        self.mean_uncached.observe(d.uncached_tokens as f64);
        self.mean_prompt.observe(d.prompt_tokens as f64);
        let predicted = || Nanos(now.0.saturating_add((self.q_tokens as f64 / rate * 1e9) as u64));
        let leaves_q_at = if d.stream { NEVER } else { predicted() };
        self.next_leave = self.next_leave.min(leaves_q_at);
        self.unanswered.push_back(Unanswered {
            id: d.id,
            uncached_tokens: d.uncached_tokens,
            sent: now,
            stream: d.stream,
            leaves_q_at,
        });
    }

    /// The first byte of an answer came.
    pub(crate) fn first_byte(&mut self, now: Nanos, d: Dispatch, tuning: &Tuning) {
        let Some(entry) = self.leave_unanswered(d.id) else { return };
        if !entry.stream {
            return;
        }
        self.learn_prefill_rate(now, entry.sent, d.uncached_tokens, tuning);
        self.last_first_byte = Some(now);
        self.streaming += 1;
        self.watched.streams_began += 1;
        self.seats.on_streaming(self.streaming);
    }

    /// One prefill ended. Those that end in one step of the engine took its time together: a sample is taken when the
    /// next one ends later. (One by one, the second of a step would look infinitely fast.)
    fn learn_prefill_rate(&mut self, now: Nanos, sent: Nanos, tokens: u64, tuning: &Tuning) {
        let began = self.last_first_byte.map_or(sent, |f| f.max(sent));
        let seconds = now.seconds_since(began);
        match &mut self.prefill {
            Some(step) if seconds < SAME_STEP_SECONDS => step.tokens += tokens,
            _ => {
                self.flush_prefill_rate(tuning);
                self.prefill = Some(Prefill { tokens, seconds });
            }
        }
    }

    fn flush_prefill_rate(&mut self, tuning: &Tuning) {
        if let Some(Prefill { tokens, seconds }) = self.prefill.take()
            && tokens > tuning.prefill_rate_min_tokens
        {
            let rate = tokens as f64 / seconds.max(SAME_STEP_SECONDS);
            self.prefill_rate.observe(rate.clamp(RATE_BOUNDS.0, RATE_BOUNDS.1));
        }
    }

    /// A request ended; `streamed_since` is when its stream began, `whole` whether it ended as it should.
    pub(crate) fn finish(
        &mut self,
        now: Nanos,
        d: Dispatch,
        streamed_since: Option<Nanos>,
        whole: bool,
        tuning: &Tuning,
    ) {
        self.flush_prefill_rate(tuning);
        self.leave_unanswered(d.id);
        debug_assert!(self.requests > 0, "a request ends once");
        self.watched.ends(now, self.requests);
        self.requests = self.requests.saturating_sub(1);
        self.c_tokens = self.c_tokens.saturating_sub(d.prompt_tokens);
        if let (Some(began), true) = (streamed_since, d.stream) {
            self.streaming = self.streaming.saturating_sub(1);
            self.watched.streams_least = self.watched.streams_least.min(self.streaming);
            if whole {
                let seconds = now.seconds_since(began);
                self.decode_seconds.observe(seconds.clamp(DECODE_BOUNDS.0, DECODE_BOUNDS.1));
            }
        }
    }

    /// The engine counted `tokens` where we sent `bytes` of prompt.
    pub(crate) fn learn_chars_per_token(&mut self, bytes: u64, tokens: u64) {
        if bytes > 0 && tokens >= CHARS_PER_TOKEN_MIN_TOKENS {
            let (low, high) = CHARS_PER_TOKEN_BOUNDS;
            self.chars_per_token.observe((bytes as f64 / tokens as f64).clamp(low, high));
        }
    }

    /// Takes predicted prefills that are over out of Q. One comparison when none is.
    pub(crate) fn expire_predicted(&mut self, now: Nanos) {
        if now < self.next_leave {
            return;
        }
        self.next_leave = NEVER;
        for entry in &mut self.unanswered {
            if entry.leaves_q_at <= now {
                self.q_tokens = self.q_tokens.saturating_sub(entry.uncached_tokens);
                entry.uncached_tokens = 0;
                entry.leaves_q_at = NEVER;
            }
            self.next_leave = self.next_leave.min(entry.leaves_q_at);
        }
    }

    /// Looks whether somebody waits for a seat: unanswered far beyond any predicted prefill, while others stream.
    pub(crate) fn learn_from_waiting(&mut self, now: Nanos, rate: f64, tuning: &Tuning) {
        let is_due = now.0.saturating_sub(self.waiting_checked.0) >= WAITING_CHECK_NS;
        if self.streaming == 0 || self.unanswered.is_empty() || !is_due {
            return;
        }
        self.waiting_checked = now;
        let progress = self.last_first_byte.unwrap_or_default();
        // As long as the prefill of all that is unanswered may take: behind a long prompt a short one waits for no
        // seat.
        let patience = tuning.patience_factor * self.q_tokens as f64 / rate + tuning.patience_seconds;
        let waited = |w: &Unanswered| w.stream && now.seconds_since(w.sent.max(progress)) > patience;
        let waits = self.unanswered.iter().take(WAITING_LOOKED_AT).any(waited);
        if waits {
            self.seats.on_waited_too_long(self.streaming);
        }
    }

    fn leave_unanswered(&mut self, id: u64) -> Option<Unanswered> {
        let at = self.unanswered.binary_search_by_key(&id, |entry| entry.id).ok()?;
        let entry = self.unanswered.remove(at)?;
        self.q_tokens = self.q_tokens.saturating_sub(entry.uncached_tokens);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::{Dispatch, EngineLoad, InFlight, Nanos, Tuning};

    const RATE: f64 = 1000.0;

    fn dispatch(id: u64, u: u64, t: u64, stream: bool) -> Dispatch {
        Dispatch { id, uncached_tokens: u, prompt_tokens: t, stream }
    }

    fn at(s: f64) -> Nanos {
        Nanos::from_secs_f64(s)
    }

    #[test]
    fn a_stream_leaves_q_at_its_first_byte_and_the_rest_at_its_end() {
        let mut e = EngineLoad::new(&Tuning::default());
        let d = dispatch(1, 600, 1000, true);
        e.dispatch(at(0.0), d, RATE);
        assert_eq!(e.in_flight(), InFlight { requests: 1, q_tokens: 600, c_tokens: 1000 });
        e.first_byte(at(0.5), d, &Tuning::default());
        assert_eq!(e.in_flight(), InFlight { requests: 1, q_tokens: 0, c_tokens: 1000 });

        e.finish(at(2.5), d, Some(at(0.5)), true, &Tuning::default());
        assert_eq!(e.in_flight(), InFlight::default());
        assert_eq!(e.decode_seconds().value(), Some(2.0));
        assert_eq!(e.prefill_rate().value(), Some(1200.0));
    }

    #[test]
    fn a_request_that_ends_unanswered_leaves_everything() {
        let mut e = EngineLoad::new(&Tuning::default());
        for stream in [true, false] {
            e.dispatch(at(0.0), dispatch(1, 600, 1000, stream), RATE);
            e.finish(at(9.0), dispatch(1, 600, 1000, stream), None, false, &Tuning::default());
            assert_eq!(e.in_flight(), InFlight::default());
            assert_eq!(e.decode_seconds().value(), None, "no sample from an answer that never began");
        }
    }

    #[test]
    fn a_report_may_still_hold_what_ended_a_moment_before() {
        let mut e = EngineLoad::new(&Tuning::default());
        let [one, two] = [1, 2].map(|id| dispatch(id, 100, 100, false));
        e.dispatch(at(0.0), one, RATE);
        e.dispatch(at(0.0), two, RATE);
        e.finish(at(1.0), one, None, true, &Tuning::default());
        e.finish(at(1.01), two, None, true, &Tuning::default());
        for (asked, ours) in [(1.05, 2), (1.2, 0)] {
            let mut e = e.clone();
            e.report_begins(at(asked));
            assert_eq!(e.report_ends(), ours, "asked at {asked} s");
        }
    }

    #[test]
    fn a_plain_request_leaves_q_when_its_prefill_is_predicted_done() {
        let mut e = EngineLoad::new(&Tuning::default());
        e.dispatch(at(0.0), dispatch(1, 1000, 1000, false), RATE);
        e.dispatch(at(0.0), dispatch(2, 1000, 1000, false), RATE);
        e.expire_predicted(at(0.99));
        assert_eq!(e.in_flight().q_tokens, 2000);
        e.expire_predicted(at(1.0));
        assert_eq!(e.in_flight().q_tokens, 1000, "the second waits for the first");
        e.expire_predicted(at(2.0));
        assert_eq!(e.in_flight(), InFlight { requests: 2, q_tokens: 0, c_tokens: 2000 });
        e.finish(at(3.0), dispatch(1, 1000, 1000, false), Some(at(3.0)), true, &Tuning::default());
        e.finish(at(3.0), dispatch(2, 1000, 1000, false), None, true, &Tuning::default());
        assert_eq!(e.in_flight(), InFlight::default());
        assert_eq!(e.prefill_rate().value(), None, "a plain answer says nothing of the prefill");
    }

    #[test]
    fn only_a_stream_that_waits_beyond_its_prefill_teaches_seats() {
        let teach = |waiter_streams: bool, now: f64| {
            let mut e = EngineLoad::new(&Tuning::default());
            e.dispatch(at(0.0), dispatch(1, 100, 100, true), RATE);
            e.first_byte(at(0.1), dispatch(1, 100, 100, true), &Tuning::default());
            e.dispatch(at(0.1), dispatch(2, 1000, 1000, waiter_streams), RATE);
            e.learn_from_waiting(at(now), RATE, &Tuning::default());
            e.seats.seats(None, crate::Signal::default(), e.seats.proven()).source()
        };
        assert_eq!(teach(true, 4.5), "proven_by_use", "within 4 × 1 s + 0.5 s");
        assert_eq!(teach(true, 4.7), "learned_from_waiting");
        assert_eq!(teach(false, 60.0), "proven_by_use", "a plain request is no evidence");
    }

    #[test]
    fn the_rate_counts_from_the_first_byte_before() {
        let mut e = EngineLoad::new(&Tuning::default());
        let (a, b) = (dispatch(1, 1000, 1000, true), dispatch(2, 1000, 1000, true));
        e.dispatch(at(0.0), a, RATE);
        e.dispatch(at(0.0), b, RATE);
        e.first_byte(at(1.0), a, &Tuning::default());
        e.first_byte(at(2.0), b, &Tuning::default());
        e.finish(at(3.0), b, Some(at(2.0)), true, &Tuning::default());
        assert_eq!(e.prefill_rate().with_count(), Some((1000.0, 2)), "queueing is not slowness");
    }

    #[test]
    fn characters_per_token_ignore_short_prompts_and_clamp_nonsense() {
        let mut e = EngineLoad::new(&Tuning::default());
        e.learn_chars_per_token(400, 63);
        assert_eq!(e.chars_per_token().value(), None, "mostly template");
        e.learn_chars_per_token(1000, 250);
        assert_eq!(e.chars_per_token().with_count(), Some((4.0, 1)));
        e.learn_chars_per_token(10, u64::MAX);
        assert!(e.chars_per_token().value() >= Some(1.0), "clamped");
    }

    #[test]
    fn prefills_of_one_step_are_one_sample() {
        let mut e = EngineLoad::new(&Tuning::default());
        let ds = [1, 2, 3].map(|id| dispatch(id, 1000, 1000, true));
        for d in ds {
            e.dispatch(at(0.0), d, RATE);
        }
        for (n, d) in ds.into_iter().enumerate() {
            e.first_byte(at(1.0 + n as f64 * 1e-4), d, &Tuning::default());
        }
        e.finish(at(2.0), ds[0], Some(at(1.0)), true, &Tuning::default());
        assert_eq!(e.prefill_rate().with_count(), Some((3000.0, 1)));
    }
}
