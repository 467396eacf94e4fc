//! The prefix index: prompts as chains of block hashes, and which backend holds which block.

mod age;
pub mod block;
mod copy;
mod path;
mod recall;
mod run;
mod slab;
pub mod trie;
mod walk;

pub use block::{BLOCK_BYTES, BlockHash, Chain, ChainBuilder, HashKey};
pub use copy::{Copying, Held};
pub use recall::Recalled;
pub use trie::{Pin, Trie, TrieCounters};
pub use walk::Walk;
