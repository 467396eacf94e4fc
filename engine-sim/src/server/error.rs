//! Errors as OpenAI's API words them.

use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::json;

use super::body::{Body, json_response};
use crate::model::SubmitError;

/// A refusal: its status and the fields of its body.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<&'static str>,
    code: Option<&'static str>,
    retry_after_s: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let kind = "invalid_request_error";
        Self { status, message: message.into(), kind, param: None, code: None, retry_after_s: None }
    }

    /// The client's mistake, in a field if `param` says which.
    pub(super) fn bad_request(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    pub(super) fn unauthorized() -> Self {
        let code = Some("invalid_api_key");
        Self { code, ..Self::new(StatusCode::UNAUTHORIZED, "Incorrect API key provided.") }
    }

    pub(super) fn unknown_model(model: &str) -> Self {
        let message = format!("The model `{model}` does not exist.");
        let (param, code) = (Some("model"), Some("model_not_found"));
        Self { param, code, ..Self::new(StatusCode::NOT_FOUND, message) }
    }

    pub(super) fn unknown_path(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("Unknown path {path}"))
    }

    pub(super) fn wrong_method(path: &str) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take this method"))
    }

    pub(super) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("The body is larger than {limit} bytes"))
    }

    /// The engine starts.
    pub(super) fn loading() -> Self {
        let kind = "unavailable_error";
        Self { kind, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "Loading model") }
    }

    /// A fault.
    pub(super) fn injected(status: StatusCode, retry_after_s: Option<u32>) -> Self {
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            _ => "server_error",
        };
        Self { kind, retry_after_s, ..Self::new(status, "This fault was asked for") }
    }

    /// Every slot is taken, which llama.cpp says only if asked to.
    pub(super) fn no_slot() -> Self {
        let kind = "unavailable_error";
        Self { kind, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "no slot available") }
    }

    pub(super) fn response(&self) -> Response<Body> {
        let mut response = json_response(self.status, self.body());
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let Self { message, kind, param, code, .. } = self;
        let error = json!({"message": message, "type": kind, "param": param, "code": code});
        json!({ "error": error }).to_string().into_bytes()
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::TooLong { .. } => {
                let code = Some("context_length_exceeded");
                Self { code, ..Self::bad_request(error.to_string(), None) }
            }
            SubmitError::QueueFull { .. } => {
                let kind = "overloaded_error";
                Self { kind, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()) }
            }
        }
    }
}
