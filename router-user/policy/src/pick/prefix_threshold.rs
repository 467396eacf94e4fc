//! Longest match from a threshold on, else a fallback: the policy of the reports, repaired where it was broken
//! (the prompt is inserted under the choice whichever branch made it, and the default fallback is live load).

use rand::Rng;

use super::{Candidate, Choice, Habits, least_in_flight, lowest_qps};
use crate::config::Fallback;
use crate::decision::Reason;

/// Among those with the longest match of at least `min_blocks` the least in flight; else the fallback. `values` is
/// scratch.
pub(crate) fn prefix_threshold(
    rng: &mut impl Rng,
    candidates: &[Candidate],
    habits: &[Habits],
    min_blocks: u64,
    fallback: Fallback,
    values: &mut Vec<f64>,
) -> Choice {
    let longest = candidates.iter().map(|c| c.matched_blocks).max().unwrap_or(0);
    if longest > 0 && u64::from(longest) >= min_blocks {
        let holds_longest = |c: &Candidate| c.matched_blocks == longest;
        return least_in_flight(rng, candidates, habits, holds_longest, Reason::PrefixMatch, values);
    }
    match fallback {
        Fallback::LeastInFlight => {
            least_in_flight(rng, candidates, habits, |_| true, Reason::BelowThresholdLeastInFlight, values)
        }
        Fallback::LowestQps => lowest_qps(candidates, habits, |_| true, Reason::BelowThresholdLowestQps),
    }
}
