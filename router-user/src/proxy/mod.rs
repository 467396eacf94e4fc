//! 3. The whole request on one screen: classify → read → shape → pick → forward → respond.
//!
//! [`Proxy`] is one worker's; what it shares with the others is in [`Shared`]. Knows HTTP on both sides and the
//! ledger, not how placement decides nor how connections are kept. Invariant: between the pick and the end of the
//! answer the request is counted at exactly one backend, by the guard that travels with it.

pub mod body;
mod flight;
pub mod metrics;
mod own;
pub mod refusal;
mod request;
#[cfg(test)]
mod tests;
mod usage;

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response};
use router_policy::prefix::HashKey;
use router_policy::{BackendId, Outcome, PickError, Record, RequestShape, Usage};

use crate::accept::{Client, Service};
use crate::account::{InFlightGuard, Ledger, Placed};
use crate::backends::{Registry, Target};
use crate::config::Limits;
use crate::error::ProxyError;
use crate::forward::connect::{ConnectError, Mark};
use crate::forward::stream::{Progress, StreamBody};
use crate::forward::{Answer, Peer, SendError, Upstream, UpstreamLimits, hop_headers};
use crate::parse::{self, PathKind};
use crate::{accept, clock};

use body::{BodyLimits, Budget, HeldBody};
use flight::Flight;
use flight::since;
pub use metrics::{RequestMetrics, Retry};
use refusal::Refusal;
use request::{Outgoing, RequestIds, X_REQUEST_ID};

const X_BACKEND: HeaderName = HeaderName::from_static("x-unlatch-backend");
const X_DECISION: HeaderName = HeaderName::from_static("x-unlatch-decision");

/// Takes a decision record and the id of its request.
pub type Keep = dyn Fn(Box<Record>, &str) + Send + Sync;

/// What takes decision records; never waits.
#[derive(Clone)]
pub struct KeepRecord(pub Arc<Keep>);

impl std::fmt::Debug for KeepRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeepRecord")
    }
}

/// What all workers share.
#[derive(Debug)]
pub struct Shared {
    /// Picks and counts.
    pub ledger: Arc<Ledger>,
    /// Addresses and back-off.
    pub registry: Arc<Registry>,
    /// Secret of the prompt hashes.
    pub hash_key: HashKey,
    /// What the configured aliases stand for.
    pub names: parse::Names,
    /// Bounds.
    pub limits: Limits,
    /// Bytes left for bodies.
    pub budget: Arc<Budget>,
    /// Counters.
    pub metrics: Arc<RequestMetrics>,
    /// Extra path prefixes that are proxied.
    pub proxy_paths: Vec<String>,
    /// What names a session, where the policy wants to know.
    pub session_key: Option<String>,
    /// What takes decision records, where they are kept.
    pub keep_record: Option<KeepRecord>,
    /// Whether responses say where they come from and why.
    pub debug_headers: bool,
}

/// One worker's proxy.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    upstream: Upstream,
    ids: RequestIds,
}

/// A response's body: our own, or an engine's.
pub type ProxyBody = Either<Full<Bytes>, StreamBody<Flight>>;

impl Service for Proxy {
    type Body = ProxyBody;

    async fn answer(&self, request: Request<Incoming>, client: &Client) -> Response<ProxyBody> {
        let (parts, body) = request.into_parts();
        let id = self.ids.of(&parts.headers);
        let mut response = match self.respond(parts, body, &id, client).await {
            Ok(response) => response,
            Err(error) => {
                self.shared.metrics.refused(Refusal::of(&error));
                tracing::debug!(request = ?id, origin = ?error.origin(), %error, "answered with an error");
                error.into_response().map(Either::Left)
            }
        };
        response.headers_mut().insert(X_REQUEST_ID, id);
        response
    }
}

impl Proxy {
    /// One worker's proxy. `seed` must differ between workers (request ids); `mark` is called with every socket to
    /// an engine before it connects.
    #[must_use]
    pub fn new(shared: Arc<Shared>, seed: u64, mark: Option<Mark>) -> Self {
        let limits = UpstreamLimits {
            connect_timeout: shared.limits.connect_timeout,
            idle_conns_max: shared.limits.idle_conns_max,
            idle_conn_age_max: shared.limits.idle_conn_age_max,
        };
        Self { shared, upstream: Upstream::new(&limits, mark), ids: RequestIds::new(seed) }
    }

    /// The worker's upstream side.
    #[must_use]
    pub const fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    async fn respond(
        &self,
        parts: Parts,
        body: Incoming,
        id: &HeaderValue,
        client: &Client,
    ) -> Result<Response<ProxyBody>, ProxyError> {
        check_head(&parts, self.shared.limits.head_bytes_max)?;
        let kind = parse::classify(&parts.method, parts.uri.path(), &self.shared.proxy_paths);
        match kind {
            PathKind::Own => {
                let own = own::answer(&parts.method, parts.uri.path(), &self.shared.ledger)?;
                return Ok(own.map(Either::Left));
            }
            PathKind::Refused => return Err(ProxyError::UnknownPath(parts.uri.path().to_owned())),
            PathKind::Inference | PathKind::Other => refuse_upgrade(&parts.headers)?,
        }
        let body = self.read(body, &parts.headers).await?;
        let mut shape = self.shape(kind, &body)?;
        if let Some(key) = &self.shared.session_key {
            shape.session = parse::session(&parts.headers, &body.bytes, key);
        }
        let outgoing = Outgoing::new(parts, id.clone(), client);
        self.place(&shape, &outgoing, &body).await
    }

