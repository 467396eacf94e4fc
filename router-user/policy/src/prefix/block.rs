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

    /// The secret, to be kept as safe as it is here.
    #[must_use]
    pub const fn reveal(&self) -> &[u8; 192] {
        &self.0
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
    /// Hash of the blocks before.
    before: BlockHash,
    /// The block being filled.
    buffer: [u8; BLOCK_BYTES],
    filled: usize,
    chain: Chain,
}

impl<'k> ChainBuilder<'k> {
    /// Starts a chain. Equal `domain`s (model, adapter, salt) are needed for two chains to share anything.
    #[must_use]
    pub fn new(key: &'k HashKey, domain: &[u8]) -> Self {
        let before = xxh3_128_with_secret(domain, &key.0);
        Self { key, before, buffer: [0; BLOCK_BYTES], filled: 0, chain: Chain::default() }
    }

    /// Appends bytes of prompt. O(bytes); what fills a block by itself is not copied.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.chain.bytes += bytes.len() as u64;
        let more = (self.filled + bytes.len()) / BLOCK_BYTES;
        self.chain.blocks.reserve(more.min(MAX_BLOCKS - self.chain.blocks.len()));
        while !bytes.is_empty() && self.chain.blocks.len() < MAX_BLOCKS {
            if self.filled == 0
                && let Some((block, rest)) = bytes.split_first_chunk()
            {
                self.push(block);
                bytes = rest;
                continue;
            }
            let take = bytes.len().min(BLOCK_BYTES - self.filled);
            let (now, rest) = bytes.split_at(take);
            self.buffer[self.filled..self.filled + take].copy_from_slice(now);
            self.filled += take;
            bytes = rest;
            if self.filled == BLOCK_BYTES {
                let block = self.buffer;
                self.push(&block);
                self.filled = 0;
            }
        }
    }

    /// Chains a block. Its halves are hashed by themselves, since xxh3 is faster below 129 bytes than at 256, and since
    /// a processor then need not wait for the block before: only for the short hash that ties them to it.
    fn push(&mut self, block: &[u8; BLOCK_BYTES]) {
        let (first, second) = block.split_at(BLOCK_BYTES / 2);
        let mut parts = [0; 48];
        parts[..16].copy_from_slice(&self.before.to_ne_bytes());
        parts[16..32].copy_from_slice(&xxh3_128_with_secret(first, &self.key.0).to_ne_bytes());
        parts[32..].copy_from_slice(&xxh3_128_with_secret(second, &self.key.0).to_ne_bytes());
        self.before = xxh3_128_with_secret(&parts, &self.key.0);
        self.chain.blocks.push(self.before);
    }

    /// The chain; the last partial block is left out of `blocks`, not of `bytes`.
    #[must_use]
    pub fn finish(self) -> Chain {
        self.chain
    }
}
