//! From a request's bytes to its shape: what the path is ([`path`]), what the body asks for (an object of the OpenAI dialects, over the
//! scanner [`json`]). Pure functions; the bytes stay with the caller, who forwards them as they came.

use bytes::Bytes;
use router_policy::RequestShape;
use router_policy::prefix::HashKey;

pub mod json;
mod openai;
pub mod path;
mod session;

pub use path::classify;
pub use session::session;

/// What a path is to the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// An inference path whose body gives a shape.
    Inference,
    /// Proxied, placed by load alone.
    Other,
    /// The router answers itself: `GET /v1/models`, `/health`, `/version`.
    Own,
    /// Not proxied: 404.
    Refused,
}

/// Why a body gives no shape on an inference path (400).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct BodyError {
    /// What is wrong, without quoting the body.
    pub what: &'static str,
    /// Where.
    pub at: usize,
}

/// Reads the shape of a body on an inference path. One scan of the whole body, then one of the prompt's part, which
/// is hashed where it lies: no copy, no allocation but the hashes; O(bytes).
///
/// A model that is absent, `null`, empty or no text is `None`: any backend may serve the request. A prompt that
/// cannot be read (`messages` is a number) gives a shape that is not `shaped`.
///
/// # Errors
/// [`BodyError`] if the body is empty, no JSON object, not closed, or nested deeper than [`json::DEPTH_MAX`]. Legal
/// but odd bodies give a shape.
pub fn shape(body: &Bytes, key: &HashKey) -> Result<RequestShape, BodyError> {
    openai::shape(body, key)
}
