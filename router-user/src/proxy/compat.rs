//! `--compat vllm`: what clients of the vLLM production stack's router ask for on the data port, beside the rest.
//!
//! `/engines` lists the engines with their ids, `/metrics` is the admin plane's, and `?id=` on an inference path names
//! the one engine that a request may go to. The pin is taken out of the query: it is the router's. Invariant: a request
//! with a pin is placed at that engine or nowhere.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Method, Response};
use router_policy::{BackendId, PickError, RequestShape};

use super::{Shared, own};
use crate::backends::EngineId;
use crate::error::ProxyError;

/// Writes `/metrics`.
#[derive(Clone)]
pub struct Exposition {
    /// Its content type.
    pub content_type: &'static str,
    /// The text, anew each time.
    pub write: Arc<dyn Fn() -> String + Send + Sync>,
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exposition")
    }
}

/// The answer to a path that only this adds; `None` for any other.
pub(super) fn answer(
    exposition: &Exposition,
    method: &Method,
    path: &str,
    shared: &Shared,
) -> Option<Result<Response<Full<Bytes>>, ProxyError>> {
    let (content_type, body): (_, fn(&Exposition, &Shared) -> String) = match path {
        "/engines" => ("application/json", |_, shared| own::engines(shared)),
        "/metrics" => (exposition.content_type, |exposition, _| (exposition.write)()),
        _ => return None,
    };
    if ![Method::GET, Method::HEAD].contains(method) {
        return Some(Err(ProxyError::MethodNotAllowed));
    }
    let mut response = Response::new(Full::new(Bytes::from(body(exposition, shared))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Some(Ok(response))
}

/// The one engine that a request asks for, if it does; its query is left without that.
///
/// # Errors
/// [`ProxyError::UnknownEngine`].
pub(super) fn pin(uri: &mut Uri, shared: &Shared) -> Result<Option<BackendId>, ProxyError> {
    let Some(query) = uri.query() else { return Ok(None) };
    let Some(asked) = query.split('&').find_map(|pair| pair.strip_prefix("id=")) else { return Ok(None) };
    let id = EngineId::parse(asked);
    let targets = shared.registry.all();
    let target = targets.iter().find(|target| Some(target.engine_id) == id);
    let target = target.ok_or_else(|| ProxyError::UnknownEngine(asked.chars().take(64).collect()))?;
    *uri = without_id(uri, query);
    Ok(Some(target.id))
}

fn without_id(uri: &Uri, query: &str) -> Uri {
    let rest: Vec<_> = query.split('&').filter(|pair| !pair.starts_with("id=")).collect();
    let rest = rest.join("&");
    let mark = if rest.is_empty() { "" } else { "?" };
    let mut parts = uri.clone().into_parts();
    // Pieces of what was a path and a query are one again.
    parts.path_and_query = PathAndQuery::try_from(format!("{}{mark}{rest}", uri.path())).ok();
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// Why the engine asked for does not get the request.
pub(super) fn refused(pinned: BackendId, shape: &RequestShape, shared: &Shared) -> ProxyError {
    let cause = match shared.ledger.snapshot(pinned) {
        None => PickError::NoBackend,
        Some(engine) if !engine.ready => PickError::NoneReady,
        Some(engine) if !engine.serves(shape.model.as_deref()) => PickError::UnknownModel,
        Some(engine) if !engine.spec.tasks.has(shape.task) => PickError::OtherTask,
        Some(_) => PickError::AllFull,
    };
    ProxyError::NoBackend { cause, model: shape.model.as_deref().map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::{Uri, without_id};

    #[test]
    fn only_the_pin_leaves_the_query() {
        for (uri, rest) in [
            ("/v1/completions?id=ab", "/v1/completions"),
            ("/v1/completions?x=1&id=ab&y=%20", "/v1/completions?x=1&y=%20"),
            ("http://h:1/v1/x?id=a&id=b", "http://h:1/v1/x"),
            ("/v1/x?xid=1&id=", "/v1/x?xid=1"),
        ] {
            let uri: Uri = uri.parse().unwrap();
            assert_eq!(without_id(&uri, uri.query().unwrap()).to_string(), rest);
        }
    }
}
