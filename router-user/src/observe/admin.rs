//! The admin listener: `/metrics`, `/status`, `/healthz`, `/readyz`. Reads only; it changes nothing.
//!
//! It runs beside the data plane and is bounded: connections, head, and time for a head. Connections beyond the bound
//! wait in the accept queue.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::metrics;
use super::status::StatusSource;

/// Connections at once.
const CONNS_MAX: usize = 64;
/// Request line and headers.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Time for a head to arrive; an idle connection is closed then too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause when the process has no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the admin listener reads.
pub struct Admin {
    registry: Registry,
    source: Arc<dyn StatusSource>,
}

impl Admin {
    /// An admin plane over a registry, to which the gauges of `source` are added.
    #[must_use]
    pub fn new(mut registry: Registry, source: Arc<dyn StatusSource>) -> Self {
        metrics::register_status(&mut registry, Arc::clone(&source));
        Self { registry, source }
    }

    /// The metrics as text.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::encode(&self.registry)
    }

    /// The answer to a request.
    #[must_use]
    pub fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let (status, content_type, body) = match path {
            "/metrics" => (StatusCode::OK, metrics::CONTENT_TYPE, self.metrics()),
            "/status" => (StatusCode::OK, "application/json", self.source.status().json().to_string()),
            "/healthz" => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
            "/readyz" if self.source.status().is_ready() => {
                (StatusCode::OK, "text/plain", "ready\n".to_owned())
            }
            "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", "no backend is ready\n".to_owned()),
            _ => (
                StatusCode::NOT_FOUND,
                "text/plain",
                "no such path: /metrics, /status, /healthz, /readyz\n".to_owned(),
            ),
        };
        read_only(method, response(status, content_type, body))
    }
}

/// The answer, if the method only reads or there is nothing anyway.
pub(super) fn read_only(method: &Method, answer: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    if [Method::GET, Method::HEAD].contains(method) || answer.status() == StatusCode::NOT_FOUND {
        return answer;
    }
    let mut refused =
        response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET and HEAD\n".to_owned());
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    refused
}

pub(super) fn response(
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Serves for ever. Dropping the future closes the listener and all connections.
pub async fn serve(listener: TcpListener, admin: Arc<Admin>) {
    serve_with(listener, move |method, path| admin.answer(method, path)).await;
}

/// Serves for ever what `answer` says.
pub(super) async fn serve_with<F>(listener: TcpListener, answer: F)
where
    F: Fn(&Method, &str) -> Response<Full<Bytes>> + Clone + Send + Sync + 'static,
{
    let permits = Arc::new(Semaphore::new(CONNS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let permit =
            Arc::clone(&permits).acquire_owned().await.expect("invariant: nobody closes the semaphore");
        // Ended connections leave the set here; it holds at most the bound and those not yet collected.
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let answer = answer.clone();
        connections.spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let answer = answer(request.method(), request.uri().path());
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an admin connection broke off");
            }
            drop(permit);
        });
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
