//! Calls that change something, once they are allowed.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, RETRY_AFTER,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde_json::{Value, json};

use super::answer::{Answer, AnswerBody, error, error_of, json as answer_json, not_allowed};
use super::operate::{OperateError, Reloaded};
use super::routes::{Id, OfBackend, Route};
use super::{Admin, addition};
use crate::config::values;

/// Longest time that a drain may be given.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);

impl Admin {
    /// Carries out what a route asks for.
    pub(super) async fn change(&self, route: Route<'_>, parts: &Parts, body: Bytes) -> Answer {
        let done = match route {
            Route::Backends => return self.add(&body).await,
            Route::Reload => {
                return match self.operate.reload().await {
                    Ok(done) => answer_json(StatusCode::OK, &reloaded(done)),
                    Err(why) => refused(&why),
                };
            }
            Route::Backend(id, OfBackend::Engine(path)) => {
                return self.ask_engine(id, parts, path, body).await;
            }
            Route::Backend(id, OfBackend::Sleep) => return self.ask_engine(id, parts, "/sleep", body).await,
            Route::Backend(id, OfBackend::WakeUp) => {
                return self.ask_engine(id, parts, "/wake_up", body).await;
            }
            Route::Backend(id, what) => {
                let Some(row) = self.row(id) else { return refused(&OperateError::NoSuchBackend) };
                let deadline = match deadline(parts.uri.query()) {
                    Ok(deadline) => deadline,
                    Err(why) => {
                        return error_of(StatusCode::BAD_REQUEST, "bad_query", &why, Some("deadline"));
                    }
                };
                match what {
                    OfBackend::Itself => self.operate.remove(row, deadline).await,
                    OfBackend::Drain => self.operate.drain(row, deadline).await,
                    _ => self.operate.undrain(row).await,
                }
                .map(|()| row)
            }
            // They take no method that changes.
            _ => return not_allowed(route.allow()),
        };
        match done {
            Ok(row) => answer_json(StatusCode::ACCEPTED, &json!({ "row": row.index() })),
            Err(why) => refused(&why),
        }
    }

    async fn add(&self, body: &[u8]) -> Answer {
        let backend = match addition::parse(body) {
            Ok(backend) => backend,
            Err(why) => return error_of(StatusCode::BAD_REQUEST, "bad_backend", &why, Some("backend")),
        };
        let url = backend.spec.url.clone();
        match self.operate.add(backend).await {
            Ok(rows) => {
                let rows: Vec<_> = rows.into_iter().map(|row| row.index()).collect();
                answer_json(StatusCode::CREATED, &json!({ "url": url, "rows": rows }))
            }
            Err(why) => refused(&why),
        }
    }

    /// Passes a request on to an engine: method, query, body and what they are; nothing else of the caller's.
    pub(super) async fn ask_engine(&self, id: Id<'_>, parts: &Parts, path: &str, body: Bytes) -> Answer {
        let Some(row) = self.row(id) else { return refused(&OperateError::NoSuchBackend) };
        let target = match parts.uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        let Ok(uri) = target.parse::<Uri>() else {
            return refused(&OperateError::Invalid("this is no path of an engine".to_owned()));
        };
        let mut request = Request::new(body);
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = uri;
        for name in [ACCEPT, CONTENT_TYPE] {
            if let Some(value) = parts.headers.get(&name) {
                request.headers_mut().insert(name, value.clone());
            }
        }
        match self.operate.ask(row, request).await {
            Ok(answer) => passed_on(answer, &parts.method),
            Err(why) => refused(&why),
        }
    }
}

/// The engine's answer: its status, its body and what that is. A browser must not run it at our address.
fn passed_on(answer: Response<Bytes>, method: &Method) -> Answer {
    let (parts, body) = answer.into_parts();
    let mut passed = Response::new(AnswerBody::Whole((*method != Method::HEAD).then_some(body)));
    *passed.status_mut() = parts.status;
    let headers = passed.headers_mut();
    for name in [CONTENT_TYPE, CONTENT_ENCODING, RETRY_AFTER] {
        if let Some(value) = parts.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    passed
}

fn reloaded(done: Reloaded) -> Value {
    let Reloaded { added, changed, leaving, refused, applied, needs_restart } = done;
    let refused: Vec<_> = refused.iter().map(|(url, why)| json!({ "url": url, "why": why })).collect();
    json!({
        "added": added, "changed": changed, "leaving": leaving, "refused": refused,
        "applied": applied, "needs_restart": needs_restart,
    })
}

/// `deadline=30s`, or nothing.
fn deadline(query: Option<&str>) -> Result<Option<Duration>, String> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(None) };
    match query.split_once('=') {
        Some(("deadline", text)) => values::duration(text, Duration::ZERO..=DEADLINE_MAX).map(Some),
        _ => Err(format!("`{query}` is no deadline=DUR")),
    }
}

/// Why an operation was not carried out, as an answer.
pub(super) fn refused(why: &OperateError) -> Answer {
    let (status, code) = match why {
        OperateError::NoSuchBackend => (StatusCode::NOT_FOUND, "no_such_backend"),
        OperateError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid"),
        OperateError::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
        OperateError::Unsupported(_) => (StatusCode::NOT_IMPLEMENTED, "unsupported"),
        OperateError::Engine(_) => (StatusCode::BAD_GATEWAY, "engine_failed"),
        OperateError::EngineTimeout => (StatusCode::GATEWAY_TIMEOUT, "engine_timeout"),
        OperateError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
    };
    error(status, code, &why.to_string())
}
