//! Copying out what a backend holds, in slices between which the index may change.
//!
//! The marks are met by age, the oldest first. What is touched between two slices leaves its place for the young end and
//! is met there, again if need be; what is lost is not met or was. Since a block is never older than what extends it,
//! **the block before one that was met is met after it**, unless it was lost meanwhile. So whoever inserts again what
//! was met, in this order, and drops what lacks the block before it, has the same holdings in the same order of age.

use router_common::BackendId;

use super::block::BlockHash;
use super::run::{Mark, MarkId, Runs};
use super::slab::NONE;
use super::trie::Trie;

/// A copy in progress; there is at most one of a backend.
#[derive(Debug)]
pub struct Copying {
    id: BackendId,
    epoch: u32,
}

/// Blocks that follow each other and are of one age.
#[derive(Debug)]
pub enum Held<B> {
    /// Of prompts; as many as a run has at most.
    Prompt {
        /// The block before the first; none at the beginning of a prompt.
        before: Option<BlockHash>,
        /// The blocks in order.
        blocks: B,
    },
    /// Of an answer, which match nothing: so many behind a block.
    Answer {
        /// The last block of the prompt.
        before: BlockHash,
        /// How many.
        blocks: u16,
    },
}

impl Trie {
    /// Begins to copy what a backend holds; an earlier copy of it is void. O(1).
    pub fn begin_copy(&mut self, id: BackendId) -> Copying {
        let list = self.lists.get_mut(id.index());
        let epoch = list.map_or(0, |list| {
            list.cursor = list.oldest().unwrap_or(NONE);
            list.epoch
        });
        Copying { id, epoch }
    }

    /// Calls `see` with what comes next, at most `marks` times; whether more is to come. `None`: the backend lost
    /// everything meanwhile, and what was seen is void. O(marks).
    pub fn copy(
        &mut self,
        copying: &Copying,
        marks: usize,
        mut see: impl FnMut(Held<&mut dyn ExactSizeIterator<Item = BlockHash>>),
    ) -> Option<bool> {
        let Some(list) = self.lists.get_mut(copying.id.index()) else { return Some(false) };
        if list.epoch != copying.epoch {
            return None;
        }
        for _ in 0..marks {
            if list.cursor == NONE {
                return Some(false);
            }
            let mark = self.runs.marks[list.cursor];
            let before = self.runs.last_block(mark.parent);
            match (mark.run, before) {
                (NONE, Some(before)) => see(Held::Answer { before, blocks: mark.held }),
                (NONE, None) => {}
                (run, before) => {
                    let mut blocks = self.runs[run].blocks(mark.held);
                    see(Held::Prompt { before, blocks: &mut blocks });
                }
            }
            list.cursor = mark.newer;
        }
        Some(list.cursor != NONE)
    }
}

impl Runs {
    /// The last block of a prompt up to a mark.
    fn last_block(&self, mut id: MarkId) -> Option<BlockHash> {
        while id != NONE {
            let Mark { run, parent, held, .. } = self.marks[id];
            if run != NONE {
                return self[run].blocks(held).next_back();
            }
            id = parent;
        }
        None
    }
}
