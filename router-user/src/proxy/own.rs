//! What the router answers itself on the data port: `/v1/models`, `/health`, `/version`; and the list of engines that
//! [`super::compat`] gives.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};

use super::Shared;
use crate::account::Ledger;
use crate::backends::Target;
use crate::error::ProxyError;
use crate::parse::Aliases;

/// Answers an own path. Allocates one body; takes the ledger's lock once.
///
/// # Errors
/// [`ProxyError::MethodNotAllowed`] for methods other than GET and HEAD.
pub(super) fn answer(
    method: &Method,
    path: &str,
    ledger: &Ledger,
    aliases: &Aliases,
    is_leaving: bool,
) -> Result<Response<Full<Bytes>>, ProxyError> {
    if ![Method::GET, Method::HEAD].contains(method) {
        return Err(ProxyError::MethodNotAllowed);
    }
    let (status, json) = match path.trim_end_matches('/') {
        "/v1/models" => (StatusCode::OK, models(ledger, aliases)),
        "/health" if is_leaving => {
            (StatusCode::SERVICE_UNAVAILABLE, serde_json::json!({"status": "the router is leaving"}))
        }
        "/health" if ledger.any_ready() => (StatusCode::OK, serde_json::json!({"status": "ok"})),
        "/health" => (StatusCode::SERVICE_UNAVAILABLE, serde_json::json!({"status": "no backend is ready"})),
        "/version" => (StatusCode::OK, serde_json::json!({"version": env!("CARGO_PKG_VERSION")})),
        // Written in another way (percent-encoded): not worth a second spelling.
        _ => return Err(ProxyError::UnknownPath(path.to_owned())),
    };
    // hyper leaves the body out for HEAD and keeps its length.
    let mut response = Response::new(Full::new(Bytes::from(json.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// OpenAI's list of models: the union over the backends, and the aliases of what is in it.
fn models(ledger: &Ledger, aliases: &Aliases) -> serde_json::Value {
    let model =
        |id: String| serde_json::json!({"id": id, "object": "model", "created": 0, "owned_by": "unlatch"});
    let mut names = ledger.model_names();
    let known = aliases.iter().filter(|(_, model)| names.contains(*model)).map(|(alias, _)| alias.to_owned());
    names.append(&mut known.collect());
    let data: Vec<_> = names.into_iter().map(model).collect();
    serde_json::json!({"object": "list", "data": data})
}

/// The engines, in the form that the production stack gives them.
pub(super) fn engines(shared: &Shared) -> String {
    let targets = shared.registry.all();
    let engine = |target: &Arc<Target>| {
        let snapshot = shared.ledger.snapshot(target.id)?;
        Some(serde_json::json!({
            "engine_id": target.engine_id.to_string(),
            "serving_models": snapshot.model_names(),
            "created": target.added_unix_seconds,
        }))
    };
    serde_json::Value::from(targets.iter().filter_map(engine).collect::<Vec<_>>()).to_string()
}
