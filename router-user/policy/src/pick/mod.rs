//! One way of choosing a file. Each sees the candidates that the filter left, and answers with one of them.

mod hash;
mod least_in_flight;
mod lowest_qps;
mod p2c;
mod prefix_cost;
mod prefix_threshold;
mod random;
mod round_robin;

pub(crate) use hash::hash_ring;
pub(crate) use least_in_flight::least_in_flight;
pub(crate) use lowest_qps::lowest_qps;
pub(crate) use p2c::p2c;
pub(crate) use prefix_cost::{prefix_cost, priced};
pub(crate) use prefix_threshold::prefix_threshold;
pub(crate) use random::random;
pub(crate) use round_robin::round_robin;

use rand::{Rng, RngExt};
use router_common::BackendId;

use crate::cost::Load;
use crate::decision::{Cost, Reason};
use crate::load::Told;

/// Two numbers this close (relatively) are equal.
const EQUAL: f64 = 1e-9;

/// A backend that may get the request, with all that the pickers look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) id: BackendId,
    pub(crate) load: Load,
    /// Of its requests, those of the host's other processes.
    pub(crate) others: u32,
    /// Whether the count is known at all: own counts, or a report plus what was dispatched since.
    pub(crate) is_counted: bool,
    /// Whether part of the count is only as fresh as a report.
    pub(crate) is_stale: bool,
    /// Foreign requests in it; not a number where nobody tells and none are assumed. Short, as it is copied with every
    /// candidate.
    pub(crate) foreign: f32,
    /// What was told of it in band.
    pub(crate) told: Option<Told>,
    pub(crate) matched_blocks: u32,
    pub(crate) matched_tokens: u64,
}

/// What only policies without load or prefix look at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habits {
    /// Arrivals in the window; `None` = never one.
    pub(crate) arrivals: Option<u64>,
    /// Number of the round-robin turn it last had; 0 = none.
    pub(crate) last_turn: u64,
    /// Its name in hash rings.
    pub(crate) ring_seed: u64,
}

/// A choice: index among the candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) reason: Reason,
    pub(crate) cost: Cost,
}

impl Choice {
    pub(crate) fn new(index: usize, reason: Reason) -> Self {
        Self { index, reason, cost: Cost::default() }
    }
}

/// The index of the least value, uniformly among those that count as equally good. Never list order. O(n).
///
/// Exact values are as good as the least when they are equal to it (relative difference 1e-9).
pub(crate) fn least(rng: &mut impl Rng, values: &[f64]) -> usize {
    let least = minimum(values);
    let limit = least + EQUAL * least.abs().max(1.0);
    // A byte a lane and few values in a piece, so that counting is as wide as the processor.
    let equals = |piece: &[f64]| piece.iter().map(|&value| u8::from(value <= limit)).sum::<u8>();
    let count: usize = values.chunks(128).map(|piece| usize::from(equals(piece))).sum();
    let wanted = if count > 1 { rng.random_range(0..count) } else { 0 };
    (0..values.len()).filter(|&i| values[i] <= limit).nth(wanted).unwrap_or(0)
}

/// Whether a value is as good as the least, where all are exact. O(n).
pub(crate) fn is_least(values: &[f64], at: usize) -> bool {
    let least = minimum(values);
    values.get(at).is_some_and(|&value| value <= least + EQUAL * least.abs().max(1.0))
}

/// The same where some values are only as fresh as a report: where the least or the value itself is stale, it is good
/// within `band(i)` of the least, since a stale least attracts a whole burst.
pub(crate) fn least_of_stale(
    rng: &mut impl Rng,
    values: &[f64],
    is_stale: impl Fn(usize) -> bool,
    band: impl Fn(usize) -> f64,
) -> usize {
    let least = minimum(values);
    let Some(best) = values.iter().position(|&value| value == least) else { return 0 };
    let slack = EQUAL * least.abs().max(1.0);
    let is_best_stale = is_stale(best);
    let (mut chosen, mut equals) = (best, 0_u32);
    for (i, &value) in values.iter().enumerate() {
        let width = if is_best_stale || is_stale(i) { band(i).max(slack) } else { slack };
        if value <= least + width {
            equals += 1;
            if rng.random_range(0..equals) == 0 {
                chosen = i;
            }
        }
    }
    chosen
}

/// The least value; infinite without one. In eight lanes, so that a comparison does not wait for the one before.
fn minimum(values: &[f64]) -> f64 {
    let less = |a: f64, b: f64| if b < a { b } else { a };
    let mut lanes = [f64::INFINITY; 8];
    let chunks = values.chunks_exact(lanes.len());
    let rest = chunks.remainder().iter().copied();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = less(*lane, value);
        }
    }
    lanes.into_iter().chain(rest).fold(f64::INFINITY, less)
}

#[cfg(test)]
mod tests {
    use super::{least, least_of_stale};
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    fn shares(values: &[f64], stale: bool) -> Vec<usize> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut hits = vec![0; values.len()];
        for _ in 0..3000 {
            let chosen = if stale {
                least_of_stale(&mut rng, values, |_| true, |_| 1.0)
            } else {
                least(&mut rng, values)
            };
            hits[chosen] += 1;
        }
        hits
    }

    #[test]
    fn equals_share_evenly_wherever_they_stand() {
        let hits = shares(&[2.0, 1.0, 1.0, 5.0, 1.0], false);
        assert_eq!((hits[0], hits[3]), (0, 0));
        for i in [1, 2, 4] {
            assert!((900..1100).contains(&hits[i]), "{hits:?}");
        }
    }

    #[test]
    fn exact_counts_take_the_least_and_stale_ones_a_band() {
        assert_eq!(shares(&[3.0, 4.0], false), [3000, 0]);
        let hits = shares(&[3.0, 4.0, 4.5], true);
        assert!((1350..1650).contains(&hits[0]) && hits[2] == 0, "{hits:?}");
    }
}

#[cfg(test)]
mod tests_support {
    use super::{Candidate, Load};
    use crate::load::Seats;
    use router_common::BackendId;

    /// A backend with so many in flight and nothing else.
    pub(super) fn candidate(row: usize, requests: f64) -> Candidate {
        let (q_tokens, c_tokens, kv_tokens, prefill_rate) = (0.0, 0.0, 1e6, 1e4);
        Candidate {
            id: BackendId::new(row).unwrap(),
            load: Load {
                requests,
                q_tokens,
                c_tokens,
                kv_tokens,
                seats: Seats::Configured(64),
                prefill_rate,
            },
            others: 0,
            is_counted: true,
            is_stale: false,
            foreign: 0.0,
            told: None,
            matched_blocks: 0,
            matched_tokens: 0,
        }
    }
}
