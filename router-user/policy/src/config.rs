//! Which policy, with which numbers.

use std::time::Duration;

use crate::tuning::Tuning;

/// 168 MiB at 48 bytes each.
const INDEX_BLOCKS_MAX: usize = (4 << 20) / 8 * 7;

/// How a backend is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyName {
    /// Least cost in prompt tokens: affinity and load in one comparison.
    #[default]
    PrefixCost,
    /// Longest match from a threshold on, else a fallback.
    PrefixThreshold,
    /// Fewest requests in flight.
    LeastInFlight,
    /// One after the other.
    RoundRobin,
    /// Fewer in flight of two taken by chance.
    PowerOfTwo,
    /// Uniformly.
    Random,
    /// By the session's name on a hash ring with bounded load.
    Session,
    /// By the prompt's first blocks on a hash ring with bounded load.
    ConsistentHash,
    /// Fewest arrivals over a window; kept to show why that fails.
    LowestQps,
}

impl PolicyName {
    /// All policies, in the order of the documentation.
    pub const ALL: [Self; 9] = [
        Self::PrefixCost,
        Self::LeastInFlight,
        Self::PowerOfTwo,
        Self::RoundRobin,
        Self::Random,
        Self::Session,
        Self::ConsistentHash,
        Self::LowestQps,
        Self::PrefixThreshold,
    ];

    /// The name as flags and configuration write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PrefixCost => "prefix-cost",
            Self::PrefixThreshold => "prefix-threshold",
            Self::LeastInFlight => "least-in-flight",
            Self::RoundRobin => "round-robin",
            Self::PowerOfTwo => "p2c",
            Self::Random => "random",
            Self::Session => "session",
            Self::ConsistentHash => "consistent-hash",
            Self::LowestQps => "lowest-qps",
        }
    }

    /// The policy of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.as_str() == name)
    }
}

/// What `prefix-threshold` does below its threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Fewest requests in flight.
    #[default]
    LeastInFlight,
    /// Fewest arrivals over the window.
    LowestQps,
}

impl Fallback {
    /// The name as flags and configuration write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeastInFlight => "least-in-flight",
            Self::LowestQps => "lowest-qps",
        }
    }

    /// The fallback of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::LeastInFlight, Self::LowestQps].into_iter().find(|f| f.as_str() == name)
    }
}

/// Whether this process's own counts may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnCounts {
    /// They are exact: the normal case.
    #[default]
    Exact,
    /// They are not there: engine reports, corrected by what was dispatched since, are all there is.
    Unknown,
}

/// Numbers of the policy.
#[derive(Clone, Debug)]
pub struct PolicyConfig {
    /// Which policy.
    pub policy: PolicyName,
    /// `prefix-threshold`: characters of match from which affinity decides; rounded down to whole blocks.
    pub prefix_min_match: u64,
    /// `prefix-threshold`: the choice below the threshold.
    pub fallback: Fallback,
    /// Window of `lowest-qps`.
    pub request_stats_window: Duration,
    /// Interval between two reports of an engine; foreign load fades over three of them.
    pub scrape_interval: Duration,
    /// Whether own counts are there.
    pub own_counts: OwnCounts,
    /// Blocks the index keeps over all backends at most; beyond it the oldest go.
    pub index_blocks_max: usize,
    /// `consistent-hash`: leading blocks of 256 characters that make the key, at least 1.
    pub hash_blocks: u32,
    /// Whether decisions carry their grounds; costs an allocation each.
    pub record: bool,
    /// Constants of cost and learning.
    pub tuning: Tuning,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            policy: PolicyName::default(),
            prefix_min_match: 0,
            fallback: Fallback::default(),
            request_stats_window: Duration::from_secs(60),
            scrape_interval: Duration::from_secs(1),
            own_counts: OwnCounts::default(),
            index_blocks_max: INDEX_BLOCKS_MAX,
            hash_blocks: 16,
            record: false,
            tuning: Tuning::default(),
        }
    }
}
