//! From a shape to an engine's answer: pick, send, and pick again where nothing was sent.
//!
//! Invariant: every pick's count is given back or travels on with the answer; a backend is asked once at most.

use std::sync::Arc;

use router_policy::{BackendId, Outcome, PickError, RequestShape, Usage};

use super::flight::{Flight, since};
use super::payload::Payload;
use super::request::Outgoing;
use super::{Proxy, Retry};
use crate::account::{InFlightGuard, Placed};
use crate::backends::Target;
use crate::clock;
use crate::error::ProxyError;
use crate::forward::connect::ConnectError;
use crate::forward::stream::Progress;
use crate::forward::{Answer, Peer, SendError};

/// An engine's answer, and what it is counted by.
pub(super) struct Sent {
    pub(super) answer: Answer,
    pub(super) target: Arc<Target>,
    pub(super) placed: Placed,
    pub(super) flight: Flight,
}

impl Proxy {
    /// Picks and sends until a backend answers. Each backend is tried once at most, so this ends.
    pub(super) async fn place(
        &self,
        shape: &RequestShape,
        outgoing: &Outgoing,
        payload: &mut Payload,
    ) -> Result<Sent, ProxyError> {
        let mut tried: Vec<BackendId> = Vec::new();
        let mut unreachable: Option<ConnectError> = None;
        loop {
            let (placed, guard) = match self.pick(shape, &tried, outgoing.id()) {
                Ok(picked) => picked,
                Err(cause) => return Err(no_backend(cause, shape, unreachable)),
            };
            // Removed between the pick and here: the guard gives the count back.
            let Some(target) = self.shared.registry.get(placed.backend) else {
                guard.finish(Outcome::NeverSent, &Usage::default());
                tried.push(placed.backend);
                continue;
            };
            let flight = Flight::new(guard, Arc::clone(&self.shared.metrics));
            let peer = Peer { id: target.id, addr: target.addr };
            let sent = clock::now();
            let once = payload.once();
            let request = || outgoing.to(&target, payload.body());
            match self.upstream.send(peer, sent, once, request).await {
                Ok(answer) => {
                    if answer.connected {
                        target.connect_succeeded(sent);
                    }
                    return Ok(Sent { answer, target, placed, flight });
                }
                Err(SendError::Connect(error)) => {
                    flight.ended(Outcome::NeverSent);
                    if error.is_local() {
                        return Err(ProxyError::ConnectFailed(error.to_string()));
                    }
                    self.back_off(&target, &error);
                    tried.push(placed.backend);
                    unreachable = Some(error);
                }
                Err(SendError::NoAnswer(error)) => {
                    if let Some(fault) = payload.fault(self.shared.limits.body_bytes_max) {
                        flight.ended(Outcome::ClientGone);
                        return Err(fault);
                    }
                    flight.ended(Outcome::UpstreamFailed);
                    return Err(ProxyError::UpstreamFailed(error.to_string()));
                }
            }
        }
    }

    fn pick(
        &self,
        shape: &RequestShape,
        tried: &[BackendId],
        request: &str,
    ) -> Result<(Placed, InFlightGuard), PickError> {
        let before = clock::now();
        let mut picked = self.shared.ledger.pick(shape, tried)?;
        let placed = &mut picked.0;
        if let (Some(keep), Some(record)) = (&self.shared.keep_record, placed.record.take()) {
            keep.0(record, request);
        }
        self.shared.metrics.decided(since(before));
        self.shared.metrics.placed(
            placed.backend,
            placed.reason,
            placed.matched_tokens,
            placed.prompt_tokens,
        );
        if !tried.is_empty() {
            self.shared.metrics.retried(Retry::ConnectFailed);
        }
        Ok(picked)
    }

    /// Nobody there: no requests until the engine's watch, which asks when the back-off ends, finds it back; and if
    /// nobody listens, what it cached is gone.
    fn back_off(&self, target: &Target, error: &ConnectError) {
        let limits = &self.shared.limits;
        let now = clock::now();
        let until = target.connect_failed(now, limits.backoff_min, limits.backoff_max);
        self.shared.ledger.ready(target.id, false);
        if error.is_refused() {
            self.shared.ledger.cache_lost(target.id);
        }
        tracing::warn!(
            backend = target.url,
            %error,
            pause_ms = until.0.saturating_sub(now.0) / 1_000_000,
            "cannot connect to a backend: no requests there for a while"
        );
    }
}

/// What the client is told when no candidate is left: why the last one failed, if one was tried.
fn no_backend(cause: PickError, shape: &RequestShape, unreachable: Option<ConnectError>) -> ProxyError {
    match unreachable {
        Some(error) => ProxyError::ConnectFailed(error.to_string()),
        None => ProxyError::NoBackend { cause, model: shape.model.as_deref().map(str::to_owned) },
    }
}
