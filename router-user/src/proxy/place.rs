//! From a shape to an engine's answer: pick, send, and pick again where nothing was sent.
//!
//! Invariant: every pick's count is given back or travels on with the answer; a backend is asked once at most.

use std::sync::Arc;

use router_policy::{BackendId, Outcome, PickError, RequestShape, Usage};

use super::flight::{Flight, since};
use super::payload::Payload;
use super::request::{Outgoing, ToTarget};
use super::{Proxy, Retry, Shared, compat};
use crate::account::{InFlightGuard, Placed};
use crate::backends::{Registry, Target};
use crate::clock;
use crate::error::ProxyError;
use crate::forward::connect::ConnectError;
use crate::forward::stream::Progress;
use crate::forward::{Answer, Peer, SendError, retry};

/// An engine's answer, and what it is counted by. Boxed where it goes: each way out of a function would copy it.
pub(super) struct Sent {
    pub(super) answer: Answer,
    pub(super) placed: Placed,
    pub(super) flight: Flight,
}

/// Whom a request is not to be placed at.
struct Tried {
    avoided: Vec<BackendId>,
    /// How many of them, at the front, only asked for rest.
    resting: usize,
    /// Times it may still be placed anew.
    reroutes: u8,
}

impl Tried {
    const fn new(resting: Vec<BackendId>, reroutes: u8) -> Self {
        Self { resting: resting.len(), avoided: resting, reroutes }
    }

    /// Everyone but the one that the client asks for.
    fn but(pinned: BackendId, registry: &Registry) -> Self {
        let avoided = registry.all().iter().map(|t| t.id).filter(|&id| id != pinned).collect();
        Self { resting: 0, avoided, reroutes: 0 }
    }

    /// Takes one of the times that it may be placed anew; false if none is left.
    const fn reroute(&mut self) -> bool {
        let is_left = self.reroutes > 0;
        self.reroutes = self.reroutes.saturating_sub(1);
        is_left
    }

    fn push(&mut self, id: BackendId) {
        self.avoided.push(id);
    }

    /// Lets those that asked for rest be asked after all; false if there are none.
    fn forget_resting(&mut self) -> bool {
        let resting = std::mem::take(&mut self.resting);
        self.avoided.drain(..resting);
        resting > 0
    }
}

impl Proxy {
    /// Picks and sends until a backend answers and no other is worth asking. Each is tried once at most, so this
    /// ends. One that is `pinned` is the only one.
    pub(super) async fn place(
        &self,
        shape: &RequestShape,
        pinned: Option<BackendId>,
        outgoing: &Outgoing<'_>,
        payload: &mut Payload,
    ) -> Result<Box<Sent>, ProxyError> {
        self.shared.retries.came();
        let registry = &self.shared.registry;
        let mut tried = match pinned {
            None => Tried::new(registry.resting(clock::now()), self.shared.limits.reroutes_max),
            Some(pinned) => Tried::but(pinned, registry),
        };
        let mut unreachable: Option<ConnectError> = None;
        // Boxed, since it is hardly ever there.
        let mut next: Option<Box<(Placed, InFlightGuard)>> = None;
        loop {
            let picked = next.take().map_or_else(|| self.pick(shape, &mut tried, outgoing), |next| Ok(*next));
            let (placed, guard) = match picked {
                Ok(picked) => picked,
                Err(cause) => {
                    return Err(match pinned {
                        None => no_backend(cause, shape, unreachable),
                        Some(pinned) => compat::refused(pinned, shape, &self.shared),
                    });
                }
            };
            // Removed between the pick and here: the guard gives the count back.
            let Some(target) = self.shared.registry.get(placed.backend) else {
                tried.push(placed.backend);
                guard.finish(Outcome::NeverSent, &Usage::default());
                continue;
            };
            let mut flight = Flight::new(guard, target, Arc::clone(&self.shared));
            match self.send(flight.target(), outgoing, payload).await {
                Ok(answer) => {
                    flight.is_answered(answer.status, &answer.headers);
                    let sent = Box::new(Sent { answer, placed, flight });
                    match self.elsewhere(&sent, shape, &mut tried, outgoing, payload) {
                        Some(other) => {
                            self.turn_away(*sent);
                            next = Some(Box::new(other));
                        }
                        None => return Ok(sent),
                    }
                }
                Err(SendError::Connect(error)) => {
                    tried.push(placed.backend);
                    let target = Arc::clone(flight.target());
                    flight.ended(Outcome::NeverSent);
                    if error.is_local() {
                        return Err(ProxyError::ConnectFailed(error.to_string()));
                    }
                    self.back_off(&target, &error);
                    if !tried.reroute() {
                        return Err(ProxyError::ConnectFailed(error.to_string()));
                    }
                    self.shared.metrics.retried(Retry::ConnectFailed);
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

    async fn send(
        &self,
        target: &Target,
        outgoing: &Outgoing<'_>,
        payload: &mut Payload,
    ) -> Result<Answer, SendError> {
        let sent = clock::now();
        let (peer, once) = (Peer { id: target.id, addr: target.addr }, payload.once());
        let request = ToTarget { outgoing, target, payload };
        let answer = self.upstream.send(peer, sent, once, request).await?;
        if answer.connected {
            target.connect_succeeded(sent);
        }
        Ok(answer)
    }

    /// Another backend for a request that an engine refused, if it may be asked, the budget allows it and there is
    /// one. It is counted there before it is given back here.
    fn elsewhere(
        &self,
        sent: &Sent,
        shape: &RequestShape,
        tried: &mut Tried,
        outgoing: &Outgoing<'_>,
        payload: &Payload,
    ) -> Option<(Placed, InFlightGuard)> {
        let Shared { limits, registry, retries, metrics, .. } = &*self.shared;
        let (status, headers) = (sent.answer.status, &sent.answer.headers);
        if !retry::may_go_elsewhere(status, outgoing.method(), &limits.retry_statuses) {
            return None;
        }
        if let Some(rest) = retry::rest_asked(headers) {
            registry.rest(sent.flight.target(), clock::now() + rest);
        }
        if payload.once() || !tried.reroute() {
            return None;
        }
        tried.push(sent.placed.backend);
        let other = self.pick(shape, tried, outgoing).ok()?;
        if !retries.take() {
            metrics.retry_refused();
            other.1.finish(Outcome::NeverSent, &Usage::default());
            return None;
        }
        Some(other)
    }

    /// The answer of an engine that did not run the request, which goes to another.
    fn turn_away(&self, sent: Sent) {
        let Sent { answer, flight, .. } = sent;
        flight.ended(Outcome::NeverSent);
        self.shared.metrics.retried(Retry::Status);
        self.upstream.discard(answer, clock::now());
    }

    fn pick(
        &self,
        shape: &RequestShape,
        tried: &mut Tried,
        outgoing: &Outgoing<'_>,
    ) -> Result<(Placed, InFlightGuard), PickError> {
        let before = clock::now();
        let mut picked = match self.shared.ledger.pick(shape, &tried.avoided) {
            // Better a backend that asked for rest than none.
            Err(_) if tried.forget_resting() => self.shared.ledger.pick(shape, &tried.avoided)?,
            picked => picked?,
        };
        let placed = &mut picked.0;
        if let (Some(keep), Some(record)) = (&self.shared.keep_record, placed.record.take()) {
            keep.0(record, outgoing.id());
        }
        self.shared.metrics.decided(since(before));
        self.shared.metrics.placed(
            placed.backend,
            placed.reason,
            placed.matched_tokens,
            placed.prompt_tokens,
        );
        if placed.moved {
            self.shared.metrics.moved();
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
            target.refused(now);
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
