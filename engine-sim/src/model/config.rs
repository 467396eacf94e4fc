//! The settings of one engine, and which of them cannot work.

use super::profile::Profile;
use super::prompt::BLOCK_TOKENS;

/// Blocks of one tier, at most: each costs about 48 bytes of the simulator's memory.
const BLOCKS_MAX: u32 = 100_000_000;

/// What one engine can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineConfig {
    /// What steps cost.
    pub profile: Profile,
    /// Seats: requests running at once, at least 1.
    pub max_num_seqs: u32,
    /// Tokens computed in one step, at least `max_num_seqs`.
    pub max_num_batched_tokens: u32,
    /// KV blocks of 16 tokens, at least 1. A request longer than all of them is refused.
    pub num_gpu_blocks: u32,
    /// Blocks that host memory keeps cached beside them; the pool is both. 0 is no host tier.
    ///
    /// What runs together, and so the longest request, is bounded by `num_gpu_blocks` alone.
    pub host_blocks: u32,
    /// Requests not running, at most; one more is refused.
    pub max_waiting: u32,
}

impl EngineConfig {
    /// The usual server settings for a profile: 256 seats and a queue of 100,000.
    #[must_use]
    pub fn of(profile: Profile) -> Self {
        Self {
            profile,
            max_num_seqs: 256,
            max_num_batched_tokens: profile.max_num_batched_tokens,
            num_gpu_blocks: profile.num_gpu_blocks,
            host_blocks: 0,
            max_waiting: 100_000,
        }
    }

    /// Tokens of prompt and answer that fit when nothing else runs.
    #[must_use]
    pub fn max_model_tokens(&self) -> u32 {
        self.num_gpu_blocks.saturating_mul(BLOCK_TOKENS)
    }

    /// Refuses settings under which nothing, or not everything, could run.
    ///
    /// # Errors
    /// Names the setting.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (seats, budget) = (self.max_num_seqs, self.max_num_batched_tokens);
        if seats == 0 {
            return Err(ConfigError::NoSeats);
        }
        if budget < seats {
            return Err(ConfigError::BudgetBelowSeats { budget, seats });
        }
        if !(1..=BLOCKS_MAX).contains(&self.num_gpu_blocks) {
            return Err(ConfigError::Blocks);
        }
        if self.host_blocks > BLOCKS_MAX {
            return Err(ConfigError::HostBlocks);
        }
        Ok(())
    }
}

/// Settings under which an engine could not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Nothing could ever run.
    #[error("max_num_seqs must be at least 1")]
    NoSeats,
    /// Some of a full batch would get no token.
    #[error("max_num_batched_tokens ({budget}) must be at least max_num_seqs ({seats})")]
    BudgetBelowSeats {
        /// `max_num_batched_tokens`.
        budget: u32,
        /// `max_num_seqs`.
        seats: u32,
    },
    /// Nothing could ever be admitted.
    #[error("num_gpu_blocks must be from 1 to 100000000")]
    Blocks,
    /// More than the simulator has memory for.
    #[error("host_blocks must be at most 100000000")]
    HostBlocks,
}
