//! What was decided and why: what logs, metrics, headers and tests print.

use router_common::BackendId;

use crate::load::engine::Dispatch;
use crate::placement::Record;
use crate::prefix::Pin;
use crate::time::Nanos;

/// Why a backend was chosen. A closed set: it labels metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Least cost, and part of the prompt is cached there.
    CostWithPrefix,
    /// Least cost, nothing cached there.
    CostWithoutPrefix,
    /// Longest match, at least the threshold.
    PrefixMatch,
    /// Match below the threshold: fewest in flight.
    BelowThresholdLeastInFlight,
    /// Match below the threshold: fewest arrivals.
    BelowThresholdLowestQps,
    /// Fewest in flight.
    LeastInFlight,
    /// Its turn.
    RoundRobin,
    /// Chance.
    Random,
    /// Fewest arrivals.
    LowestQps,
    /// The fewer in flight of two taken by chance.
    PowerOfTwo,
    /// Its place in the ring, and not overloaded.
    HashOwner,
    /// Its place in the ring after overloaded ones.
    HashSpill,
    /// The request names no session: fewest in flight.
    NoSession,
    /// The request has no shape: fewest in flight.
    Unshaped,
    /// The caller chose.
    Forced,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 15] = [
        Self::CostWithPrefix,
        Self::CostWithoutPrefix,
        Self::PrefixMatch,
        Self::BelowThresholdLeastInFlight,
        Self::BelowThresholdLowestQps,
        Self::LeastInFlight,
        Self::RoundRobin,
        Self::Random,
        Self::LowestQps,
        Self::PowerOfTwo,
        Self::HashOwner,
        Self::HashSpill,
        Self::NoSession,
        Self::Unshaped,
        Self::Forced,
    ];

    /// Whether it was the least by load, among all or among those with the longest match.
    pub(crate) const fn is_by_load(self) -> bool {
        matches!(
            self,
            Self::CostWithPrefix
                | Self::CostWithoutPrefix
                | Self::PrefixMatch
                | Self::BelowThresholdLeastInFlight
                | Self::LeastInFlight
                | Self::NoSession
                | Self::Unshaped
        )
    }

    /// The reason as one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CostWithPrefix => "cost_with_prefix",
            Self::CostWithoutPrefix => "cost_without_prefix",
            Self::PrefixMatch => "prefix_match",
            Self::BelowThresholdLeastInFlight => "below_threshold_least_in_flight",
            Self::BelowThresholdLowestQps => "below_threshold_lowest_qps",
            Self::LeastInFlight => "least_in_flight",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LowestQps => "lowest_qps",
            Self::PowerOfTwo => "power_of_two",
            Self::HashOwner => "hash_owner",
            Self::HashSpill => "hash_spill",
            Self::NoSession => "no_session",
            Self::Unshaped => "unshaped",
            Self::Forced => "forced",
        }
    }
}

/// The terms of the cost at the chosen backend, in prompt tokens (policy.md).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// U: prompt tokens not cached there.
    pub uncached: f64,
    /// U × 0.2 × A: what its prefill costs those in flight there.
    pub disturbance: f64,
    /// Q: prefill queued before it.
    pub queued: f64,
    /// 0.05 × C: slower decoding.
    pub context: f64,
    /// What the KV pool lacks.
    pub overflow: f64,
    /// What waiting for a seat costs.
    pub seat: f64,
}

impl Cost {
    /// The sum that is compared.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.uncached + self.disturbance + self.queued + self.context + self.overflow + self.seat
    }
}

/// A dispatched request: the count it holds. Not clonable; ends in `on_finished`, exactly once.
#[derive(Debug)]
#[must_use = "a ticket holds a count that on_finished gives back"]
pub struct Ticket {
    pub(crate) id: u64,
    pub(crate) backend: BackendId,
    /// Generation of the backend's registration: a removed and re-added backend starts at 0.
    pub(crate) generation: u64,
    pub(crate) uncached_tokens: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) stream: bool,
    pub(crate) sent: Nanos,
    pub(crate) first_byte: Option<Nanos>,
    /// The prompt's blocks in the index, held while the request is in flight.
    pub(crate) pin: Option<Pin>,
    pub(crate) prompt_bytes: u64,
    /// What the prompt's tokens were estimated with.
    pub(crate) chars_per_token: f64,
}

impl Ticket {
    /// Where the request went.
    #[must_use]
    pub const fn backend(&self) -> BackendId {
        self.backend
    }

    /// When it was counted.
    #[must_use]
    pub const fn sent(&self) -> Nanos {
        self.sent
    }

    /// Whether the client asked for a stream.
    #[must_use]
    pub const fn stream(&self) -> bool {
        self.stream
    }

    pub(crate) const fn dispatch(&self) -> Dispatch {
        Dispatch {
            id: self.id,
            uncached_tokens: self.uncached_tokens,
            prompt_tokens: self.prompt_tokens,
            stream: self.stream,
        }
    }

    /// When the first byte of its answer came.
    #[must_use]
    pub const fn first_byte(&self) -> Option<Nanos> {
        self.first_byte
    }
}

/// One placement, already counted.
#[derive(Debug)]
pub struct Decision {
    /// Where, and the count it holds.
    pub ticket: Ticket,
    /// Why.
    pub reason: Reason,
    /// Prompt tokens the index believes cached there.
    pub matched_tokens: u64,
    /// Prompt tokens, estimated.
    pub prompt_tokens: u64,
    /// The cost there; zeros for policies that compare none.
    pub cost: Cost,
    /// How many backends were compared.
    pub candidates: usize,
    /// Whether another process chose the same backend at the same moment, and this one took another.
    pub moved: bool,
    /// Everything it was made from, when records are kept.
    pub record: Option<Box<Record>>,
}

/// Why no backend was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// No backend is configured.
    #[error("there is no backend: none is configured, or no name of one is resolved")]
    NoBackend,
    /// Every backend's models are known and none is the one asked for.
    #[error("no backend serves the model")]
    UnknownModel,
    /// Backends serve the model, but none of them does what the path asks for.
    #[error("no backend does this for the model")]
    OtherTask,
    /// Backends serve the model, but none is ready.
    #[error("no backend is ready")]
    NoneReady,
    /// Ready backends are all at their `max-in-flight`.
    #[error("every ready backend is at its limit of requests in flight")]
    AllFull,
    /// Every ready backend was already tried for this request.
    #[error("every ready backend was tried")]
    AllTried,
}
