//! What the policy knows of a request: a shape, never text.

use crate::prefix::{BLOCK_BYTES, Chain};

/// Bytes of JSON text per token, assumed.
pub const CHARS_PER_TOKEN: u64 = 4;

/// Tokens in a block.
const BLOCK_TOKENS: u64 = BLOCK_BYTES as u64 / CHARS_PER_TOKEN;

/// Shape of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestShape {
    /// The model the client named, as it named it.
    pub model: Option<Box<str>>,
    /// Chained hashes of the prompt; empty for a request without a shape.
    pub chain: Chain,
    /// Whether the prompt could be read; without it the request is placed by load alone.
    pub shaped: bool,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// Answers asked for; at least 1. They share the prompt.
    pub n: u32,
    /// Tokens each answer may have at most, if the client said so.
    pub max_tokens: Option<u32>,
}

impl Default for RequestShape {
    fn default() -> Self {
        Self { model: None, chain: Chain::default(), shaped: false, stream: false, n: 1, max_tokens: None }
    }
}

impl RequestShape {
    /// A request whose prompt is not known (other paths): placed by least-in-flight, T = U = 0.
    #[must_use]
    pub fn unshaped() -> Self {
        Self::default()
    }

    /// T: estimated prompt tokens; 0 without a shape.
    #[must_use]
    pub const fn prompt_tokens(&self) -> u64 {
        if self.shaped { self.chain.bytes.div_ceil(CHARS_PER_TOKEN) } else { 0 }
    }

    /// Tokens of so many leading blocks; at most T − 1, as an engine computes at least one token.
    #[must_use]
    pub fn matched_tokens(&self, blocks: u32) -> u64 {
        (u64::from(blocks) * BLOCK_TOKENS).min(self.prompt_tokens().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::{Chain, RequestShape};

    #[test]
    fn at_least_one_token_is_never_cached() {
        let chain = Chain { blocks: vec![1, 2], bytes: 512 };
        let shape = RequestShape { chain, shaped: true, ..RequestShape::default() };
        assert_eq!(shape.prompt_tokens(), 128);
        assert_eq!((shape.matched_tokens(1), shape.matched_tokens(2)), (64, 127));
        assert_eq!(RequestShape::unshaped().matched_tokens(3), 0);
    }
}
