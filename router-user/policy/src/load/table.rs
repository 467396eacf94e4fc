//! Where counts meet those of other router processes.

use router_common::BackendId;

/// Requests and prompt tokens in flight at one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests dispatched whose answer has not ended (A).
    pub requests: u32,
    /// Uncached prompt tokens of requests whose first byte has not come (Q).
    pub q_tokens: u64,
    /// Prompt tokens of all requests in flight (C).
    pub c_tokens: u64,
}

/// Where counts are shared with other router processes of the host.
///
/// One call a pick and candidate; must be cheap (no system call).
pub trait LoadTable: Send {
    /// Whether there may be others at all.
    fn is_shared(&self) -> bool {
        true
    }
    /// The sum over the other processes' slots at row `id`.
    fn others(&self, id: BackendId) -> InFlight;
    /// Makes this process's own counts at row `id` visible to the others. Values beyond `u32` are clamped.
    fn publish(&self, id: BackendId, own: InFlight);
}

/// The table of a process that shares with nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl LoadTable for Alone {
    fn is_shared(&self) -> bool {
        false
    }

    fn others(&self, _id: BackendId) -> InFlight {
        InFlight::default()
    }

    fn publish(&self, _id: BackendId, _own: InFlight) {}
}
