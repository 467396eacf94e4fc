//! A placed request on its way: its count, what is measured of it, and what its end says of the engine.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use router_policy::{Nanos, Outcome, Usage};

use super::Shared;
use super::usage::Tail;
use crate::account::InFlightGuard;
use crate::backends::Target;
use crate::backends::health::Cause;
use crate::clock;
use crate::forward::retry;
use crate::forward::stream::Progress;

/// A client that leaves without a byte, later than expected by this factor and time, says that the engine does not
/// answer. Sooner it says nothing.
const LATE_FACTOR: f64 = 4.0;
const LATE_SECONDS: f64 = 1.0;

/// A placed request on its way: its count, and what is measured of it. Dropped: the client left.
#[derive(Debug)]
pub struct Flight {
    // `None` once it ended.
    guard: Option<InFlightGuard>,
    shared: Arc<Shared>,
    target: Arc<Target>,
    /// What the engine answered, once it did.
    status: Option<StatusCode>,
    /// It is an error that the engine answers for.
    is_failure: bool,
    tail: Tail,
}

impl Flight {
    pub(super) fn new(guard: InFlightGuard, target: Arc<Target>, shared: Arc<Shared>) -> Self {
        Self { guard: Some(guard), shared, target, status: None, is_failure: false, tail: Tail::default() }
    }

    /// The engine it goes to.
    pub(super) const fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// The engine's answer has this head. One that asks for a rest only says that it has enough to do.
    pub(super) fn is_answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = Some(status);
        self.is_failure = status.is_server_error() && retry::rest_asked(headers).is_none();
        if let (StatusCode::SWITCHING_PROTOCOLS, Some(guard)) = (status, self.guard.as_mut()) {
            // A tunnel may be silent for as long as it likes.
            guard.first_byte();
        }
    }

    /// Whether the answer says how fast the engine is; an error's does not.
    fn is_measured(&self) -> bool {
        self.status.is_none_or(|status| status.is_success())
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(guard) = self.guard.take() {
            let (backend, took) = (guard.backend(), since(guard.sent()));
            let usage = if self.is_measured() { self.tail.usage() } else { Usage::default() };
            let fault = self.fault(&guard, outcome, took);
            guard.finish(outcome, &usage);
            self.shared.metrics.finished(backend, outcome, took);
            tracing::debug!(backend = backend.index(), outcome = outcome.as_str(), ?took, "request ended");
            if let Some(cause) = fault {
                self.blame(cause);
            }
        }
    }

    /// What the end says against the engine. A 4xx says nothing.
    fn fault(&self, guard: &InFlightGuard, outcome: Outcome, took: Duration) -> Option<Cause> {
        match outcome {
            Outcome::UpstreamFailed => Some(Cause::Cut),
            Outcome::Completed | Outcome::NeverSent if self.is_failure => Some(Cause::Errors),
            Outcome::ClientGone if !guard.has_first_byte() && took.as_secs_f64() > LATE_SECONDS => {
                let is_late = took.as_secs_f64() > LATE_FACTOR * guard.expected_seconds() + LATE_SECONDS;
                let is_silent = !self.target.vitals.has_bytes_since(guard.sent());
                (is_late && is_silent).then_some(Cause::Unanswered)
            }
            _ => None,
        }
    }

    #[cold]
    fn blame(&self, cause: Cause) {
        let Self { target, shared, .. } = self;
        target.vitals.failed(clock::now(), cause, &|trust| shared.ledger.trust(target.id, trust));
        if cause == Cause::Cut {
            // Killed, perhaps.
            target.vitals.look();
        }
    }
}

impl Progress for Flight {
    fn data(&mut self, data: &Bytes) {
        self.target.vitals.saw_bytes();
        self.tail.saw(data);
    }

    fn first_byte(&mut self) {
        if let (true, Some(guard)) = (self.is_measured(), self.guard.as_mut()) {
            guard.first_byte();
            self.target.vitals.answered();
            self.shared.metrics.first_byte(since(guard.sent()));
        }
    }

    fn ended(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn now(&self) -> Nanos {
        clock::now()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end(Outcome::ClientGone);
    }
}

/// Time since then.
pub(super) fn since(earlier: Nanos) -> Duration {
    Duration::from_nanos(clock::now().0.saturating_sub(earlier.0))
}