    /// Reads the body; a client that goes on writing one that is too large still gets to read the error.
    async fn read(&self, mut body: Incoming, headers: &HeaderMap) -> Result<HeldBody, ProxyError> {
        let limits = &self.shared.limits;
        let bounds = BodyLimits { bytes_max: limits.body_bytes_max, pause_max: limits.head_timeout };
        let result = body::read(&mut body, bounds, &self.shared.budget).await;
        let is_waiting = headers.contains_key(header::EXPECT);
        if matches!(result, Err(ProxyError::BodyTooLarge { .. } | ProxyError::BodyBudget)) && !is_waiting {
            body::discard(body, limits.body_bytes_max).await;
        }
        result
    }

    fn shape(&self, kind: PathKind, body: &HeldBody) -> Result<RequestShape, ProxyError> {
        if kind != PathKind::Inference {
            return Ok(RequestShape::unshaped());
        }
        let Shared { hash_key, names, .. } = &*self.shared;
        parse::shape_with(&body.bytes, hash_key, names).map_err(|e| ProxyError::BadBody(e.to_string()))
    }

    /// Picks and sends until a backend answers. Each backend is tried once at most, so this ends.
    async fn place(
        &self,
        shape: &RequestShape,
        outgoing: &Outgoing,
        body: &HeldBody,
    ) -> Result<Response<ProxyBody>, ProxyError> {
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
            let request = || outgoing.to(&target, body.bytes.clone());
            let sent = clock::now();
            match self.upstream.send(peer, sent, request).await {
                Ok(answer) => {
                    if answer.connected {
                        target.connect_succeeded(sent);
                    }
                    return Ok(self.pass_on(answer, &target, &placed, flight));
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
        if placed.moved {
            self.shared.metrics.moved();
        }
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

    /// The engine's answer as the client gets it; the flight goes with its body.
    fn pass_on(
        &self,
        answer: Answer,
        target: &Target,
        placed: &Placed,
        mut flight: Flight,
    ) -> Response<ProxyBody> {
        let Answer { response, conn, resent, .. } = answer;
        if resent > 0 {
            self.shared.metrics.retried(Retry::ConnectionClosed);
        }
        let (mut parts, body) = response.into_parts();
        // What an engine refuses says nothing about how fast it answers.
        flight.is_measured = parts.status.is_success();
        hop_headers::strip(&mut parts.headers);
        if self.shared.debug_headers {
            debug_headers(&mut parts.headers, target, placed);
        }
        let body = StreamBody::new(body, &parts.headers, conn, Arc::clone(self.upstream.pool()), flight);
        // The client is answered in its own version; status and headers are the engine's.
        let mut response = Response::new(Either::Right(body));
        *response.status_mut() = parts.status;
        *response.headers_mut() = parts.headers;
        response
    }
}

/// Refuses heads over the limit. hyper itself refuses those over twice the limit.
fn check_head(parts: &Parts, limit_bytes: usize) -> Result<(), ProxyError> {
    let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let line = parts.method.as_str().len() + parts.uri.path_and_query().map_or(0, |p| p.as_str().len()) + 12;
    if line + fields.sum::<usize>() > limit_bytes {
        return Err(ProxyError::HeadTooLarge { limit_bytes });
    }
    Ok(())
}

/// WebSockets are not proxied; other upgrades (h2c) may be ignored, and are.
fn refuse_upgrade(headers: &HeaderMap) -> Result<(), ProxyError> {
    match headers.get(header::UPGRADE) {
        Some(to) if to.as_bytes().eq_ignore_ascii_case(b"websocket") => Err(ProxyError::Upgrade),
        _ => Ok(()),
    }
}

/// What the client is told when no candidate is left: why the last one failed, if one was tried.
fn no_backend(cause: PickError, shape: &RequestShape, unreachable: Option<ConnectError>) -> ProxyError {
    match unreachable {
        Some(error) => ProxyError::ConnectFailed(error.to_string()),
        None => ProxyError::NoBackend { cause, model: shape.model.as_deref().map(str::to_owned) },
    }
}

fn debug_headers(headers: &mut HeaderMap, target: &Target, placed: &Placed) {
    let reason = placed.reason.as_str();
    let why = format!("{reason}; matched={}; prompt={}", placed.matched_tokens, placed.prompt_tokens);
    for (name, text) in [(X_BACKEND, target.url.as_str()), (X_DECISION, &why)] {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    }
}

impl From<&Limits> for accept::AcceptLimits {
    fn from(limits: &Limits) -> Self {
        Self { head_bytes_max: limits.head_bytes_max, head_timeout: limits.head_timeout }
    }
}
