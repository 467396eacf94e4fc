//! What outlives a router: what its engines hold, and what they taught.

use router_common::BackendId;

use super::Placement;
use crate::load::Taught;
use crate::prefix::{BlockHash, Copying, Held};
use crate::signal::Signal;
use crate::time::Nanos;

impl Placement {
    /// Begins to copy what the index holds of a backend; an earlier copy of it is void. O(1).
    pub fn begin_copy(&mut self, id: BackendId) -> Copying {
        self.trie.begin_copy(id)
    }

    /// Calls `see` with what comes next of a copy, at most `marks` times; whether more is to come. `None`: the backend
    /// lost everything meanwhile, and what was seen is void. O(marks).
    pub fn copy(
        &mut self,
        copying: &Copying,
        marks: usize,
        see: impl FnMut(Held<&mut dyn ExactSizeIterator<Item = BlockHash>>),
    ) -> Option<bool> {
        self.trie.copy(copying, marks, see)
    }

    /// A prompt is cached at `id`, and behind it so many blocks of its answer; they are the newest now. O(blocks).
    pub fn remember(&mut self, id: BackendId, blocks: &[BlockHash], answer_blocks: usize) {
        let Some(entry) = self.entry(id) else { return };
        let learned = entry.load.chars_per_token().value();
        let capacity = self.capacity(id, learned.unwrap_or(self.config.tuning.chars_per_token_start));
        let walk = &mut self.scratch.walk;
        self.trie.walk(blocks, walk);
        if let Some(pin) = self.trie.insert(id, blocks, walk, capacity) {
            self.trie.unpin(id, pin, answer_blocks.min(capacity), capacity);
        }
    }

    /// What a backend has taught so far; `None` if there is none at the row.
    #[must_use]
    pub fn taught(&self, id: BackendId) -> Option<Taught> {
        let entry = self.entry(id)?;
        Some(Taught { kv_tokens: entry.report.kv_tokens.value(), ..entry.load.taught() })
    }

    /// What a backend taught a router before this one. Values out of bounds are left out, and so is what is already
    /// known better.
    pub fn teach(&mut self, now: Nanos, id: BackendId, taught: &Taught) {
        let Some(entry) = self.entry_mut(id) else { return };
        entry.load.teach(taught);
        if let (Some(tokens @ 1..), None) = (taught.kv_tokens, entry.report.kv_tokens.value()) {
            entry.report.kv_tokens = Signal::known(tokens, now);
        }
        self.changed(id);
    }
}
