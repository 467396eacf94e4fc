//! What can go wrong with a request, whose fault it is, and the one function that turns it into a response.

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
    /// The client broke off while it sent the body (no response reaches it).
    #[error("the client broke off its request")]
    ClientGone,
    /// No such path (404).
    #[error("no such path: {0}")]
    UnknownPath(String),
    /// No backend could be picked (404 for an unknown model, else 503).
    #[error("{cause}")]
    NoBackend {
        /// Why.
        cause: PickError,
        /// The model asked for.
        model: Option<String>,
    },
    /// No connection to any backend (502... after every ready one was tried: 503).
    #[error("no backend could be reached: {0}")]
    ConnectFailed(String),
    /// The engine gave no answer (502).
    #[error("the backend gave no answer: {0}")]
    UpstreamFailed(String),
    /// The router is shutting down (503).
    #[error("the router is shutting down")]
    ShuttingDown,
}
