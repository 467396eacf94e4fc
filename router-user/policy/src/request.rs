//! What the policy knows of a request: a shape, never text.

use crate::prefix::{BLOCK_BYTES, Chain};
use crate::task::Task;

/// Shape of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestShape {
    /// The model the client named, as it named it.
    pub model: Option<Box<str>>,
    /// The kind of work its path asks for.
    pub task: Task,
    /// Chained hashes of the prompt; empty for a request without a shape.
    pub chain: Chain,
    /// Whether the prompt could be read; without it the request is placed by load alone.
    pub shaped: bool,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// Hash of the session's name, where the client gave one.
    pub session: Option<u64>,
    /// Answers asked for; at least 1. They share the prompt.
    pub n: u32,
    /// Tokens each answer may have at most, if the client said so.
    pub max_tokens: Option<u32>,
}

impl Default for RequestShape {
    fn default() -> Self {
        Self {
            model: None,
            task: Task::Any,
            chain: Chain::default(),
            shaped: false,
            stream: false,
            n: 1,
            max_tokens: None,
            session: None,
        }
    }
}

impl RequestShape {
    /// A request whose prompt is not known (other paths): placed by least-in-flight, T = U = 0.
    #[must_use]
    pub fn unshaped() -> Self {
        Self::default()
    }

    /// T: estimated prompt tokens at `chars_per_token`; 0 without a shape.
    #[must_use]
    pub fn prompt_tokens(&self, chars_per_token: f64) -> u64 {
        if self.shaped { (self.chain.bytes as f64 / chars_per_token).ceil() as u64 } else { 0 }
    }

    /// Tokens of so many leading blocks; at most T − 1, as an engine computes at least one token.
    #[must_use]
    pub fn matched_tokens(&self, blocks: u32, chars_per_token: f64) -> u64 {
        if blocks == 0 {
            return 0;
        }
        let tokens = (f64::from(blocks) * BLOCK_BYTES as f64 / chars_per_token) as u64;
        tokens.min(self.prompt_tokens(chars_per_token).saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::{Chain, RequestShape};

    #[test]
    fn at_least_one_token_is_never_cached() {
        let chain = Chain { blocks: vec![1, 2], bytes: 512 };
        let shape = RequestShape { chain, shaped: true, ..RequestShape::default() };
        assert_eq!((shape.prompt_tokens(4.0), shape.prompt_tokens(3.0)), (128, 171));
        assert_eq!((shape.matched_tokens(1, 4.0), shape.matched_tokens(2, 4.0)), (64, 127));
        assert_eq!(RequestShape::unshaped().matched_tokens(3, 4.0), 0);
    }
}
