//! What one engine has taught, to be kept beyond the router's life.

use super::engine::EngineLoad;
use super::ewma::Ewma;

/// Averages with their numbers of observations, and what is known of seats and KV pool. Kept by a router for its
/// successor; all of it is evidence that the next observations change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taught {
    /// Averages: first byte to end in seconds, prefill in tokens per second, bytes of JSON text per prompt token,
    /// uncached tokens of a request, prompt tokens of a request, and from dispatch to the end of an answer that is no
    /// stream, in seconds.
    pub averages: [Option<(f64, u64)>; AVERAGES],
    /// Seats learned from scrapes.
    pub seats_from_scrapes: Option<u32>,
    /// Seats learned from requests that waited.
    pub seats_from_waiting: Option<u32>,
    /// Most requests ever seen running at once.
    pub proven_seats: u32,
    /// KV pool in tokens, as the engine reported it last.
    pub kv_tokens: Option<u64>,
}

/// How many averages there are.
pub(super) const AVERAGES: usize = 6;

impl Taught {
    /// Averages outside are nonsense and left out.
    const BOUNDS: [(f64, f64); AVERAGES] = [
        super::engine::DECODE_BOUNDS,
        super::engine::RATE_BOUNDS,
        super::engine::CHARS_PER_TOKEN_BOUNDS,
        TOKENS,
        TOKENS,
        super::engine::DECODE_BOUNDS,
    ];
}

/// A prompt is never longer than the largest KV pool.
const TOKENS: (f64, f64) = (0.0, (1_u64 << 30) as f64);

impl EngineLoad {
    /// What it has taught so far, but for the KV pool, which is not learned.
    pub(crate) fn taught(&self) -> Taught {
        let (seats_from_scrapes, seats_from_waiting) = self.seats.learned();
        Taught {
            averages: self.averages().map(Ewma::with_count),
            seats_from_scrapes,
            seats_from_waiting,
            proven_seats: self.seats.proven(),
            kv_tokens: None,
        }
    }

    /// Takes over what it taught another router, where it has taught this one nothing yet.
    pub(crate) fn teach(&mut self, taught: &Taught) {
        for ((average, before), (low, high)) in
            self.averages_mut().into_iter().zip(taught.averages).zip(Taught::BOUNDS)
        {
            if let Some((value, observations)) = before.filter(|(value, _)| (low..=high).contains(value)) {
                average.resume(value, observations);
            }
        }
        self.seats.resume(taught.seats_from_scrapes, taught.seats_from_waiting, taught.proven_seats);
    }
}
