//! What a state file holds. Pure: bytes in, bytes out.
//!
//! ```text
//! header   magic 8 | version u32 | bytes of a block u32 | saved at u64 | check u64
//! chunk    kind u32 | length u32 | check u64 | payload
//!   key      192 bytes: the secret of the hashes
//!   engine   address 16 | port u16 | seen at u64 | process start f64 | KV tokens u64 | seats 3 × u32
//!            | averages 6 × (f64, u64) | URL; NaN and 0 stand for unknown
//!   pieces   of the engine before, by age: 1 to 8 blocks of a prompt, or the number of an answer's (see `pieces`)
//!   whole    pieces u64: there are so many of the engine before; without it they are void
//!   end      the last chunk
//! ```
//! Numbers are little endian, times are Unix milliseconds. A check is the XXH3-64 of what lies before it and of the
//! payload, seeded with the chunk's number, so that none can be changed, left out or moved. Invariant: what [`read`](super::read())
//! lets through is whole, as one [`Writer`](super::write::Writer) wrote it; no bytes make it panic, or allocate more than their length.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use router_policy::Taught;
use router_policy::prefix::Recalled;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::pieces;

pub(super) const MAGIC: [u8; 8] = *b"unlatch\0";
/// To be raised with this format, and with the rule by which prompts become hashes.
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER: usize = 32;
pub(super) const CHUNK: usize = 16;
/// Bytes of an engine but for its URL.
pub(super) const ENGINE_BYTES: usize = 16 + 2 + 8 + 8 + 8 + 12 + 6 * 16;
pub(super) const URL_BYTES_MAX: usize = 4096;
/// Engines of a state at most: more than can be at once, since some wait to be there again.
pub const ENGINES_MAX: usize = 1024;

/// Bytes of the secret of the hashes.
pub const KEY_BYTES: usize = 192;

/// What a chunk is.
pub(super) mod kind {
    pub(in super::super) const KEY: u32 = 1;
    pub(in super::super) const ENGINE: u32 = 2;
    pub(in super::super) const PIECES: u32 = 3;
    pub(in super::super) const WHOLE: u32 = 4;
    pub(in super::super) const END: u32 = 5;
}

/// Why a file is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Something else.
    #[error("it is no state of a router")]
    Foreign,
    /// Another version of the program wrote it.
    #[error("another version of the program wrote it")]
    OtherVersion,
    /// It ends too early.
    #[error("it is cut short")]
    Cut,
    /// It is not as it was written.
    #[error("a checksum is wrong")]
    Damaged,
    /// Its checksums are right and its content is not.
    #[error("its content is none")]
    Malformed,
}

/// What identifies an engine, and what it taught.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// Where it is: its identity.
    pub addr: SocketAddr,
    /// Its URL, for people.
    pub url: String,
    /// When it was last known to be there; Unix milliseconds.
    pub seen_at: u64,
    /// When its process started, if it told; Unix seconds.
    pub process_start: Option<f64>,
    /// What it taught.
    pub taught: Taught,
}

/// An engine as it was saved. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Which, and what it taught.
    pub engine: Engine,
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) pieces: Vec<Range<usize>>,
    pub(super) count: u64,
}

impl Saved {
    /// What it held. O(blocks).
    #[must_use]
    pub fn recall(&self) -> Recalled {
        let mut recalled = Recalled::default();
        for range in &self.pieces {
            pieces::recall(&self.bytes[range.clone()], &mut recalled);
        }
        recalled
    }

    /// Whether it held anything.
    #[must_use]
    pub const fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Forgets what it held.
    pub fn forget(&mut self) {
        (self.pieces, self.count) = Default::default();
    }
}

/// A state as it was read.
#[derive(Debug)]
pub struct State {
    /// When it was saved; Unix milliseconds.
    pub saved_at: u64,
    /// The secret of the hashes.
    pub key: Key,
    /// The engines.
    pub engines: Vec<Saved>,
}

/// The secret of the hashes.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; KEY_BYTES]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// The check of a chunk: of its head and its payload.
pub(super) fn check(head: &[u8], payload: &[u8], number: u64) -> u64 {
    xxh3_64_with_seed(head, xxh3_64_with_seed(payload, number))
}
