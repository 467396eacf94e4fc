//! What the policy knows of a request: a shape, never text.

use crate::prefix::Chain;

/// Shape of one request.
#[derive(Clone, Debug, Default)]
pub struct RequestShape {
    /// The model the client named, as it named it.
    pub model: Option<Box<str>>,
    /// Chained hashes of the prompt; empty for a request without a shape.
    pub chain: Chain,
    /// Whether the prompt could be read; without it the request is placed by load alone.
    pub shaped: bool,
    /// Whether the client asked for a stream.
    pub stream: bool,
}

impl RequestShape {
    /// A request whose prompt is not known (other paths): placed by least-in-flight, T = U = 0.
    #[must_use]
    pub fn unshaped() -> Self {
        Self::default()
    }
}
