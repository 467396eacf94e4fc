//! The prefix index: prompts as chains of block hashes, and which backend holds which block.

pub mod block;
pub mod trie;

pub use block::{Chain, ChainBuilder, HashKey};
