//! Warm restarts: what the engines hold and what they taught, kept in a file from one router to its successor.
//!
//! Reading order: [`mod@format`], [`pieces`], [`mod@write`], [`mod@read`] (the bytes), [`place`] (the directory, and whose file is whose),
//! [`saver`] (when, and beside what), [`warm`] (what was read and waits for its engine). Knows no ledger: what is saved
//! comes through a [`Source`] that `app` gives. Invariants: nothing here makes a pick wait for more than one slice of a
//! copy; a state that cannot be written or read never stops a router; what is loaded is evidence, as everything in the
//! index is, and is dropped where it may be of another process.

pub mod format;
mod metrics;
pub mod pieces;
pub mod place;
pub mod read;
pub mod saver;
pub mod warm;
pub mod write;

use std::time::{SystemTime, UNIX_EPOCH};

use router_policy::BackendId;
use router_policy::prefix::{Copying, HashKey};

pub use format::{Engine, KEY_BYTES, Refused, Saved, State};
pub use metrics::{Failure, Metrics};
use pieces::Pieces;
pub use place::Place;
pub use read::read;
pub use saver::Saver;
pub use warm::Warm;
pub use write::Writer;

/// What is saved.
pub trait Source: Send {
    /// The secret of the hashes.
    fn key(&self) -> &HashKey;
    /// The engines that there are.
    fn engines(&self) -> Vec<(BackendId, Engine)>;
    /// Begins to copy what is held of one.
    fn begin_copy(&self, id: BackendId) -> Copying;
    /// Copies so many pieces more; whether more are to come. `None`: it lost all of them. Picks wait meanwhile.
    fn copy(&self, copying: &Copying, pieces: usize, to: &mut Pieces) -> Option<bool>;
}

/// Bytes of a state at most, for an index of so many blocks. It takes no more of memory, and a piece of up to eight
/// blocks, which takes at least 164 bytes there, takes at most 145 here; the rest is for what is copied twice, for it
/// was touched meanwhile.
#[must_use]
pub const fn bytes_max(index_blocks_max: usize) -> u64 {
    (1 << 20) + 48 * index_blocks_max as u64
}

/// Now; Unix milliseconds.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
