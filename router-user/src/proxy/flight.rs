//! A placed request on its way: its count, and what is measured of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use router_policy::{Nanos, Outcome, Usage};

use super::metrics::RequestMetrics;
use super::usage::Tail;
use crate::account::InFlightGuard;
use crate::clock;
use crate::forward::stream::Progress;

/// A placed request on its way: its count, and what is measured of it. Dropped: the client left.
#[derive(Debug)]
pub struct Flight {
    // `None` once it ended.
    guard: Option<InFlightGuard>,
    metrics: Arc<RequestMetrics>,
    /// Whether the answer says how fast the engine is; an error's does not.
    pub(super) is_measured: bool,
    tail: Tail,
}

impl Flight {
    pub(super) fn new(guard: InFlightGuard, metrics: Arc<RequestMetrics>) -> Self {
        Self { guard: Some(guard), metrics, is_measured: true, tail: Tail::default() }
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(guard) = self.guard.take() {
            let (backend, took) = (guard.backend(), since(guard.sent()));
            let usage = if self.is_measured { self.tail.usage() } else { Usage::default() };
            guard.finish(outcome, &usage);
            self.metrics.finished(backend, outcome, took);
            tracing::debug!(backend = backend.index(), outcome = outcome.as_str(), ?took, "request ended");
        }
    }
}

impl Progress for Flight {
    fn data(&mut self, data: &Bytes) {
        self.tail.saw(data);
    }

    fn first_byte(&mut self) {
        if let (true, Some(guard)) = (self.is_measured, self.guard.as_mut()) {
            guard.first_byte();
            self.metrics.first_byte(since(guard.sent()));
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
