//! Fewest requests in flight.

use rand::Rng;

use super::{Candidate, Choice, Habits, least_of_stale, lowest_qps};
use crate::decision::Reason;

/// Fewest in flight among the candidates that `is_in` lets in: by own counts, else by reports, else (nobody can
/// say) by arrivals. A backend whose count is unknown while others are known ranks as the fullest of them: unknown is
/// not idle. `values` is scratch.
pub(crate) fn least_in_flight(
    rng: &mut impl Rng,
    candidates: &[Candidate],
    habits: &[Habits],
    is_in: impl Fn(&Candidate) -> bool,
    reason: Reason,
    values: &mut Vec<f64>,
) -> Choice {
    let counted = candidates.iter().filter(|c| c.is_counted && is_in(c));
    let Some(fullest) = counted.map(|c| c.load.requests).reduce(f64::max) else {
        return lowest_qps(candidates, habits, is_in, Reason::LowestQps);
    };
    values.clear();
    values.extend(candidates.iter().map(|c| match (is_in(c), c.is_counted) {
        (false, _) => f64::INFINITY,
        (true, true) => c.load.requests,
        (true, false) => fullest,
    }));
    Choice::new(least_of_stale(rng, values, |i| candidates[i].is_stale, |_| 1.0), reason)
}
