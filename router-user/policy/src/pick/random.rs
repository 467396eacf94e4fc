//! Uniformly.

use rand::{Rng, RngExt};

use super::{Candidate, Choice};
use crate::decision::Reason;

/// Any of them.
pub(crate) fn random(rng: &mut impl Rng, candidates: &[Candidate]) -> Choice {
    Choice::new(rng.random_range(0..candidates.len().max(1)), Reason::Random)
}
