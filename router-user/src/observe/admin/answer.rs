//! Answers of the admin plane: their bodies, and errors as JSON of the form that the data plane has too.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use serde_json::json;

use super::events::Subscription;

/// The body of an answer.
#[derive(Debug)]
pub(in crate::observe) enum AnswerBody {
    /// At once; `None` once it was taken.
    Whole(Option<Bytes>),
    /// Snapshot after snapshot.
    Events(Subscription),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Self::Whole(bytes) => bytes.take(),
            Self::Events(subscription) => match subscription.poll_next(cx) {
                Poll::Ready(next) => next,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// An answer.
pub(in crate::observe) type Answer = Response<AnswerBody>;

/// An answer with a whole body. Browsers are told neither to keep it nor to guess what it is.
pub(in crate::observe) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Answer {
    let mut answer = Response::new(AnswerBody::Whole(Some(body.into())));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

pub(in crate::observe) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain", body)
}

pub(super) fn json(status: StatusCode, body: &serde_json::Value) -> Answer {
    answer(status, "application/json", body.to_string())
}

/// An error. `code` is one word for programs; `message` says what to do.
pub(in crate::observe) fn error(status: StatusCode, code: &str, message: &str) -> Answer {
    error_of(status, code, message, None)
}

/// An error about one member of the request.
pub(super) fn error_of(status: StatusCode, code: &str, message: &str, param: Option<&str>) -> Answer {
    let kind = match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        400..500 => "invalid_request_error",
        _ => "server_error",
    };
    json(status, &json!({ "error": { "message": message, "type": kind, "param": param, "code": code } }))
}

/// 405 with what is allowed.
pub(in crate::observe) fn not_allowed(allow: &'static str) -> Answer {
    let message = format!("this path takes {allow}");
    let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", &message);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    answer
}

/// The answer to OPTIONS.
pub(super) fn options(allow: &'static str) -> Answer {
    let mut answer = Response::new(AnswerBody::Whole(None));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    answer
}
