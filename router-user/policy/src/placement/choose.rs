//! Which of the candidates: the configured policy, and what takes its place where a request lacks what it goes by.

use super::Placement;
use super::candidates::Scene;
use crate::config::PolicyName;
use crate::decision::Reason;
use crate::pick::{self, Candidate, Choice, Habits};
use crate::prefix::BLOCK_BYTES;

impl Placement {
    /// The choice among at least one candidate. `values` is scratch.
    pub(super) fn choose(
        &mut self,
        scene: &Scene<'_>,
        candidates: &[Candidate],
        habits: &[Habits],
        values: &mut Vec<f64>,
    ) -> Choice {
        let (rng, config, request) = (&mut self.rng, &self.config, scene.request);
        let ring = |key| pick::hash_ring(candidates, habits, key, config.tuning.hash_load_factor);
        let mut least_in_flight =
            |reason| pick::least_in_flight(&mut *rng, candidates, habits, |_| true, reason, values);
        let wants_shape = matches!(
            config.policy,
            PolicyName::PrefixCost | PolicyName::PrefixThreshold | PolicyName::ConsistentHash
        );
        if wants_shape && !request.shaped {
            return least_in_flight(Reason::Unshaped);
        }
        match config.policy {
            PolicyName::LeastInFlight => least_in_flight(Reason::LeastInFlight),
            PolicyName::Session => match request.session {
                Some(key) => ring(key),
                None => least_in_flight(Reason::NoSession),
            },
            PolicyName::ConsistentHash => {
                let last = request.chain.blocks.iter().take(config.hash_blocks.max(1) as usize).next_back();
                match last {
                    Some(&hash) => ring(hash as u64),
                    None => least_in_flight(Reason::Unshaped),
                }
            }
            PolicyName::PrefixCost => {
                let prompt = scene.prompt_tokens();
                pick::prefix_cost(rng, candidates, prompt, scene.means, &config.tuning, values)
            }
            PolicyName::PrefixThreshold => {
                let min_blocks = config.prefix_min_match / BLOCK_BYTES as u64;
                pick::prefix_threshold(rng, candidates, habits, min_blocks, config.fallback, values)
            }
            PolicyName::PowerOfTwo => pick::p2c(rng, candidates),
            PolicyName::RoundRobin => pick::round_robin(habits),
            PolicyName::Random => pick::random(rng, candidates),
            PolicyName::LowestQps => pick::lowest_qps(candidates, habits, |_| true, Reason::LowestQps),
        }
    }
}
