//! Least cost in prompt tokens: the default.

use rand::Rng;

use super::{Candidate, Choice, least};
use crate::cost::{PoolMeans, cost, one_request};
use crate::decision::{Cost, Reason};

/// Argmin of the cost, at random among exact equals; among stale loads within one mean request of the least.
pub(crate) fn prefix_cost(
    rng: &mut impl Rng,
    candidates: &[Candidate],
    prompt_tokens: u64,
    means: &PoolMeans,
) -> Choice {
    let costs: Vec<Cost> =
        candidates.iter().map(|c| cost(&c.load, prompt_tokens, c.matched_tokens, means)).collect();
    let totals: Vec<f64> = costs.iter().map(Cost::total).collect();
    let band = |i: usize| one_request(costs[i].uncached, means);
    let index = least(rng, &totals, |i| candidates[i].is_stale, band);
    let reason =
        if candidates[index].matched_tokens > 0 { Reason::CostWithPrefix } else { Reason::CostWithoutPrefix };
    Choice { index, reason, cost: costs[index] }
}
