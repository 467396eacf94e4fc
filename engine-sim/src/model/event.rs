//! What an engine answers: a refusal at submission, or events later.

use super::sequence::RequestId;
use super::time::Nanos;

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// It would not fit even alone.
    #[error("prompt and max_tokens need {needed} tokens of context, but this engine has {limit}")]
    TooLong {
        /// Tokens of prompt and answer.
        needed: u64,
        /// Tokens that all blocks hold.
        limit: u32,
    },
    /// `max_waiting` requests wait already.
    #[error("the queue is full with {limit} requests")]
    QueueFull {
        /// `max_waiting`.
        limit: u32,
    },
}

/// Something that happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The end of the step in which it happened.
    pub at: Nanos,
    /// Whose event it is.
    pub id: RequestId,
    /// What happened.
    pub kind: EventKind,
}

/// What happens to requests. A request of n tokens gives one `FirstToken`, n - 1 `Token` and then `Finished`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The prefill ended and gave the first token.
    FirstToken {
        /// Prompt tokens that the prefix cache had.
        cached_tokens: u32,
    },
    /// One more token.
    Token,
    /// The last token came at this same time; seat and blocks are free.
    Finished,
}
