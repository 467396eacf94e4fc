//! What an answer says of itself.

/// Tokens by the engine's own count, and the answer's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens; `None` = not told.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer; `None` = not told.
    pub completion_tokens: Option<u64>,
    /// Bytes of the answer's body, for an estimate where the engine tells nothing.
    pub answer_bytes: u64,
}
