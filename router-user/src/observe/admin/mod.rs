//! The admin plane: metrics, health, status and its page for all who reach it; changes for those who may.
//!
//! It answers beside the data plane and decides nothing itself: what is read comes from a [`StatusSource`], what is
//! changed goes to an [`Operate`]. Invariant: nothing is changed, and no engine is asked at a path of its caller's
//! choice, unless [`auth`] allows it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use router_policy::BackendId;

mod addition;
pub(super) mod answer;
pub(super) mod auth;
mod change;
mod events;
mod listener;
pub mod operate;
mod page;
mod routes;
mod snapshot;

pub use auth::{AdminToken, TokenError};
pub(super) use listener::serve as serve_with;
pub use listener::{Listener, UnixSocket};
pub use operate::{Operate, OperateError, Operation, Reloaded};

use self::answer::{Answer, AnswerBody, answer, error, json, not_allowed, options, text};
use self::auth::{Denied, Via};
use self::events::Events;
use self::routes::{Id, OfBackend, PATHS, Route};
use super::metrics;
use super::status::StatusSource;

/// Bytes of a request's body.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Time for it to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What the admin listener reads and changes.
pub struct Admin {
    registry: Registry,
    source: Arc<dyn StatusSource>,
    operate: Arc<dyn Operate>,
    token: Arc<AdminToken>,
    events: Events,
    refused: Refused,
}

/// Requests refused, by reason.
struct Refused {
    denied: Counter,
    other_site: Counter,
    body: Counter,
}

impl Admin {
    /// An admin plane over a registry, to which the gauges of `source` and counters of its own are added.
    #[must_use]
    pub fn new(
        mut registry: Registry,
        source: Arc<dyn StatusSource>,
        operate: Arc<dyn Operate>,
        token: Arc<AdminToken>,
    ) -> Self {
        metrics::register_status(&mut registry, Arc::clone(&source));
        let family = Family::<[(&'static str, &'static str); 1], Counter>::default();
        let reason = |reason| family.get_or_create_owned(&[("reason", reason)]);
        let refused =
            Refused { denied: reason("denied"), other_site: reason("other_site"), body: reason("body") };
        let events = Events::new(reason("subscribers"));
        registry.register("unlatch_admin_refused", "Requests that the admin plane refused", family);
        Self { registry, source, operate, token, events, refused }
    }

