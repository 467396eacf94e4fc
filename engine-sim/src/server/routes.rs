//! What each path answers.
//!
//! `/v1/*` is vLLM's API and wants the key, if one is set; `/health`, `/metrics` and `/stats` never do.
//! A streamed answer's header is sent with its first token, so that both show the time to first token.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use super::answer::{Answer, TokenStream};
use super::config::{Config, StartError};
use super::error::ApiError;
use super::metrics;
use super::openai::{self, Endpoint};
use super::runner::Runner;

/// Largest request body.
const MAX_BODY_BYTES: usize = 64 << 20;
const ENGINE_NAME: HeaderName = HeaderName::from_static("x-engine-name");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

type Body = Either<Full<Bytes>, TokenStream>;

/// What the handlers of one engine share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) runner: Arc<Runner>,
    pub(super) name: String,
    pub(super) refused_connections: AtomicU64,
    name_header: HeaderValue,
    pub(super) model: String,
    authorization: Option<String>,
    pub(super) seed: u64,
}

impl App {
    pub(super) fn new(config: &Config) -> Result<Self, StartError> {
        if !(0.001..=1000.0).contains(&config.time_scale) {
            return Err(StartError::TimeScale(config.time_scale));
        }
        let name_header =
            HeaderValue::from_str(&config.name).map_err(|_| StartError::Name(config.name.clone()))?;
        Ok(Self {
            runner: Arc::new(Runner::new(config.engine, config.time_scale)?),
            name: config.name.clone(),
            refused_connections: AtomicU64::new(0),
            name_header,
            model: config.model.clone(),
            authorization: config.api_key.as_ref().map(|key| format!("Bearer {key}")),
            seed: config.seed,
        })
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
        let path = request.uri().path();
        if path.starts_with("/v1/") {
            self.authorize(&request)?;
        }
        let wanted = match path {
            "/v1/chat/completions" | "/v1/completions" | "/stats/reset_peaks" => Method::POST,
            "/v1/models" | "/health" | "/metrics" | "/stats" => Method::GET,
            _ => return Err(ApiError::unknown_path(path)),
        };
        if request.method() != wanted {
            return Err(ApiError::wrong_method(path));
        }
        match path {
            "/v1/chat/completions" => self.generate(Endpoint::Chat, request).await,
            "/v1/completions" => self.generate(Endpoint::Completion, request).await,
            "/v1/models" => Ok(self.models()),
            "/metrics" => Ok(self.metrics()),
            "/stats" => Ok(self.stats()),
            "/stats/reset_peaks" => {
                self.runner.reset_peaks();
                Ok(self.stats())
            }
            _ => Ok(Response::new(full(Bytes::new()))),
        }
    }

    fn authorize(&self, request: &Request<Incoming>) -> Result<(), ApiError> {
        let Some(wanted) = &self.authorization else { return Ok(()) };
        match request.headers().get(AUTHORIZATION) {
            Some(given) if given.as_bytes() == wanted.as_bytes() => Ok(()),
            _ => Err(ApiError::unauthorized()),
        }
    }

    /// Runs one generation. Dropping the future, as hyper does when the client leaves, cancels it.
    async fn generate(
        &self,
        endpoint: Endpoint,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ApiError> {
        let body = read(request.into_body()).await?;
        let call = openai::parse(endpoint, &body, &self.model)?;
        drop(body);
        let generation = self.runner.submit(call.prompt, call.max_tokens)?;
        let answer = Answer::new(endpoint, self, generation);
        if !call.is_stream {
            answer.reached(answer.max_tokens()).await;
            return Ok(json_response(StatusCode::OK, answer.whole()));
        }
        answer.reached(1).await;
        let mut response = Response::new(Either::Right(TokenStream::new(answer, call.includes_usage)));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        Ok(response)
    }

    fn models(&self) -> Response<Body> {
        let max_model_len = self.runner.config().max_model_tokens();
        let model = json!({
            "id": self.model, "object": "model", "created": 0, "owned_by": "engine-sim",
            "root": self.model, "parent": null, "max_model_len": max_model_len,
        });
        json_response(StatusCode::OK, json!({"object": "list", "data": [model]}).to_string())
    }

    fn metrics(&self) -> Response<Body> {
        let text = metrics::exposition(&self.model, &self.runner.config(), &self.runner.stats());
        let mut response = Response::new(full(text));
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }

    fn stats(&self) -> Response<Body> {
        let refused = self.refused_connections.load(Ordering::Relaxed);
        let stats = metrics::stats_json(&self.name, &self.runner.config(), &self.runner.stats(), refused);
        json_response(StatusCode::OK, stats.to_string())
    }
}

/// Answers one request, whatever it is; never fails.
pub(super) async fn handle(app: Arc<App>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let request_id = request.headers().get(&REQUEST_ID).cloned();
    let mut response =
        app.answer(request).await.unwrap_or_else(|error| json_response(error.status, error.body()));
    let headers = response.headers_mut();
    headers.insert(ENGINE_NAME, app.name_header.clone());
    if let Some(request_id) = request_id {
        headers.insert(REQUEST_ID, request_id);
    }
    Ok(response)
}

async fn read(body: Incoming) -> Result<Bytes, ApiError> {
    match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::too_large(MAX_BODY_BYTES)),
        Err(error) => Err(ApiError::bad_request(format!("The body broke off: {error}"), None)),
    }
}

fn json_response(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn full(body: impl Into<Bytes>) -> Body {
    Either::Left(Full::new(body.into()))
}
