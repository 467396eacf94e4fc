//! The prefix index: prompts as chains of block hashes, and which backend holds which block.

pub mod block;
mod slab;
pub mod trie;

pub use block::{BLOCK_BYTES, BlockHash, Chain, ChainBuilder, HashKey};
pub use trie::{Pin, Trie, TrieCounters, Walk};