    /// The metrics as text.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::encode(&self.registry)
    }

    /// The answer to a request.
    async fn answer<B>(&self, request: Request<B>, via: Via) -> Answer
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send,
    {
        let (mut parts, body) = request.into_parts();
        if let Some(uri) = routes::by_engine_id(&parts.uri) {
            parts.uri = uri;
        }
        let Some(route) = Route::of(parts.uri.path()) else {
            return error(StatusCode::NOT_FOUND, "no_such_path", &format!("no such path; there are {PATHS}"));
        };
        if !route.takes(&parts.method) {
            return not_allowed(route.allow());
        }
        if route.needs_right(&parts.method) {
            if let Err(denied) = auth::allow(&parts.headers, via, &self.token) {
                return self.deny(denied);
            }
            let (method, path) = (parts.method.as_str(), parts.uri.path());
            tracing::info!(method, path, ?via, "an operator's call");
            return match self.body(body).await {
                Ok(body) => self.change(route, &parts, body).await,
                Err(refused) => refused,
            };
        }
        if parts.method == Method::OPTIONS {
            return options(route.allow());
        }
        self.read(route, &parts).await
    }

    async fn read(&self, route: Route<'_>, parts: &Parts) -> Answer {
        let json = |value| json(StatusCode::OK, &value);
        match route {
            Route::Page => page::page(),
            Route::Metrics => answer(StatusCode::OK, metrics::CONTENT_TYPE, self.metrics()),
            Route::Status => json(self.source.status().json()),
            Route::Healthz => text(StatusCode::OK, "ok\n"),
            Route::Readyz => self.readyz(),
            Route::Events => self.subscribe(&parts.method),
            Route::Backends => {
                let mut status = self.source.status().json();
                json(serde_json::json!({ "backends": status["backends"].take() }))
            }
            Route::Backend(id, OfBackend::IsSleeping) => {
                self.ask_engine(id, parts, "/is_sleeping", Bytes::new()).await
            }
            Route::Backend(id, _) => self.backend(id),
            // It takes no method that reads.
            Route::Reload => not_allowed(route.allow()),
        }
    }

    fn backend(&self, id: Id<'_>) -> Answer {
        let status = self.source.status();
        match status.backends.iter().find(|b| id.names(b)) {
            Some(backend) => json(StatusCode::OK, &backend.json(status.now)),
            None => change::refused(&OperateError::NoSuchBackend),
        }
    }

    /// The row of a backend: the path says it, or the engine's id, which is looked up.
    fn row(&self, id: Id<'_>) -> Option<BackendId> {
        let looked_up = || self.source.status().backends.iter().find(|b| id.names(b)).map(|b| b.id);
        id.row().or_else(|| id.engine().and_then(|_| looked_up()))
    }

    fn readyz(&self) -> Answer {
        let status = self.source.status();
        if status.is_ready() {
            return text(StatusCode::OK, "ready\n");
        }
        let why = match status.pools_without_ready() {
            _ if status.is_draining => "the router is ending".to_owned(),
            _ if status.backends.is_empty() => "there is no backend".to_owned(),
            pools => format!("no backend is ready in: {}", pools.join(", ")),
        };
        text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n"))
    }

    fn subscribe(&self, method: &Method) -> Answer {
        const TYPE: &str = "text/event-stream";
        if method == Method::HEAD {
            return answer(StatusCode::OK, TYPE, "");
        }
        match self.events.subscribe() {
            Some(subscription) => answer(StatusCode::OK, TYPE, "").map(|_| AnswerBody::Events(subscription)),
            None => error(
                StatusCode::SERVICE_UNAVAILABLE,
                "too_many_subscribers",
                "too many subscribers; ask again, or read /status",
            ),
        }
    }

    fn deny(&self, denied: Denied) -> Answer {
        let (counter, status, code, message) = match denied {
            Denied::OtherSite => (
                &self.refused.other_site,
                StatusCode::FORBIDDEN,
                "other_site",
                "this request comes from a page of another site, or under a name that this listener does not have",
            ),
            Denied::NoToken => (
                &self.refused.denied,
                StatusCode::FORBIDDEN,
                "no_admin_token",
                "this call needs a right that nobody has here: start the router with --admin-token-file FILE and send \
                 `Authorization: Bearer TOKEN`, or with --admin-listen unix:PATH and come over that socket",
            ),
            Denied::WrongToken => (
                &self.refused.denied,
                StatusCode::UNAUTHORIZED,
                "wrong_admin_token",
                "this call needs the token of --admin-token-file: send `Authorization: Bearer TOKEN`",
            ),
        };
        counter.inc();
        let mut answer = error(status, code, message);
        if status == StatusCode::UNAUTHORIZED {
            let challenge = hyper::header::HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(hyper::header::WWW_AUTHENTICATE, challenge);
        }
        answer
    }

    /// The whole body, within its bounds.
    async fn body<B>(&self, body: B) -> Result<Bytes, Answer>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send,
    {
        let whole = Limited::new(body, BODY_BYTES_MAX).collect();
        let why = match tokio::time::timeout(BODY_TIMEOUT, whole).await {
            Ok(Ok(body)) => return Ok(body.to_bytes()),
            Ok(Err(e)) if e.is::<http_body_util::LengthLimitError>() => {
                error(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "the body is larger than 1 MiB")
            }
            Ok(Err(_)) => error(StatusCode::BAD_REQUEST, "broken_body", "the body broke off"),
            Err(_) => error(StatusCode::REQUEST_TIMEOUT, "slow_body", "the body did not arrive within 10 s"),
        };
        self.refused.body.inc();
        Err(why)
    }
}

/// Serves for ever. Dropping the future closes the listener and all connections, and ends all subscriptions.
///
/// # Errors
/// The listener cannot be registered with this runtime.
pub async fn serve(listener: Listener, admin: Arc<Admin>) -> io::Result<()> {
    let (feeding, answering) = (Arc::clone(&admin), admin);
    let feed = feeding
        .events
        .run(|| snapshot::snapshot(&feeding.source.status(), feeding.events.count()).to_string());
    let answers = serve_with(listener, move |request: Request<Incoming>, via| {
        let admin = Arc::clone(&answering);
        async move { admin.answer(request, via).await }
    });
    tokio::select! {
        // Both run for ever, but for a listener that cannot be used; the order is of no matter.
        failed = answers => failed,
        () = feed => Ok(()),
    }
}

#[cfg(test)]
mod tests;
