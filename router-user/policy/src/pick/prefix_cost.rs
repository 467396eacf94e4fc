//! Least cost in prompt tokens: the default.

use rand::Rng;

use super::{Candidate, Choice, least, least_of_stale};
use crate::cost::{PoolMeans, cost, one_request, speed_factor};
use crate::decision::{Cost, Reason};
use crate::tuning::Tuning;

/// The cost at one candidate, and what is compared: the same, weighed by speed where that is asked for.
#[inline]
pub(crate) fn priced(c: &Candidate, prompt_tokens: u64, means: &PoolMeans, tuning: &Tuning) -> (Cost, f64) {
    let cost = cost(&c.load, prompt_tokens, c.matched_tokens, means, tuning);
    let factor = if tuning.weigh_by_speed { speed_factor(c.load.prefill_rate, means) } else { 1.0 };
    (cost, cost.total() * factor)
}

/// Argmin of the cost, at random among exact equals; among stale loads within one mean request of the least.
/// `values` is scratch.
pub(crate) fn prefix_cost(
    rng: &mut impl Rng,
    candidates: &[Candidate],
    prompt_tokens: u64,
    means: &PoolMeans,
    tuning: &Tuning,
    values: &mut Vec<f64>,
) -> Choice {
    values.clear();
    let mut any_is_stale = false;
    values.extend(candidates.iter().map(|c| {
        any_is_stale |= c.is_stale;
        priced(c, prompt_tokens, means, tuning).1
    }));
    let uncached = |i: usize| prompt_tokens.saturating_sub(candidates[i].matched_tokens) as f64;
    let band = |i: usize| one_request(uncached(i), means, tuning);
    let index = if any_is_stale {
        least_of_stale(rng, values, |i| candidates[i].is_stale, band)
    } else {
        least(rng, values)
    };
    let chosen = &candidates[index];
    let reason = if chosen.matched_tokens > 0 { Reason::CostWithPrefix } else { Reason::CostWithoutPrefix };
    Choice { index, reason, cost: priced(chosen, prompt_tokens, means, tuning).0 }
}
