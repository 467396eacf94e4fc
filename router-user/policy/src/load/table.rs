//! Where counts meet those of other router processes.

use router_common::BackendId;

use crate::time::Nanos;

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

/// What the kernel sees at one backend, beside the counts and never added to them: it sees the same requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Requests sent whose answer has not begun.
    pub awaiting: u64,
    /// Answers that have begun and not ended.
    pub streaming: u64,
    /// Seconds since the last byte came from there; `None` = none ever did.
    pub silent_seconds: Option<f64>,
}

/// What the host of an engine told of it, on packets that came from there anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Requests in flight there, of all clients. It may be a lie.
    pub in_flight: u32,
    /// What the router processes of this host had in flight there when it came.
    pub ours: u32,
    /// When it came.
    pub at: Nanos,
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
    /// What the kernel sees at row `id` at the moment; `None` where it does not look. Asked for records only.
    fn seen(&self, _id: BackendId, _now: Nanos) -> Option<Seen> {
        None
    }
    /// To be asked after `publish` of a choice at row `id`: whether another process counted there since the others'
    /// requests were `before`, and it is this process that gives way. Of several at once not all may.
    fn gives_way(&self, _id: BackendId, _before: u32) -> bool {
        false
    }
    /// What the host of the engine at row `id` last told in band; `None` where it never did.
    fn told(&self, _id: BackendId) -> Option<Told> {
        None
    }
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
