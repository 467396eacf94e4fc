//! Fewest arrivals over the window. An engine busy with long requests has a low rate, so this picks the busiest;
//! kept to show that, and for those who come from routers that do it.

use super::{Candidate, Choice, Habits};
use crate::decision::Reason;

/// A backend that never got a request wins; else the fewest arrivals; the first of equals in list order. Only those
/// that `is_in` lets in, which must be one at least.
pub(crate) fn lowest_qps(
    candidates: &[Candidate],
    habits: &[Habits],
    is_in: impl Fn(&Candidate) -> bool,
    reason: Reason,
) -> Choice {
    let allowed = (0..candidates.len()).filter(|&i| is_in(&candidates[i]));
    let index = allowed.min_by_key(|&i| habits[i].arrivals.map_or(0, |n| n + 1)).unwrap_or(0);
    Choice::new(index, reason)
}
