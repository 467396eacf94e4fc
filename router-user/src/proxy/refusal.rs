//! Under which reason a request that the router answers with an error is counted.

use router_policy::PickError;

use crate::error::ProxyError;

/// Why the router itself answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The body is no complete JSON object (400).
    BadBody,
    /// The body is over its limit (413).
    BodyTooLarge,
    /// All bodies together are over their limit (503).
    BodyBudget,
    /// The head is over its limit (431).
    HeadTooLarge,
    /// The path is not proxied (404).
    UnknownPath,
    /// No engine has the id asked for (404).
    UnknownEngine,
    /// No backend has the model (404).
    UnknownModel,
    /// None that has the model serves the path (404).
    OtherTask,
    /// No backend is configured (503).
    NoBackend,
    /// None that has the model is ready (503).
    NoneReady,
    /// All are at their limit of requests in flight (503).
    AllFull,
    /// No connection to any (503).
    ConnectFailed,
    /// The engine gave no answer (502).
    UpstreamFailed,
    /// The client broke off before its request was whole (no answer reaches it).
    ClientGone,
    /// Anything else that HTTP forbids (400 or 405).
    BadRequest,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::BadBody,
        Self::BodyTooLarge,
        Self::BodyBudget,
        Self::HeadTooLarge,
        Self::UnknownPath,
        Self::UnknownEngine,
        Self::UnknownModel,
        Self::OtherTask,
        Self::NoBackend,
        Self::NoneReady,
        Self::AllFull,
        Self::ConnectFailed,
        Self::UpstreamFailed,
        Self::ClientGone,
        Self::BadRequest,
    ];

    /// The reason as one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadBody => "bad_body",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyBudget => "body_budget",
            Self::HeadTooLarge => "head_too_large",
            Self::UnknownPath => "unknown_path",
            Self::UnknownEngine => "unknown_engine",
            Self::UnknownModel => "unknown_model",
            Self::OtherTask => "other_task",
            Self::NoBackend => "no_backend",
            Self::NoneReady => "none_ready",
            Self::AllFull => "all_full",
            Self::ConnectFailed => "connect_failed",
            Self::UpstreamFailed => "upstream_failed",
            Self::ClientGone => "client_gone",
            Self::BadRequest => "bad_request",
        }
    }

    /// The reason of an error.
    #[must_use]
    pub const fn of(error: &ProxyError) -> Self {
        match error {
            ProxyError::BadBody(_) => Self::BadBody,
            ProxyError::BodyTooLarge { .. } => Self::BodyTooLarge,
            ProxyError::BodyBudget => Self::BodyBudget,
            ProxyError::ClientGone => Self::ClientGone,
            ProxyError::HeadTooLarge { .. } => Self::HeadTooLarge,
            ProxyError::UnknownPath(_) => Self::UnknownPath,
            ProxyError::UnknownEngine(_) => Self::UnknownEngine,
            ProxyError::BodyStalled | ProxyError::MethodNotAllowed => Self::BadRequest,
            ProxyError::NoBackend { cause: PickError::UnknownModel, .. } => Self::UnknownModel,
            ProxyError::NoBackend { cause: PickError::OtherTask, .. } => Self::OtherTask,
            ProxyError::NoBackend { cause: PickError::NoBackend, .. } => Self::NoBackend,
            ProxyError::NoBackend { cause: PickError::AllFull, .. } => Self::AllFull,
            ProxyError::NoBackend { cause: PickError::NoneReady | PickError::AllTried, .. } => {
                Self::NoneReady
            }
            ProxyError::ConnectFailed(_) => Self::ConnectFailed,
            ProxyError::UpstreamFailed(_) => Self::UpstreamFailed,
        }
    }
}
