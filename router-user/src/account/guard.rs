//! The count of one request, held from the pick to its end.

use std::sync::Arc;

use router_policy::{BackendId, Nanos, Outcome, Ticket, Usage};

use super::ledger::Ledger;

/// One request in flight. It rose with the pick; it falls when this ends, exactly once, whichever way:
///
/// | end | how | outcome |
/// |---|---|---|
/// | the answer's body ended | [`InFlightGuard::finish`] by the body's wrapper | `Completed` |
/// | no connection: refused, failed, timed out | [`InFlightGuard::finish`] before the next pick | `NeverSent` |
/// | the engine broke off before its headers | [`InFlightGuard::finish`] | `UpstreamFailed` |
/// | the engine broke off in its body | [`InFlightGuard::finish`] by the body's wrapper | `UpstreamFailed` |
/// | the client left before headers | dropped with the request's future | `ClientGone` |
/// | the client left in the body | dropped with the body | `ClientGone` |
/// | the router's deadline on shutdown | dropped with the worker's runtime | `ClientGone` |
/// | a panic in the request's task | dropped by unwinding | `ClientGone` |
///
/// (`kill -9` of the process is the kernel's to notice: its slots are freed when its anchor socket closes.)
#[derive(Debug)]
#[must_use = "dropping it says that the client left"]
pub struct InFlightGuard {
    ledger: Arc<Ledger>,
    // `None` once it ended.
    ticket: Option<Ticket>,
    backend: BackendId,
    sent: Nanos,
    has_first_byte: bool,
}

impl InFlightGuard {
    pub(super) const fn new(ledger: Arc<Ledger>, ticket: Ticket) -> Self {
        let (backend, sent) = (ticket.backend(), ticket.sent());
        Self { ledger, ticket: Some(ticket), backend, sent, has_first_byte: false }
    }

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

    /// Whether the first byte of the answer's body came.
    #[must_use]
    pub const fn has_first_byte(&self) -> bool {
        self.has_first_byte
    }

    /// After how many seconds a request like this is expected to have its first byte there. Takes the ledger's lock.
    #[must_use]
    pub fn expected_seconds(&self) -> f64 {
        self.ticket.as_ref().map_or(0.0, |ticket| self.ledger.expected_seconds(ticket))
    }

    /// The first byte of the answer's body came. Later calls do nothing.
    pub fn first_byte(&mut self) {
        if let (false, Some(ticket)) = (self.has_first_byte, self.ticket.as_mut()) {
            self.has_first_byte = true;
            self.ledger.first_byte(ticket);
        }
    }

    /// The request ended; `usage` is what its answer said of itself.
    pub fn finish(mut self, outcome: Outcome, usage: &Usage) {
        if let Some(ticket) = self.ticket.take() {
            self.ledger.finished(ticket, outcome, usage);
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.ledger.finished(ticket, Outcome::ClientGone, &Usage::default());
        }
    }
}
