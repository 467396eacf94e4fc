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
use crate::load::Seats;

/// What a prefill costs each request that is decoding beside it, as a share of its tokens.
const DISTURBANCE: f64 = 0.2;
/// What a token of context in flight costs in slower decoding.
const CONTEXT: f64 = 0.05;

/// Bounds and start values of the pool means in the seat term.
const DECODE_SECONDS_MIN: f64 = 0.5;
const DECODE_SECONDS_START: f64 = 5.0;
const PREFILL_RATE_MIN: f64 = 1000.0;
/// Tokens per second assumed before any sample.
pub const PREFILL_RATE_START: f64 = 15_000.0;

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
    /// Most requests ever seen running at once on one engine.
    pub proven_seats: u32,
}

impl PoolMeans {
    /// From what is known; start values where nothing is.
    #[must_use]
    pub fn new(
        decode: Option<f64>,
        rate: Option<f64>,
        request: Option<(f64, f64)>,
        proven_seats: u32,
    ) -> Self {
        let (uncached, prompt) = request.unwrap_or_default();
        Self {
            decode_seconds: decode.unwrap_or(DECODE_SECONDS_START).max(DECODE_SECONDS_MIN),
            prefill_rate: rate.unwrap_or(PREFILL_RATE_START).max(PREFILL_RATE_MIN),
            uncached,
            prompt,
            proven_seats,
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
}

/// The cost of a request of `prompt` tokens of which `matched` are cached there.
#[must_use]
pub fn cost(load: &Load, prompt: u64, matched: u64, means: &PoolMeans) -> Cost {
    let (prompt, uncached) = (prompt as f64, prompt.saturating_sub(matched) as f64);
    let seats = f64::from(load.seats.count());
    let over = (load.requests + 1.0 - seats).max(0.0);
    let mut wait = means.decode_seconds * means.prefill_rate / seats;
    if load.seats.is_told() {
        wait = wait.max(prompt);
    }
    Cost {
        uncached,
        disturbance: uncached * DISTURBANCE * load.requests,
        queued: load.q_tokens,
        context: CONTEXT * load.c_tokens,
        overflow: (load.c_tokens + prompt - load.kv_tokens).max(0.0),
        seat: over * wait,
    }
}

/// What one more mean request of the pool adds to the cost there: the width of the band in which stale loads
/// count as equal.
#[must_use]
pub fn one_request(uncached: f64, means: &PoolMeans) -> f64 {
    means.uncached + CONTEXT * means.prompt + DISTURBANCE * uncached
}

#[cfg(test)]
mod tests {
    use super::{Load, PoolMeans, cost};
    use crate::load::Seats;

    const MEANS: PoolMeans = PoolMeans {
        decode_seconds: 2.0,
        prefill_rate: 10_000.0,
        uncached: 0.0,
        prompt: 0.0,
        proven_seats: 1,
    };

    fn load(requests: f64, seats: Seats) -> Load {
        Load { requests, q_tokens: 700.0, c_tokens: 4000.0, kv_tokens: 5000.0, seats }
    }

    #[test]
    fn every_term_by_hand() {
        let c = cost(&load(3.0, Seats::Configured(2)), 2000, 500, &MEANS);
        assert_eq!(c.uncached, 1500.0);
        assert_eq!(c.disturbance, 900.0);
        assert_eq!(c.queued, 700.0);
        assert_eq!(c.context, 200.0);
        assert_eq!(c.overflow, 1000.0);
        assert_eq!(c.seat, 20_000.0);
        assert_eq!(c.total(), 24_300.0);
    }

    #[test]
    fn a_free_seat_costs_nothing_and_a_told_one_at_least_the_prompt() {
        assert_eq!(cost(&load(3.0, Seats::Configured(4)), 2000, 0, &MEANS).seat, 0.0);
        let quick = PoolMeans { decode_seconds: 0.5, prefill_rate: 1000.0, ..MEANS };
        assert_eq!(cost(&load(4.0, Seats::Configured(4)), 2000, 0, &quick).seat, 2000.0);
        assert_eq!(cost(&load(4.0, Seats::ProvenByUse(4)), 2000, 0, &quick).seat, 125.0);
    }

    #[test]
    fn means_have_start_values_and_floors() {
        let start = PoolMeans::new(None, None, None, 0);
        assert_eq!((start.decode_seconds, start.prefill_rate), (5.0, 15_000.0));
        let low = PoolMeans::new(Some(0.01), Some(3.0), None, 0);
        assert_eq!((low.decode_seconds, low.prefill_rate), (0.5, 1000.0));
    }
}
