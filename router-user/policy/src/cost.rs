//! What a request costs at an engine, in prompt tokens. Lower is better.
//!
//! ```text
//! cost = U·(1 + 0.2·A) + Q + 0.05·C + max(0, C + T − K) + seat
//! seat = max(0, A + 1 − S) · D·R / S        (D·R/S at least T where seats are told)
//! ```
//! U uncached tokens of the request there; A requests in flight, Q their unanswered prefill, C their prompt
//! tokens, K the KV pool, S the seats; D and R the pool's mean decode time and prefill rate. All terms are prompt
//! tokens, so affinity and load are one comparison: a session moves exactly when waiting costs more than
//! recomputing. The two weights are the flat middle of a grid on real traces; 0.1–0.5 and 0.03–0.1 are within 2 %.

use crate::decision::Cost;
use crate::load::{PoolLearned, Seats};
use crate::tuning::Tuning;

/// Means over the engines of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolMeans {
    /// First byte to end, seconds (D).
    pub decode_seconds: f64,
    /// Prefill, tokens per second (R).
    pub prefill_rate: f64,
    /// Uncached tokens of a request.
    pub uncached: f64,
    /// Prompt tokens of a request.
    pub prompt: f64,
    /// Bytes of JSON text per prompt token (c).
    pub chars_per_token: f64,
    /// Most requests ever seen running at once on one engine.
    pub proven_seats: u32,
}

impl PoolMeans {
    /// From what the engines taught, within the bounds of `tuning`; start values take the place of what none did.
    #[must_use]
    pub fn new(pool: &PoolLearned, tuning: &Tuning) -> Self {
        let decode_seconds = pool.decode_seconds.value().unwrap_or(tuning.decode_seconds_start);
        let prefill_rate = pool.prefill_rate.value().unwrap_or(tuning.prefill_rate_start);
        Self {
            decode_seconds: decode_seconds.max(tuning.decode_seconds_min),
            prefill_rate: prefill_rate.max(tuning.prefill_rate_min),
            uncached: pool.uncached.value().unwrap_or(0.0),
            prompt: pool.prompt.value().unwrap_or(0.0),
            chars_per_token: pool.chars_per_token.value().unwrap_or(tuning.chars_per_token_start),
            proven_seats: pool.proven_seats,
        }
    }
}

/// The load at one engine as the cost sees it (policy.md's A, Q, C, K, S).
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// A: requests in flight, foreign ones included.
    pub requests: f64,
    /// Q: unanswered prefill tokens.
    pub q_tokens: f64,
    /// C: prompt tokens in flight.
    pub c_tokens: f64,
    /// K: KV pool in tokens.
    pub kv_tokens: f64,
    /// S.
    pub seats: Seats,
    /// R of this engine: learned, else assumed.
    pub prefill_rate: f64,
}

impl Load {
    /// So many more requests in flight there, with the unanswered prefill and the prompts of all.
    #[inline]
    pub fn add(&mut self, requests: f64, q_tokens: f64, c_tokens: f64) {
        self.requests += requests;
        self.q_tokens += q_tokens;
        self.c_tokens += c_tokens;
    }
}

/// Speeds within this share of the mean are equal, and the weight of a speed is bounded.
const SPEED_EQUAL: f64 = 0.25;
const SPEED_BOUNDS: (f64, f64) = (0.25, 4.0);

/// By how much a cost at this engine weighs more (slower than the mean) or less, in pools of unequal engines.
#[must_use]
pub fn speed_factor(rate: f64, means: &PoolMeans) -> f64 {
    let factor = means.prefill_rate / rate.max(1.0);
    if (factor - 1.0).abs() <= SPEED_EQUAL { 1.0 } else { factor.clamp(SPEED_BOUNDS.0, SPEED_BOUNDS.1) }
}

