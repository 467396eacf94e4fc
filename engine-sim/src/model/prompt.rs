//! Prompts as the model sees them: a token count and chained hashes of the full blocks.
//!
//! Four bytes of text are one token, so a block of 16 tokens is 64 bytes. No tokeniser, no chat template:
//! texts with an equal prefix get equal leading hashes, and that is all the cache needs.
//! Invariant: hash `i` depends on every byte of blocks `0..=i` and on nothing after them.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens in a KV block.
pub const BLOCK_TOKENS: u32 = 16;
/// Bytes of text that count as one token.
pub const TOKEN_BYTES: usize = 4;
const BLOCK_BYTES: usize = BLOCK_TOKENS as usize * TOKEN_BYTES;

/// Chained hash of a full block. 64 bits: at ten million blocks a collision has a chance of 3 in a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash(pub u64);

/// What the engine needs to know of a prompt. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    tokens: u32,
    hashes: Arc<[BlockHash]>,
}

impl Prompt {
    /// A prompt of `tokens` tokens (at least one) whose full blocks have these chained hashes.
    ///
    /// Hashes beyond the full blocks are ignored; full blocks without a hash are never found in the cache.
    #[must_use]
    pub fn new(tokens: u32, hashes: Arc<[BlockHash]>) -> Self {
        Self { tokens: tokens.max(1), hashes }
    }

    /// The prompt of a text.
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        let mut builder = PromptBuilder::default();
        builder.push(text.as_bytes());
        builder.build()
    }

    /// Length in tokens, at least 1.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Hashes of the full blocks, in order.
    #[must_use]
    pub fn hashes(&self) -> &[BlockHash] {
        let full = (self.tokens / BLOCK_TOKENS) as usize;
        &self.hashes[..full.min(self.hashes.len())]
    }
}

/// Builds a prompt from pieces of text without joining them.
#[derive(Debug, Default)]
pub struct PromptBuilder {
    hashes: Vec<BlockHash>,
    partial: Vec<u8>,
}

impl PromptBuilder {
    /// Appends a piece; where the pieces are cut makes no difference.
    pub fn push(&mut self, mut piece: &[u8]) {
        if !self.partial.is_empty() {
            let (head, rest) = piece.split_at(piece.len().min(BLOCK_BYTES - self.partial.len()));
            self.partial.extend_from_slice(head);
            piece = rest;
            if self.partial.len() < BLOCK_BYTES {
                return;
            }
            let block = std::mem::take(&mut self.partial);
            self.chain(&block);
        }
        let mut blocks = piece.chunks_exact(BLOCK_BYTES);
        for block in &mut blocks {
            self.chain(block);
        }
        self.partial.extend_from_slice(blocks.remainder());
    }

    /// The prompt of all pieces; tokens are rounded up.
    #[must_use]
    pub fn build(self) -> Prompt {
        let bytes = self.hashes.len() * BLOCK_BYTES + self.partial.len();
        let tokens = u32::try_from(bytes.div_ceil(TOKEN_BYTES)).unwrap_or(u32::MAX);
        Prompt::new(tokens, self.hashes.into())
    }

    fn chain(&mut self, block: &[u8]) {
        let parent = self.hashes.last().map_or(0, |hash| hash.0);
        self.hashes.push(BlockHash(xxh3_64_with_seed(block, parent)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bytes_are_a_token_rounded_up_and_never_none() {
        for (bytes, tokens) in [(0, 1), (1, 1), (4, 1), (5, 2), (64, 16), (65, 17)] {
            assert_eq!(Prompt::of_text(&"a".repeat(bytes)).tokens(), tokens, "{bytes} bytes");
        }
    }

    #[test]
    fn only_full_blocks_have_a_hash() {
        for (bytes, blocks) in [(63, 0), (64, 1), (127, 1), (128, 2)] {
            assert_eq!(Prompt::of_text(&"a".repeat(bytes)).hashes().len(), blocks, "{bytes} bytes");
        }
    }

    #[test]
    fn equal_prefixes_share_hashes_and_a_difference_changes_all_that_follow() {
        let common = "c".repeat(128);
        let a = Prompt::of_text(&format!("{common}{}{}", "x".repeat(64), "z".repeat(64)));
        let b = Prompt::of_text(&format!("{common}{}{}", "y".repeat(64), "z".repeat(64)));
        assert_eq!(a.hashes()[..2], b.hashes()[..2], "the shared blocks are equal");
        assert_ne!(a.hashes()[2], b.hashes()[2], "the differing block differs");
        assert_ne!(a.hashes()[3], b.hashes()[3], "equal text after another prefix is another block");
    }

    #[test]
    fn cutting_the_text_into_pieces_changes_nothing() {
        let text: String = (0..500).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
        let whole = Prompt::of_text(&text);
        for size in [1, 7, 63, 64, 65, 200] {
            let mut builder = PromptBuilder::default();
            for piece in text.as_bytes().chunks(size) {
                builder.push(piece);
            }
            assert_eq!(builder.build(), whole, "pieces of {size}");
        }
    }

    #[test]
    fn hashes_beyond_the_full_blocks_are_ignored() {
        let prompt = Prompt::new(17, [BlockHash(1), BlockHash(2)].into());
        assert_eq!(prompt.hashes(), [BlockHash(1)]);
    }
}
