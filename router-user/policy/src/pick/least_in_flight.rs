//! Fewest requests in flight.

use rand::Rng;

use super::{Candidate, Choice, least, lowest_qps};
use crate::decision::Reason;

/// Fewest in flight by own counts, else by reports, else (nobody can say) by arrivals. A backend whose count is
/// unknown while others are known ranks as the fullest of them: unknown is not idle.
pub(crate) fn least_in_flight(rng: &mut impl Rng, candidates: &[Candidate], reason: Reason) -> Choice {
    let fullest = candidates.iter().filter(|c| c.is_counted).map(|c| c.load.requests).reduce(f64::max);
    let Some(fullest) = fullest else { return lowest_qps(candidates, Reason::LowestQps) };
    let counts: Vec<f64> =
        candidates.iter().map(|c| if c.is_counted { c.load.requests } else { fullest }).collect();
    let index = least(rng, &counts, |i| candidates[i].is_stale, |_| 1.0);
    Choice::new(index, reason)
}
