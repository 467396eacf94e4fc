//! Prompts as chains of keyed 128-bit hashes over blocks of 256 bytes.

use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Bytes of prompt a block holds. A character is a byte of the JSON text of a message's content.
pub const BLOCK_BYTES: usize = 256;

/// Hash of a block and all before it.
pub type BlockHash = u128;

/// Blocks kept of one prompt at most (16 MiB of text); what lies beyond never matches.
pub const MAX_BLOCKS: usize = 65_536;

/// The secret of the hash: a client that does not know it cannot forge a collision.
#[derive(Clone)]
pub struct HashKey([u8; 192]);

impl HashKey {
    /// A key from random bytes of the caller.
    #[must_use]
    pub const fn new(secret: [u8; 192]) -> Self {
        Self(secret)
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

/// A prompt as the index sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Chained hashes of the complete blocks, in order.
    pub blocks: Vec<BlockHash>,
    /// Bytes of prompt, complete blocks or not.
    pub bytes: u64,
}

/// Cuts a prompt that comes in pieces into blocks.
#[derive(Debug)]
pub struct ChainBuilder<'k> {
    key: &'k HashKey,
    /// Hash of the block before, then the bytes of the block being filled.
    buffer: [u8; 16 + BLOCK_BYTES],
    filled: usize,
    chain: Chain,
}

impl<'k> ChainBuilder<'k> {
    /// Starts a chain. Equal `domain`s (model, adapter, salt) are needed for two chains to share anything.
    #[must_use]
    pub fn new(key: &'k HashKey, domain: &[u8]) -> Self {
        let mut buffer = [0; 16 + BLOCK_BYTES];
        buffer[..16].copy_from_slice(&xxh3_128_with_secret(domain, &key.0).to_ne_bytes());
        Self { key, buffer, filled: 0, chain: Chain::default() }
    }

    /// Appends bytes of prompt. O(bytes).
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.chain.bytes += bytes.len() as u64;
        while !bytes.is_empty() && self.chain.blocks.len() < MAX_BLOCKS {
            let take = bytes.len().min(BLOCK_BYTES - self.filled);
            let (now, rest) = bytes.split_at(take);
            self.buffer[16 + self.filled..16 + self.filled + take].copy_from_slice(now);
            self.filled += take;
            bytes = rest;
            if self.filled == BLOCK_BYTES {
                let hash = xxh3_128_with_secret(&self.buffer, &self.key.0);
                self.chain.blocks.push(hash);
                self.buffer[..16].copy_from_slice(&hash.to_ne_bytes());
                self.filled = 0;
            }
        }
    }

    /// The chain; the last partial block is left out of `blocks`, not of `bytes`.
    #[must_use]
    pub fn finish(self) -> Chain {
        self.chain
    }
}
