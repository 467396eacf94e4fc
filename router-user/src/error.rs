//! What can go wrong with a request, whose fault it is, and the one function that turns it into a response.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use router_policy::PickError;

/// Whose fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client's.
    Client,
    /// Ours.
    Router,
    /// The engine's.
    Upstream,
}

/// Whether the client may send the request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retryable {
    /// Nothing was sent to an engine.
    Yes,
    /// It would fail again, or an engine may have executed it.
    No,
}

/// A request that the router itself answers, with an OpenAI-style error body.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The body is no JSON object that closes (400).
    #[error("the request body is not a complete JSON object: {0}")]
    BadBody(String),
    /// The body is over the limit (413).
    #[error("the request body is larger than the limit of {limit_bytes} bytes")]
    BodyTooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// All bodies together are over the limit (503).
    #[error("the router holds as many request bodies as it may; try again")]
    BodyBudget,
    /// The body stopped coming (408).
    #[error("the request body did not arrive in time")]
    BodyStalled,
    /// The client broke off while it sent the body (no response reaches it).
    #[error("the client broke off its request")]
    ClientGone,
    /// Request line and headers are over the limit (431).
    #[error("the request's head is larger than the limit of {limit_bytes} bytes")]
    HeadTooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// No such path (404).
    #[error("no such path: {0}")]
    UnknownPath(String),
    /// No engine has the id that the request asks for (404).
    #[error("no engine has the id `{0}`: GET /engines lists them")]
    UnknownEngine(String),
    /// An own path, asked with another method than GET or HEAD (405).
    #[error("this path answers GET and HEAD only")]
    MethodNotAllowed,
    /// No backend could be picked (404 for an unknown model, else 503).
    #[error("{}", describe(*cause, model.as_deref()))]
    NoBackend {
        /// Why.
        cause: PickError,
        /// The model asked for.
        model: Option<String>,
    },
    /// No connection to any backend, every ready one was tried (503).
    #[error("no backend could be reached: {0}")]
    ConnectFailed(String),
    /// The engine gave no answer (502).
    #[error("the backend gave no answer: {0}")]
    UpstreamFailed(String),
}

