//! From a request's bytes to its shape: what the path is ([`path`]), what the body asks for (`openai`), which model
//! its name means (`names`) and what of it is prompt (`prompt`), over the scanner [`json`]. Pure functions; the bytes stay with the caller, who forwards
//! them as they came.

use bytes::Bytes;
use router_policy::RequestShape;
use router_policy::prefix::HashKey;

mod form;
pub mod json;
mod names;
mod openai;
pub mod path;
mod prompt;
mod session;

pub use form::{form_model, query_model};
pub use names::{Aliases, Names, rename};
pub use path::{classify, task};
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

/// Reads the shape of a body on an inference path. One scan of the body; the prompt's part is then hashed where it
/// lies: no copy, no allocation but the hashes, token ids and a list of the prompt's pieces; O(bytes).
///
/// A model that is absent, `null`, empty or no text is `None`: any backend may serve the request. A prompt that
/// cannot be read (`messages` is a number), or a body with half a surrogate pair, gives a shape that is not `shaped`.
/// Pictures, sounds and files take part by a hash of their URL or bytes, which counts 16 bytes. Token ids count four
/// bytes each. Of a batch of prompts the first decides the chain, and all count in its bytes: an engine caches each
/// by itself, but the batch goes to one backend.
///
/// # Errors
/// [`BodyError`] if the body is empty, no JSON object, not closed, or nested deeper than [`json::DEPTH_MAX`]. Legal
/// but odd bodies give a shape.
pub fn shape(body: &Bytes, key: &HashKey) -> Result<RequestShape, BodyError> {
    shape_with(body, key, &Names::default())
}

/// As [`shape`], with aliases: an alias and its model give the same chain. The shape's `model` is the client's word.
///
/// # Errors
/// As [`shape`].
pub fn shape_with(body: &Bytes, key: &HashKey, names: &Names) -> Result<RequestShape, BodyError> {
    openai::shape(body, key, names)
}
