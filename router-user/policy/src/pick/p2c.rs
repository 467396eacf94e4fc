//! Power of two choices.

use rand::{Rng, RngExt};

use super::{Candidate, Choice};
use crate::decision::Reason;

/// Two different candidates by chance, then the one with fewer in flight; the first taken among equals, which is by
/// chance too.
pub(crate) fn p2c(rng: &mut impl Rng, candidates: &[Candidate]) -> Choice {
    let n = candidates.len();
    let first = rng.random_range(0..n.max(1));
    if n < 2 {
        return Choice::new(first, Reason::PowerOfTwo);
    }
    let second = (first + rng.random_range(1..n)) % n;
    let fewer = candidates[second].load.requests < candidates[first].load.requests;
    Choice::new(if fewer { second } else { first }, Reason::PowerOfTwo)
}

#[cfg(test)]
mod tests {
    use super::super::tests_support::candidate;
    use super::p2c;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    #[test]
    fn never_the_fullest_of_three_and_every_other_one() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let three = [candidate(0, 1.0), candidate(1, 9.0), candidate(2, 1.0)];
        let mut hits = [0; 3];
        for _ in 0..900 {
            hits[p2c(&mut rng, &three).index] += 1;
        }
        assert_eq!(hits[1], 0, "two are compared, so the fullest never wins");
        assert!(hits[0] > 300 && hits[2] > 300, "{hits:?}");
        assert_eq!(p2c(&mut rng, &three[..1]).index, 0);
    }
}