impl ProxyError {
    /// What the error is, as one word: the `code` of the body.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BadBody(_) => "invalid_json",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BodyBudget => "body_budget",
            Self::BodyStalled => "body_timeout",
            Self::ClientGone => "client_gone",
            Self::HeadTooLarge { .. } => "head_too_large",
            Self::UnknownPath(_) => "unknown_path",
            Self::UnknownEngine(_) => "engine_not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::NoBackend { cause: PickError::UnknownModel, .. } => "model_not_found",
            Self::NoBackend { cause: PickError::OtherTask, .. } => "unsupported_by_model",
            Self::NoBackend { cause: PickError::AllFull, .. } => "backends_full",
            Self::NoBackend { .. } => "no_backend",
            Self::ConnectFailed(_) => "backends_unreachable",
            Self::UpstreamFailed(_) => "backend_failed",
        }
    }

    /// The status it is answered with.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::BadBody(_) | Self::ClientGone => StatusCode::BAD_REQUEST,
            Self::UnknownPath(_)
            | Self::UnknownEngine(_)
            | Self::NoBackend { cause: PickError::UnknownModel | PickError::OtherTask, .. } => {
                StatusCode::NOT_FOUND
            }
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyStalled => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeadTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UpstreamFailed(_) => StatusCode::BAD_GATEWAY,
            Self::BodyBudget | Self::NoBackend { .. } | Self::ConnectFailed(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// Whose fault it is.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        match self {
            Self::BodyBudget => Origin::Router,
            Self::NoBackend { cause: PickError::UnknownModel | PickError::OtherTask, .. } => Origin::Client,
            Self::NoBackend { .. } | Self::ConnectFailed(_) | Self::UpstreamFailed(_) => Origin::Upstream,
            _ => Origin::Client,
        }
    }

    /// Whether the same request may be sent again.
    #[must_use]
    pub const fn retryable(&self) -> Retryable {
        match self.status() {
            StatusCode::SERVICE_UNAVAILABLE => Retryable::Yes,
            _ => Retryable::No,
        }
    }

    /// The response: OpenAI's error shape, and `Retry-After` where trying again makes sense.
    #[must_use]
    pub fn into_response(self) -> Response<Full<Bytes>> {
        let kind = match self.origin() {
            Origin::Client => "invalid_request_error",
            Origin::Router | Origin::Upstream => "server_error",
        };
        let param = matches!(self, Self::NoBackend { cause: PickError::UnknownModel, .. }).then_some("model");
        let body = serde_json::json!({
            "error": { "message": self.to_string(), "type": kind, "param": param, "code": self.code() }
        });
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.retryable() == Retryable::Yes {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if matches!(self, Self::MethodNotAllowed) {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }
}

fn describe(cause: PickError, model: Option<&str>) -> String {
    // The name is the client's: bounded, and quoted by the JSON writer.
    let shown = model.map(|model| model.chars().take(128).collect::<String>());
    match (cause, shown) {
        (PickError::UnknownModel, Some(shown)) => format!("the model `{shown}` does not exist"),
        (PickError::OtherTask, Some(shown)) => format!("no backend of the model `{shown}` serves this path"),
        (cause, _) => cause.to_string(),
    }
}

/// An error and its causes on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Whether a connection failed for what this process or host lacks: descriptors, ports, memory, rights. Nobody else is
/// to blame for that.
#[must_use]
pub fn is_local(error: &std::io::Error) -> bool {
    [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL, libc::EACCES]
        .iter()
        .any(|&e| error.raw_os_error() == Some(e))
}

#[cfg(test)]
mod tests {
    use super::{ProxyError, Retryable};
    use http_body_util::BodyExt;
    use router_policy::PickError;

    fn all() -> Vec<(ProxyError, u16)> {
        let no = |cause| ProxyError::NoBackend { cause, model: Some("m".into()) };
        vec![
            (ProxyError::BadBody("x".into()), 400),
            (ProxyError::ClientGone, 400),
            (ProxyError::UnknownPath("/x".into()), 404),
            (ProxyError::UnknownEngine("x".into()), 404),
            (no(PickError::UnknownModel), 404),
            (no(PickError::OtherTask), 404),
            (ProxyError::MethodNotAllowed, 405),
            (ProxyError::BodyStalled, 408),
            (ProxyError::BodyTooLarge { limit_bytes: 1 }, 413),
            (ProxyError::HeadTooLarge { limit_bytes: 1 }, 431),
            (ProxyError::UpstreamFailed("x".into()), 502),
            (ProxyError::BodyBudget, 503),
            (no(PickError::NoBackend), 503),
            (no(PickError::NoneReady), 503),
            (no(PickError::AllTried), 503),
            (no(PickError::AllFull), 503),
            (ProxyError::ConnectFailed("x".into()), 503),
        ]
    }

    #[test]
    fn every_error_has_its_status() {
        for (error, status) in all() {
            assert_eq!(error.status().as_u16(), status, "{error:?}");
        }
    }

    #[test]
    fn only_what_no_engine_began_may_be_sent_again() {
        for (error, status) in all() {
            assert_eq!(error.retryable() == Retryable::Yes, status == 503, "{error:?}");
        }
    }

    #[tokio::test]
    async fn the_body_is_openai_style_whatever_the_client_named() {
        let model = Some("\"}\n\u{0}\u{1f600}".repeat(100));
        let error = ProxyError::NoBackend { cause: PickError::UnknownModel, model };
        let body = error.into_response().into_body().collect().await.unwrap().to_bytes();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(json["error"]["code"], "model_not_found");
        assert_eq!(json["error"]["type"], "invalid_request_error");
        assert_eq!(json["error"]["param"], "model");
        assert!(json["error"]["message"].as_str().unwrap().len() < 600, "a client's text is cut");
    }
}
