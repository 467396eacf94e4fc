//! Longest match from a threshold on, else a fallback: the policy of the reports, repaired where it was broken
//! (the prompt is inserted under the choice whichever branch made it, and the default fallback is live load).

use rand::Rng;

use super::{Candidate, Choice, least_in_flight, lowest_qps};
use crate::config::Fallback;
use crate::decision::Reason;

/// Among those with the longest match of at least `min_blocks` the least in flight; else the fallback.
pub(crate) fn prefix_threshold(
    rng: &mut impl Rng,
    candidates: &[Candidate],
    min_blocks: u64,
    fallback: Fallback,
) -> Choice {
    let longest = candidates.iter().map(|c| c.matched_blocks).max().unwrap_or(0);
    if longest == 0 || u64::from(longest) < min_blocks {
        return match fallback {
            Fallback::LeastInFlight => least_in_flight(rng, candidates, Reason::BelowThresholdLeastInFlight),
            Fallback::LowestQps => lowest_qps(candidates, Reason::BelowThresholdLowestQps),
        };
    }
    let holders: Vec<usize> =
        (0..candidates.len()).filter(|&i| candidates[i].matched_blocks == longest).collect();
    let among: Vec<Candidate> = holders.iter().map(|&i| candidates[i]).collect();
    let choice = least_in_flight(rng, &among, Reason::PrefixMatch);
    Choice { index: holders[choice.index], ..choice }
}