/// The cost of a request of `prompt` tokens of which `matched` are cached there.
#[must_use]
#[inline]
pub fn cost(load: &Load, prompt: u64, matched: u64, means: &PoolMeans, tuning: &Tuning) -> Cost {
    let (prompt, uncached) = (prompt as f64, prompt.saturating_sub(matched) as f64);
    let seats = f64::from(load.seats.count());
    let over = load.requests + 1.0 - seats;
    let wait = || {
        let wait = means.decode_seconds * means.prefill_rate / seats;
        if load.seats.is_told() { wait.max(prompt) } else { wait }
    };
    Cost {
        uncached,
        disturbance: uncached * tuning.disturbance * load.requests,
        queued: load.q_tokens,
        context: tuning.context * load.c_tokens,
        overflow: (load.c_tokens + prompt - load.kv_tokens).max(0.0),
        seat: if over > 0.0 { over * wait() } else { 0.0 },
    }
}

/// What one more mean request of the pool adds to the cost there: the width of the band in which stale loads
/// count as equal.
#[must_use]
pub fn one_request(uncached: f64, means: &PoolMeans, tuning: &Tuning) -> f64 {
    means.uncached + tuning.context * means.prompt + tuning.disturbance * uncached
}

#[cfg(test)]
mod tests {
    use super::{Load, PoolLearned, PoolMeans, Tuning, cost, speed_factor};
    use crate::load::{Learned, Seats};

    fn means(decode_seconds: f64, prefill_rate: f64) -> PoolMeans {
        let mut pool = PoolLearned::default();
        pool.add(&Learned { decode_seconds, prefill_rate, ..Learned::NOTHING });
        PoolMeans::new(&pool, &Tuning::default())
    }

    fn load(requests: f64, seats: Seats) -> Load {
        let (q_tokens, c_tokens, kv_tokens) = (700.0, 4000.0, 5000.0);
        Load { requests, q_tokens, c_tokens, kv_tokens, seats, prefill_rate: 10_000.0 }
    }

    #[test]
    fn every_term_by_hand() {
        let c = cost(&load(3.0, Seats::Configured(2)), 2000, 500, &means(2.0, 10_000.0), &Tuning::default());
        assert_eq!(c.uncached, 1500.0);
        assert_eq!(c.disturbance, 900.0);
        assert_eq!(c.queued, 700.0);
        assert_eq!(c.context, 200.0);
        assert_eq!(c.overflow, 1000.0);
        assert_eq!(c.seat, 20_000.0);
        assert_eq!(c.total(), 24_300.0);
    }

    #[test]
    fn each_weight_of_zero_takes_its_term_away() {
        let tuning = Tuning { disturbance: 0.0, context: 0.0, ..Tuning::default() };
        let c = cost(&load(3.0, Seats::Configured(4)), 2000, 500, &means(2.0, 10_000.0), &tuning);
        assert_eq!((c.disturbance, c.context, c.seat), (0.0, 0.0, 0.0));
        assert_eq!(c.total(), 1500.0 + 700.0 + 1000.0);
    }

    #[test]
    fn a_free_seat_costs_nothing_and_a_told_one_at_least_the_prompt() {
        let seat = |requests, seats| {
            cost(&load(requests, seats), 2000, 0, &means(0.5, 1000.0), &Tuning::default()).seat
        };
        assert_eq!(seat(3.0, Seats::Configured(4)), 0.0);
        assert_eq!(seat(4.0, Seats::Configured(4)), 2000.0);
        assert_eq!(seat(4.0, Seats::ProvenByUse(4)), 125.0);
    }

    #[test]
    fn means_have_start_values_and_floors() {
        let start = PoolMeans::new(&PoolLearned::default(), &Tuning::default());
        assert_eq!((start.decode_seconds, start.prefill_rate, start.chars_per_token), (5.0, 15_000.0, 4.0));
        let low = means(0.01, 3.0);
        assert_eq!((low.decode_seconds, low.prefill_rate), (0.5, 1000.0));
    }

    #[test]
    fn speeds_near_the_mean_are_equal_and_others_bounded() {
        let means = means(1.0, 10_000.0);
        for (rate, expected) in [(9000.0, 1.0), (12_000.0, 1.0), (5000.0, 2.0), (1.0, 4.0), (1e6, 0.25)] {
            assert_eq!(speed_factor(rate, &means), expected, "{rate}");
        }
    }
}
