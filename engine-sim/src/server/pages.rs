//! Answers that need no generation: models, tokens, metrics, and the switches of the simulator itself.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::app::App;
use super::body::{Body, json_response};
use super::error::ApiError;
use super::metrics;
use super::openai;
use super::socket::Link;
use crate::faults::{Dialect, Faults, Page};

/// `/v1/models`.
pub(super) fn models(app: &App) -> Response<Body> {
    let max_model_len = app.runner.config().max_model_tokens();
    let model = json!({
        "id": app.model, "object": "model", "created": 0, "owned_by": "engine-sim",
        "root": app.model, "parent": null, "max_model_len": max_model_len,
    });
    json_response(StatusCode::OK, json!({"object": "list", "data": [model]}).to_string())
}

/// `/tokenize`, as vLLM answers it.
pub(super) fn tokenize(app: &App, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let tokens = openai::tokenize(body, &app.model)?;
    let answer = json!({
        "count": tokens.len(),
        "max_model_len": app.runner.config().max_model_tokens(),
        "tokens": tokens,
        "token_strs": null,
    });
    Ok(json_response(StatusCode::OK, answer.to_string()))
}

/// The text exposition, or what stands in its place; JSON for `trtllm-serve` unless its text is asked for.
pub(super) async fn metrics(app: &App, is_text: bool) -> Response<Body> {
    let (faults, frozen) = app.metrics_faults();
    tokio::time::sleep(Duration::from_millis(faults.delay_ms)).await;
    if let Some(page) = faults.page {
        return wrong_page(page);
    }
    let dialect = app.dialect();
    if dialect == Dialect::TrtLlm && !is_text {
        return json_response(StatusCode::OK, app.with_view(metrics::iterations).to_string());
    }
    let text = app.with_view(|view| metrics::exposition(dialect, view, &faults, &frozen));
    of_type("text/plain; version=0.0.4; charset=utf-8", text)
}

fn wrong_page(page: Page) -> Response<Body> {
    match page {
        Page::Html => of_type(
            "text/html; charset=utf-8",
            "<!doctype html>\n<title>Welcome</title>\n<h1>It works!</h1>\n",
        ),
        Page::Empty => of_type("text/plain; version=0.0.4; charset=utf-8", ""),
        Page::Unauthorized => ApiError::unauthorized().response(),
        Page::Error => ApiError::injected(StatusCode::INTERNAL_SERVER_ERROR, None).response(),
    }
}

/// llama.cpp's `/slots`; `fail_on_no_slot=1` makes it 503 while all are taken.
pub(super) fn slots(app: &App, query: Option<&str>) -> Response<Body> {
    let fails = query.is_some_and(|query| query.split('&').any(|pair| pair == "fail_on_no_slot=1"));
    let (is_full, slots) = app
        .with_view(|view| (view.stats.running >= view.config.max_num_seqs, metrics::slots(view).to_string()));
    if fails && is_full {
        return ApiError::no_slot().response();
    }
    json_response(StatusCode::OK, slots)
}

/// `/sleep`: the level is 1 (weights kept in host memory) unless the query says 2 (nothing kept).
pub(super) fn sleep(app: &App, query: Option<&str>) -> Result<Response<Body>, ApiError> {
    let level = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("level=")));
    let level = match level {
        None | Some("1") => 1,
        Some("2") => 2,
        Some(_) => return Err(ApiError::bad_request("level must be 1 or 2", Some("level"))),
    };
    app.runner.sleep(level);
    Ok(empty())
}

pub(super) fn is_sleeping(app: &App) -> Response<Body> {
    let is_sleeping = app.runner.sleep_level().is_some();
    json_response(StatusCode::OK, json!({ "is_sleeping": is_sleeping }).to_string())
}

pub(super) fn stats(app: &App) -> Response<Body> {
    json_response(StatusCode::OK, app.stats_json())
}

/// The faults in force.
pub(super) fn faults(app: &App) -> Response<Body> {
    json_response(StatusCode::OK, json!(app.faults()).to_string())
}

/// Puts the posted faults in force, all others out, and shows them.
pub(super) fn set_faults(app: &App, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let refuse = |e: serde_json::Error| ApiError::bad_request(format!("Invalid faults: {e}"), None);
    // A list would do as well for serde, and nobody means one.
    let fields: Map<String, Value> = serde_json::from_slice(body).map_err(refuse)?;
    let faults: Faults = serde_json::from_value(Value::Object(fields)).map_err(refuse)?;
    app.set_faults(faults).map_err(|e| ApiError::bad_request(e.to_string(), None))?;
    Ok(self::faults(app))
}

/// Begins a new life; a connection of the engine's own port lives no longer than this answer.
pub(super) fn restart(app: &App, link: &Link) -> Response<Body> {
    link.survive();
    app.restart();
    let mut response = json_response(StatusCode::OK, json!({"restarts": app.life.restarts()}).to_string());
    if !link.is_admin() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

pub(super) fn empty() -> Response<Body> {
    Response::new(Body::full(Bytes::new()))
}

fn of_type(kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::full(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
