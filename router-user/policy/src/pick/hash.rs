//! A hash ring with bounded load, for `session` and `consistent-hash`.
//!
//! Rendezvous hashing: every backend has a score for the key, the highest owns it; so a backend that comes or goes
//! moves only the keys it owns. Bounded load (Mirrokni and others, 2016): an owner with more than the load factor
//! times the mean in flight is passed over for the next score.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Candidate, Choice, Habits};
use crate::decision::Reason;

/// The backend with the highest score that is not overloaded. O(n), no allocation.
pub(crate) fn hash_ring(candidates: &[Candidate], habits: &[Habits], key: u64, load_factor: f64) -> Choice {
    let in_flight: f64 = candidates.iter().map(|c| c.load.requests).sum();
    // The new request counts in the mean, so that the bound is never below one.
    let mean = (in_flight + 1.0) / candidates.len().max(1) as f64;
    let bound = (load_factor * mean).ceil();
    let score = |i: usize| xxh3_64_with_seed(&key.to_le_bytes(), habits[i].ring_seed);
    let best = |is_in: &dyn Fn(&Candidate) -> bool| {
        (0..candidates.len()).filter(|&i| is_in(&candidates[i])).max_by_key(|&i| score(i))
    };
    let owner = best(&|_| true).unwrap_or(0);
    match best(&|c| c.load.requests + 1.0 <= bound) {
        Some(chosen) if chosen != owner => Choice::new(chosen, Reason::HashSpill),
        _ => Choice::new(owner, Reason::HashOwner),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests_support::candidate;
    use super::{Candidate, Choice, Habits};
    use crate::decision::Reason;

    fn ring(n: usize) -> Vec<Candidate> {
        (0..n).map(|row| candidate(row, 0.0)).collect()
    }

    fn hash_ring(candidates: &[Candidate], key: u64) -> Choice {
        let seeds = (0..candidates.len() as u64).map(|row| 1000 + row);
        let habits: Vec<Habits> = seeds.map(|ring_seed| Habits { ring_seed, ..Habits::default() }).collect();
        super::hash_ring(candidates, &habits, key, 1.25)
    }

    #[test]
    fn a_backend_that_leaves_moves_only_its_own_keys() {
        let (all, fewer) = (ring(8), ring(7));
        let mut owned = [0; 8];
        for key in 0..4000 {
            let before = hash_ring(&all, key).index;
            owned[before] += 1;
            if before < 7 {
                assert_eq!(hash_ring(&fewer, key).index, before, "key {key}");
            }
        }
        assert!(owned.iter().all(|n| (400..600).contains(n)), "{owned:?}");
    }

    #[test]
    fn nobody_gets_more_than_the_factor_times_the_mean() {
        let mut ring = ring(4);
        for _ in 0..100 {
            let choice = hash_ring(&ring, 7);
            ring[choice.index].load.requests += 1.0;
        }
        let most = ring.iter().map(|c| c.load.requests).fold(0.0, f64::max);
        assert!(most <= 32.0, "one key alone spills over: {most}");
        let owner = hash_ring(&self::ring(4), 7);
        assert_eq!(owner.reason, Reason::HashOwner);
    }
}
