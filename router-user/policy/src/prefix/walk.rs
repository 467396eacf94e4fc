//! Where a chain came in the index.

use router_common::BackendId;

use super::block::BlockHash;
use super::path::{Path, Step};
use super::run::{MarkId, Runs};
use super::slab::NONE;

/// Where a walk came: the runs of the path, and how many leading blocks each backend holds.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    pub(super) path: Path,
    leading: Vec<Leading>,
}

/// How many leading blocks one backend holds, and its mark at the last of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leading {
    pub(super) blocks: u32,
    pub(super) mark: MarkId,
}

impl Leading {
    const NONE: Self = Self { blocks: 0, mark: NONE };
}

impl Walk {
    /// Leading blocks that `id` holds.
    #[must_use]
    pub fn leading_blocks(&self, id: BackendId) -> u32 {
        self.of(id).blocks
    }

    pub(super) fn of(&self, id: BackendId) -> Leading {
        self.leading.get(id.index()).copied().unwrap_or(Leading::NONE)
    }

    /// Walks a chain through the runs of so many backends. O(matched blocks + holders wherever their number changes
    /// along the path); no allocation once it has grown.
    pub(super) fn walk(&mut self, runs: &Runs, backends: usize, blocks: &[BlockHash]) {
        self.path.0.clear();
        let mut at = 0;
        while let Some(run) = blocks.get(at).and_then(|&first| runs.find(first)) {
            let matching = runs[run].matching(&blocks[at..]);
            at += matching;
            self.path.0.push(Step { run, end: at as u32 });
            if matching < runs[run].len() {
                break;
            }
        }
        self.leading.clear();
        self.leading.resize(backends, Leading::NONE);
        // Who holds a run holds all before it, so that holders are only added on the way back.
        let mut below = 0;
        for (n, &Step { run, end }) in self.path.0.iter().enumerate().rev() {
            let holders = runs[run].holders();
            if holders != below {
                let start = self.path.start_of(n) as u32;
                let leading = &mut self.leading;
                runs.for_each_holder(run, |backend, mark, held| {
                    if leading[backend].blocks == 0 {
                        leading[backend] = Leading { blocks: end.min(start + held), mark };
                    }
                });
                below = holders;
            }
        }
    }
}
