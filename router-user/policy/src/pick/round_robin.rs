//! One after the other.

use super::{Choice, Habits};
use crate::decision::Reason;

/// Whose turn is longest ago; the first of the list among those that never had one. Right for pools that overlap
/// and for candidates that come and go, where a position in a list is not.
pub(crate) fn round_robin(habits: &[Habits]) -> Choice {
    let index = (0..habits.len()).min_by_key(|&i| habits[i].last_turn).unwrap_or(0);
    Choice::new(index, Reason::RoundRobin)
}
