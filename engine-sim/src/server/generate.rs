//! Chats and completions, with what faults make of them.
//!
//! A streamed answer's header is sent with its first token, so that both show the time to first token.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

use super::answer::{Answer, TokenStream};
use super::app::App;
use super::body::{Body, json_response};
use super::error::ApiError;
use super::openai::{self, Endpoint};
use super::routes::Failure;
use super::socket::Link;
use crate::faults::{CutEnd, Delay, Fate, Fault};

/// Carries out the part of a fate that comes before any answer. Dropping the future ends a hang.
pub(super) async fn meet(fate: &Fate, link: &Link) -> Result<(), Failure> {
    match fate.fault {
        Some(Fault::Status { code, retry_after_s }) => {
            let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            tokio::time::sleep(first_byte(fate.delay)).await;
            Err(ApiError::injected(status, retry_after_s).into())
        }
        Some(Fault::Reset) => {
            link.reset();
            Err(Failure::Close)
        }
        Some(Fault::Close) => Err(Failure::Close),
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Cut { .. } | Fault::Delay(_)) | None => Ok(()),
    }
}

/// Runs one generation. Dropping the future, as hyper does when the client leaves, cancels it.
pub(super) async fn generate(
    app: &App,
    endpoint: Endpoint,
    body: Bytes,
    fate: &Fate,
    link: Arc<Link>,
) -> Result<Response<Body>, Failure> {
    let call = openai::parse(endpoint, &body, &app.model)?;
    drop(body);
    let generation = app.runner.submit(call.prompt, call.max_tokens).map_err(ApiError::from)?;
    let answer = Answer::new(endpoint, app, generation);
    let cut = match fate.fault {
        Some(Fault::Cut { after_tokens, end }) => Some((after_tokens.min(answer.max_tokens()), end)),
        _ => None,
    };
    if call.is_stream {
        answer.reached(1).await;
        tokio::time::sleep(first_byte(fate.delay)).await;
        let pause = Duration::from_millis(fate.delay.between_chunks_ms);
        let body = Body::stream(TokenStream::new(answer, call.includes_usage)).paused(pause);
        return Ok(event_stream(match cut {
            Some((tokens, end)) => body.cut(tokens, end, link),
            None => body,
        }));
    }
    // At least one, since what was cached is known only then.
    let needed = match cut {
        Some((tokens, _)) => tokens.max(1),
        None => answer.max_tokens(),
    };
    answer.reached(needed).await;
    tokio::time::sleep(first_byte(fate.delay)).await;
    Ok(match cut {
        Some((_, end)) => half(&answer.whole(), end, link),
        None => json_response(StatusCode::OK, answer.whole()),
    })
}

pub(super) fn first_byte(delay: Delay) -> Duration {
    Duration::from_millis(delay.first_byte_ms)
}

fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// An answer that promises its whole length and breaks off in the middle.
fn half(whole: &[u8], end: CutEnd, link: Arc<Link>) -> Response<Body> {
    // A body with a length cannot end well before it.
    let end = match end {
        CutEnd::End | CutEnd::Done => CutEnd::Close,
        other => other,
    };
    let mut response = json_response(StatusCode::OK, Bytes::copy_from_slice(&whole[..whole.len() / 2]));
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(whole.len()));
    response.map(|body| body.cut(1, end, link))
}
