//! What each path answers.
//!
//! `/v1/*` is vLLM's API and wants the key, if one is set; nothing else does.
//! Faults of requests hit chats, completions and probes (`/health`, `/v1/models`), once the request is read and
//! known to come from someone with the key. `/stats` and `/admin/*` are the simulator's own and always answer.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderName};
use hyper::{Method, Request, Response};

use super::app::App;
use super::body::Body;
use super::error::ApiError;
use super::generate::{first_byte, generate, meet};
use super::openai::Endpoint;
use super::pages;
use super::socket::Link;
use crate::faults::{Asked, Dialect};

/// Largest request body.
const MAX_BODY_BYTES: usize = 64 << 20;
const ENGINE_NAME: HeaderName = HeaderName::from_static("x-engine-name");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request that does not get what it asked for.
#[derive(Debug)]
pub(super) enum Failure {
    /// It gets an error.
    Api(ApiError),
    /// It gets nothing, and its connection ends.
    Close,
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

/// Tells hyper to end a connection without an answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a fault ends the connection")]
pub(super) struct Closed;

/// Answers one request, whatever it is; fails only where a fault wants the connection to end.
pub(super) async fn handle(
    app: Arc<App>,
    link: Arc<Link>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Closed> {
    let request_id = request.headers().get(&REQUEST_ID).cloned();
    let mut response = match answer(&app, link, request).await {
        Ok(response) => response,
        Err(Failure::Api(error)) => error.response(),
        Err(Failure::Close) => return Err(Closed),
    };
    let headers = response.headers_mut();
    headers.insert(ENGINE_NAME, app.name_header.clone());
    if let Some(request_id) = request_id {
        headers.insert(REQUEST_ID, request_id);
    }
    Ok(response)
}

/// A path that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Generate(Endpoint),
    Models,
    Health,
    Tokenize,
    Metrics,
    MetricsText,
    Slots,
    Sleep,
    WakeUp,
    IsSleeping,
    Stats,
    ResetPeaks,
    Faults,
    Restart,
}

impl Route {
    fn of(path: &str, dialect: Dialect) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Generate(Endpoint::Chat),
            "/v1/completions" => Self::Generate(Endpoint::Completion),
            "/v1/models" => Self::Models,
            "/health" => Self::Health,
            "/tokenize" => Self::Tokenize,
            "/metrics" => Self::Metrics,
            "/prometheus/metrics" if dialect == Dialect::TrtLlm => Self::MetricsText,
            "/slots" if dialect == Dialect::LlamaCpp => Self::Slots,
            "/sleep" => Self::Sleep,
            "/wake_up" => Self::WakeUp,
            "/is_sleeping" => Self::IsSleeping,
            "/stats" => Self::Stats,
            "/stats/reset_peaks" => Self::ResetPeaks,
            "/admin/faults" => Self::Faults,
            "/admin/restart" => Self::Restart,
            _ => return None,
        })
    }

    fn takes(self, method: &Method) -> bool {
        match self {
            Self::Generate(_)
            | Self::Tokenize
            | Self::Sleep
            | Self::WakeUp
            | Self::ResetPeaks
            | Self::Restart => method == Method::POST,
            Self::Faults => [Method::GET, Method::POST, Method::DELETE].contains(method),
            _ => method == Method::GET,
        }
    }

    /// The simulator's own: there while the engine starts, too.
    fn is_own(self) -> bool {
        matches!(self, Self::Stats | Self::ResetPeaks | Self::Faults | Self::Restart)
    }

    /// What it is to the rules of faults.
    fn asked(self) -> Option<Asked> {
        match self {
            Self::Generate(_) => Some(Asked::Generation),
            Self::Health | Self::Models => Some(Asked::Probe),
            _ => None,
        }
    }
}

async fn answer(app: &App, link: Arc<Link>, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
    let path = request.uri().path();
    if path.starts_with("/v1/") {
        authorize(app, &request)?;
    }
    let route = Route::of(path, app.dialect()).ok_or_else(|| ApiError::unknown_path(path))?;
    if !route.takes(request.method()) {
        return Err(ApiError::wrong_method(path).into());
    }
    if !route.is_own() && !app.life.is_ready() {
        return Err(ApiError::loading().into());
    }
    let (head, body) = request.into_parts();
    let body = read(body).await?;
    let asked = route.asked().filter(|_| !link.is_admin());
    let fate = asked.map(|asked| app.decide(asked)).unwrap_or_default();
    meet(&fate, &link).await?;
    if asked == Some(Asked::Probe) {
        tokio::time::sleep(first_byte(fate.delay)).await;
    }
    Ok(match route {
        Route::Generate(endpoint) => return generate(app, endpoint, body, &fate, link).await,
        Route::Models => pages::models(app),
        Route::Health => pages::empty(),
        Route::Tokenize => pages::tokenize(app, &body)?,
        Route::Metrics => pages::metrics(app, false).await,
        Route::MetricsText => pages::metrics(app, true).await,
        Route::Slots => pages::slots(app, head.uri.query()),
        Route::Sleep => pages::sleep(app, head.uri.query())?,
        Route::WakeUp => {
            app.runner.wake();
            pages::empty()
        }
        Route::IsSleeping => pages::is_sleeping(app),
        Route::Stats => pages::stats(app),
        Route::ResetPeaks => {
            app.runner.reset_peaks();
            pages::stats(app)
        }
        Route::Faults if head.method == Method::GET => pages::faults(app),
        Route::Faults if head.method == Method::DELETE => pages::set_faults(app, b"{}")?,
        Route::Faults => pages::set_faults(app, &body)?,
        Route::Restart => pages::restart(app, &link),
    })
}

fn authorize(app: &App, request: &Request<Incoming>) -> Result<(), ApiError> {
    let Some(wanted) = &app.authorization else { return Ok(()) };
    match request.headers().get(AUTHORIZATION) {
        Some(given) if given.as_bytes() == wanted.as_bytes() => Ok(()),
        _ => Err(ApiError::unauthorized()),
    }
}

async fn read(body: Incoming) -> Result<Bytes, ApiError> {
    match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::too_large(MAX_BODY_BYTES)),
        Err(error) => Err(ApiError::bad_request(format!("The body broke off: {error}"), None)),
    }
}
