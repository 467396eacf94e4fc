//! 3. The whole request on one screen: classify → read → shape → pick → forward → respond.
//!
//! [`Proxy`] is one worker's; what it shares with the others is in [`Shared`]. Knows HTTP on both sides and the
//! ledger, not how placement decides nor how connections are kept. Invariant: between the pick and the end of the
//! answer the request is counted at exactly one backend, by the guard that travels with it.

pub mod body;
pub mod compat;
mod flight;
pub mod metrics;
mod own;
mod payload;
mod place;
pub mod refusal;
mod request;
#[cfg(test)]
mod tests;
mod tunnel;
mod usage;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response, StatusCode};
use router_policy::prefix::HashKey;
use router_policy::{Outcome, Record};

use crate::accept;
use crate::accept::{Client, Service};
use crate::account::{Ledger, Placed};
use crate::backends::{Registry, Target};
use crate::clock;
use crate::config::Limits;
use crate::error::ProxyError;
use crate::forward::connect::{Cancelled, Hooks, Mark};
use crate::forward::retry::RetryBudget;
use crate::forward::silence::SilenceLimits;
use crate::forward::stream::{Progress, StreamBody};
use crate::forward::{Answer, Upstream, UpstreamLimits, hop_headers};
use crate::parse::{self, PathKind};

use crate::shutdown::{Ending, Phase};

use body::{Budget, Buffers};
use compat::Exposition;
use flight::Flight;
pub use metrics::{RequestMetrics, Retry};
use payload::Payload;
use place::Sent;
use refusal::Refusal;
use request::{Outgoing, RequestIds, X_REQUEST_ID};
use tunnel::Wanted;

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

/// What requests are read by: of the configuration and the fleet, and replaced whole, so that a request looks once.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// What the aliases of backends stand for.
    pub names: Arc<parse::Names>,
    /// What the router's own stand for.
    pub aliases: Arc<parse::Aliases>,
    /// What names a session, where the policy wants to know.
    pub session_key: Option<Arc<str>>,
}

/// What all workers share.
#[derive(Debug)]
pub struct Shared {
    /// Whether the router is leaving.
    pub ending: Ending,
    /// Picks and counts.
    pub ledger: Arc<Ledger>,
    /// Addresses and back-off.
    pub registry: Arc<Registry>,
    /// Secret of the prompt hashes.
    pub hash_key: HashKey,
    /// What requests are read by.
    pub reading: ArcSwap<Reading>,
    /// Bounds.
    pub limits: Limits,
    /// Bytes left for bodies.
    pub budget: Arc<Budget>,
    /// Retries that may still be made.
    pub retries: RetryBudget,
    /// Counters.
    pub metrics: Arc<RequestMetrics>,
    /// Extra path prefixes that are proxied.
    pub proxy_paths: Vec<String>,
    /// What takes decision records, where they are kept.
    pub keep_record: Option<KeepRecord>,
    /// With `--compat vllm`: what writes `/metrics`.
    pub compat: Option<OnceLock<Exposition>>,
    /// Whether responses say where they come from and why.
    pub debug_headers: bool,
}

/// One worker's proxy.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    upstream: Upstream,
    ids: RequestIds,
    buffers: Arc<Buffers>,
}

/// A response's body: our own, or an engine's.
pub type ProxyBody = Either<Full<Bytes>, Box<StreamBody<Flight>>>;

/// What a client asks, without the body. An async function has room for an argument twice, so it goes by reference.
#[derive(Debug)]
struct Asked {
    parts: Parts,
    upgrade: Option<Wanted>,
    id: HeaderValue,
}

impl Service for Proxy {
    type Body = ProxyBody;

    fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        client: Arc<Client>,
    ) -> impl Future<Output = Response<ProxyBody>> + Send {
        let (id, upgrade) = (self.ids.of(request.headers()), Wanted::of(&mut request));
        let (parts, body) = request.into_parts();
        let mut asked = Asked { parts, upgrade, id };
        async move {
            let mut response = match self.respond(&mut asked, body, &client).await {
                Ok(response) => response,
                Err(error) => {
                    self.shared.metrics.refused(Refusal::of(&error));
                    tracing::debug!(request = ?asked.id, origin = ?error.origin(), %error, "answered with an error");
                    error.into_response().map(Either::Left)
                }
            };
            response.headers_mut().insert(X_REQUEST_ID, asked.id);
            response
        }
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
            silence: SilenceLimits {
                idle: shared.limits.stream_idle_timeout,
                comment: shared.limits.sse_keepalive,
            },
        };
        let metrics = Arc::clone(&shared.metrics);
        let cancelled: Cancelled = Arc::new(move |took| metrics.cancelled(took));
        let hooks = Hooks { mark, cancelled: Some(cancelled) };
        Self {
            shared,
            upstream: Upstream::new(&limits, hooks),
            ids: RequestIds::new(seed),
            buffers: Arc::default(),
        }
    }

    /// Ends what is silent of backends whose port refuses connections: engines that were told to end do not always end
    /// their answers. What still delivers is left alone. To be called every now and then; mostly one read a backend.
    pub fn end_gone(&self) {
        let Some(after) = self.shared.limits.gone_stream_timeout else { return };
        let now = clock::now();
        for target in self.shared.registry.all().iter().filter(|target| target.refuses_for(now) >= after) {
            let ended = self.upstream.end_silent(target.id, after);
            if ended > 0 {
                self.shared.metrics.gone_cut(ended);
                tracing::warn!(
                    backend = target.url,
                    ended,
                    "ended silent answers of a backend that refuses connections"
                );
            }
        }
    }

    /// Ends all connections to backends whose drain is over. To be called every now and then; mostly one read a backend.
    pub fn end_drained(&self) {
        for target in self.shared.registry.all().iter().filter(|target| target.is_cut()) {
            let ended = self.upstream.end_silent(target.id, Duration::ZERO);
            self.shared.metrics.drain_cut(ended);
        }
    }

    /// The worker's upstream side.
    #[must_use]
    pub const fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    async fn respond(
        &self,
        asked: &mut Asked,
        body: Incoming,
        client: &Client,
    ) -> Result<Response<ProxyBody>, ProxyError> {
        let Asked { parts, upgrade, id } = asked;
        check_head(parts, self.shared.limits.head_bytes_max)?;
        let kind = parse::classify(&parts.method, parts.uri.path(), &self.shared.proxy_paths);
        match kind {
            PathKind::Own => {
                let own = own::answer(
                    &parts.method,
                    parts.uri.path(),
                    &self.shared.ledger,
                    &self.shared.reading.load().aliases,
                    self.shared.ending.phase() >= Phase::Leaving,
                )?;
                return Ok(own.map(Either::Left));
            }
            PathKind::Refused => {
                let path = parts.uri.path();
                let unknown = || Err(ProxyError::UnknownPath(path.to_owned()));
                let compat = self.shared.compat.as_ref();
                let own = compat
                    .and_then(OnceLock::get)
                    .and_then(|e| compat::answer(e, &parts.method, path, &self.shared));
                return own.unwrap_or_else(unknown).map(|own| own.map(Either::Left));
            }
            PathKind::Inference | PathKind::Other => {}
        }
        let pinned = match &self.shared.compat {
            Some(_) => compat::pin(&mut parts.uri, &self.shared)?,
            None => None,
        };
        let mut payload = Payload::read(body, kind, &parts.headers, &self.shared, &self.buffers).await?;
        let shape = payload.shape(kind, parts, &self.shared)?;
        let outgoing = Outgoing::new(parts, id, client, upgrade.as_ref());
        let sent = self.place(&shape, pinned, &outgoing, &mut payload).await?;
        if sent.answer.status == StatusCode::SWITCHING_PROTOCOLS {
            return switch(*sent, upgrade.take(), client);
        }
        Ok(self.pass_on(*sent))
    }

    /// The engine's answer as the client gets it; the flight goes with its body.
    fn pass_on(&self, sent: Sent) -> Response<ProxyBody> {
        let Sent { answer: Answer { status, mut headers, conn, resent, .. }, placed, flight } = sent;
        if resent > 0 {
            self.shared.metrics.retried(Retry::ConnectionClosed);
        }
        hop_headers::strip(&mut headers);
        if self.shared.debug_headers {
            debug_headers(&mut headers, flight.target(), &placed);
        }
        let body = StreamBody::new(&headers, conn, &self.upstream, flight);
        // The client is answered in its own version; status and headers are the engine's.
        let mut response = Response::new(Either::Right(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
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

/// The engine agreed to switch: the rest is a tunnel.
fn switch(sent: Sent, upgrade: Option<Wanted>, client: &Client) -> Result<Response<ProxyBody>, ProxyError> {
    let Sent { answer: Answer { mut headers, conn, .. }, flight, .. } = sent;
    let Some(upgrade) = upgrade else {
        flight.ended(Outcome::UpstreamFailed);
        return Err(ProxyError::UpstreamFailed("it switched protocols unasked".to_owned()));
    };
    hop_headers::strip(&mut headers);
    headers.extend(upgrade.announcement());
    upgrade.start(conn, flight, client);
    let mut response = Response::new(Either::Left(Full::default()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = headers;
    Ok(response)
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
