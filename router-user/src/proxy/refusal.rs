//! Under which reason a request that the router answers with an error is counted.

use router_policy::PickError;

use crate::error::ProxyError;
use crate::observe::Refusal;

/// The reason of an error.
pub(super) const fn reason(error: &ProxyError) -> Refusal {
    match error {
        ProxyError::BadBody(_) => Refusal::BadBody,
        ProxyError::BodyTooLarge { .. } => Refusal::BodyTooLarge,
        ProxyError::BodyBudget => Refusal::BodyBudget,
        ProxyError::ClientGone => Refusal::ClientGone,
        ProxyError::HeadTooLarge { .. } => Refusal::HeadTooLarge,
        ProxyError::UnknownPath(_) => Refusal::UnknownPath,
        ProxyError::BodyStalled | ProxyError::MethodNotAllowed | ProxyError::Upgrade => Refusal::BadRequest,
        ProxyError::NoBackend { cause: PickError::UnknownModel, .. } => Refusal::UnknownModel,
        ProxyError::NoBackend { cause: PickError::NoBackend, .. } => Refusal::NoBackend,
        ProxyError::NoBackend { cause: PickError::AllFull, .. } => Refusal::AllFull,
        ProxyError::NoBackend { cause: PickError::NoneReady | PickError::AllTried, .. } => Refusal::NoneReady,
        ProxyError::ConnectFailed(_) => Refusal::ConnectFailed,
        ProxyError::UpstreamFailed(_) => Refusal::UpstreamFailed,
    }
}
