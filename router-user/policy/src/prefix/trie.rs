//! The bounded prefix index: one trie over chained block hashes, with a mark per backend that holds a block.
//!
//! A chained hash names a block and all before it. So the walk from the root is a look-up in one table, no child
//! pointers are kept, and chains of different models (which start from different hashes) never meet. Blocks that follow
//! each other lie together in runs (see `run`), so that a prompt costs a look-up, and a mark, for each eight of its
//! blocks; what one can see from outside is as if each block was alone.
//!
//! Each backend's marks form a list by age. A chain is touched from its tail to its head, hence **a block is never
//! older than what extends it**: eviction of the oldest never leaves a hole, a common head outlives its tails, and
//! whoever holds a block holds all before it. That last property makes the walk cheap: along a path the set of
//! holders only shrinks, so it has to be looked at only where its size changes.
//!
//! Blocks of requests in flight are pinned: the engine holds them whatever their age. Answers leave filler blocks,
//! which match nothing and age like others.
//!
//! One index with marks, or one index per backend? Measured with 1 M blocks and prompts of 64 of which 16 are common to
//! all (`cargo bench -p router-policy --bench index`): both take 22 to 25 bytes a block and holder, and a request takes
//! 1.0, 0.8, 0.3 and 0.05 times as long in one index at 2, 8, 64 and 512 backends, since a walk need not search each
//! backend's. So it is one. A request of 64 blocks takes 1.5 times as long with 10 M blocks as with 0.7 M, and 9 times as
//! long as with the 10 k that fit into a processor's cache; with a place for each block it was 1.0 and 5.4 times, all
//! of them longer (3.9 µs at 10 M, now 3.2; 0.71 at 10 k, now 0.37).
//!
//! Memory: 164 bytes a run of up to eight blocks with its first holder, 28 each further holder, 6 to 23 of table a run.

use router_common::BackendId;

use super::age::AgeList;
use super::block::BlockHash;
use super::path::{Path, Step};
use super::run::{Mark, MarkId, PAIR_BYTES, RUN_BLOCKS, RunId, Runs};
use super::slab::{NONE, PLACES_MAX};
use super::walk::{Leading, Walk};

/// Bytes for each block that the index may hold.
const BLOCK_BYTES_MAX: usize = 48;
/// Bytes a run takes of the table at most: a number and a tag, in a table that has just been doubled for what was
/// removed from it.
const TABLE_BYTES_MAX: usize = 24;

/// Blocks of a mark of filler at most.
const FILLER_BLOCKS: usize = u16::MAX as usize;

/// Blocks of a request in flight, to be given back by [`Trie::unpin`].
#[derive(Debug, PartialEq, Eq)]
pub struct Pin {
    /// The mark that ends their path. It stays where it is while it is pinned.
    leaf: MarkId,
    epoch: u32,
}

/// What the index refused or dropped, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrieCounters {
    /// Blocks that went for being the oldest.
    pub evicted_blocks: u64,
    /// Blocks never inserted: beyond the capacity of their backend or the bound of the index, or because all of it was
    /// pinned.
    pub cut_blocks: u64,
}

/// Which backend holds which block.
#[derive(Debug)]
pub struct Trie {
    pub(super) runs: Runs,
    /// By row; grows with the highest row seen.
    pub(super) lists: Vec<AgeList>,
    counters: TrieCounters,
    /// Of the chain that is being inserted.
    path: Path,
}

impl Default for Trie {
    /// As large as can be numbered.
    fn default() -> Self {
        Self::of_pairs(PLACES_MAX)
    }
}

/// Looking.
impl Trie {
    /// An index that takes at most 48 bytes for each of `blocks_max`, inner structure included. It may hold fewer: where
    /// paths branch or end before a run has four blocks on the average.
    #[must_use]
    pub fn new(blocks_max: usize) -> Self {
        Self::of_pairs(blocks_max.saturating_mul(BLOCK_BYTES_MAX) / (PAIR_BYTES + TABLE_BYTES_MAX))
    }

    fn of_pairs(pairs_max: usize) -> Self {
        Self {
            runs: Runs::new(pairs_max),
            lists: Vec::new(),
            counters: TrieCounters::default(),
            path: Path::default(),
        }
    }

    /// Walks a chain. O(matched blocks + holders wherever their number changes along the path); no allocation once
    /// `walk` has grown.
    pub fn walk(&self, blocks: &[BlockHash], walk: &mut Walk) {
        walk.walk(&self.runs, self.lists.len(), blocks);
    }

    /// Blocks the backend holds, fillers included.
    #[must_use]
    pub fn held_blocks(&self, id: BackendId) -> usize {
        self.lists.get(id.index()).map_or(0, |list| list.blocks)
    }

    /// Blocks that at least one backend holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.runs.blocks()
    }

    /// Whether no backend holds anything.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was refused or dropped.
    #[must_use]
    pub const fn counters(&self) -> TrieCounters {
        self.counters
    }

    /// Bytes the index takes, unused room included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let (lists, path) = (self.lists.capacity(), self.path.0.capacity());
        self.runs.bytes() + lists * size_of::<AgeList>() + path * size_of::<Step>()
    }
}

/// Holding.
impl Trie {
    /// The backend now holds these blocks, pinned, and at most `capacity` in all: its oldest go. `walk` must be of
    /// this very chain and of now. O(blocks).
    pub fn insert(
        &mut self,
        id: BackendId,
        blocks: &[BlockHash],
        walk: &Walk,
        capacity: usize,
    ) -> Option<Pin> {
        let backend = id.index();
        if self.lists.len() <= backend {
            self.lists.resize(backend + 1, AgeList::EMPTY);
        }
        self.path.0.clone_from(&walk.path.0);
        let Leading { blocks: leading, mark } = walk.of(id);
        // Pinned while room is made, so that the head of this very chain stays.
        self.pin(backend, mark);
        let wanted = self.end(backend, leading as usize, blocks.len().min(capacity));
        let held = (leading as usize).min(wanted);
        let leaf = self.mark_before(held, mark);
        self.pin(backend, leaf);
        self.release(backend, mark);
        let kept = self.make_way(backend, held, wanted, capacity);
        self.release(backend, leaf);
        self.counters.cut_blocks += (blocks.len() - kept) as u64;
        let last = if kept > held { self.extend(backend, leaf, held, &blocks[..kept]) } else { leaf };
        if last == NONE {
            return None;
        }
        self.touch(backend, last, leaf);
        self.pin(backend, last);
        Some(Pin { leaf: last, epoch: self.lists[backend].epoch })
    }

    /// A request ended: its blocks are no longer pinned and are the newest, behind them `answer_blocks` of filler.
    /// O(blocks).
    pub fn unpin(&mut self, id: BackendId, pin: Pin, answer_blocks: usize, capacity: usize) {
        let backend = id.index();
        if self.lists.get(backend).is_none_or(|list| list.epoch != pin.epoch) {
            return;
        }
        let wanted = answer_blocks.min(capacity);
        let mut room = self.make_room(backend, wanted, wanted.div_ceil(FILLER_BLOCKS), capacity);
        room = room.min(self.runs.room() * FILLER_BLOCKS);
        let mut last = pin.leaf;
        while room > 0 {
            let filler = room.min(FILLER_BLOCKS);
            last = self.runs.hold_filler(last, backend, filler as u16);
            room -= filler;
        }
        self.touch(backend, last, pin.leaf);
        self.release(backend, pin.leaf);
    }

    /// Forgets everything the backend holds; pins from before become void. O(its blocks).
    pub fn clear(&mut self, id: BackendId) {
        while !self.clear_some(id, usize::MAX) {}
    }

    /// The same for so many marks of up to eight blocks, the oldest first; false if there are more. What is inserted
    /// before the last of them goes too.
    pub fn clear_some(&mut self, id: BackendId, marks: usize) -> bool {
        let Some(list) = self.lists.get_mut(id.index()) else { return true };
        // Each time: pins that were made between two calls are of marks that go.
        list.epoch += 1;
        for _ in 0..marks {
            let Some(oldest) = list.oldest() else { break };
            self.runs.lose(list, oldest, usize::MAX);
        }
        if list.oldest().is_some() {
            return false;
        }
        list.pinned = 0;
        self.runs.shrink();
        true
    }

    /// Ends the path where the chain ends or branches off, so that no run goes on there; returns how many blocks of the
    /// chain may be inserted: all that are wanted, or as there was no room to cut a run in two, those before it, or
    /// those that are held.
    fn end(&mut self, backend: usize, leading: usize, wanted: usize) -> usize {
        let at = self.path.matched().min(wanted);
        // For the cut and for all that is new there must be places; what is evicted for them is not of this path.
        let places = self.path.places(leading.min(wanted), wanted) + self.places_of_cut(at);
        self.make_room(backend, 0, places, usize::MAX);
        match self.end_at(at, 0) {
            Ok(()) => wanted,
            Err(before) => before.max(leading.min(at)),
        }
    }

    /// Evicts until the chain may be `wanted` blocks long, of which `held` are held; returns how long it may be.
    fn make_way(&mut self, backend: usize, held: usize, wanted: usize, capacity: usize) -> usize {
        let places = self.path.places(held, wanted);
        let kept = held + self.make_room(backend, wanted - held, places, capacity);
        let kept = kept.min(self.path.within(held, self.runs.room())).max(held);
        if kept > held
            && kept < self.path.matched()
            && let Err(before) = self.end_at(kept, self.path.places(held, kept))
        {
            return before.max(held);
        }
        kept
    }

    /// The run that goes on where the path is to end, if one does.
    fn run_beyond(&self, at: usize) -> Option<RunId> {
        let (step, inside) = self.path.last_of(at)?;
        let run = self.path.0[step].run;
        (inside < self.runs[run].len()).then_some(run)
    }

    /// Places that it takes to end the path there.
    fn places_of_cut(&self, at: usize) -> usize {
        self.run_beyond(at).map_or(0, |run| self.runs[run].holders().into())
    }

    /// Ends the path after so many blocks, cutting a run in two that goes on.
    ///
    /// # Errors
    /// There are too few places for that beside those that are needed otherwise; the blocks before that run.
    fn end_at(&mut self, at: usize, places: usize) -> Result<(), usize> {
        let Some((step, inside)) = self.path.last_of(at) else {
            self.path.0.clear();
            return Ok(());
        };
        if let Some(run) = self.run_beyond(at) {
            if self.places_of_cut(at) + places > self.runs.room() {
                return Err(at - inside);
            }
            self.path.0[step].run = self.runs.split(run, inside, &mut self.lists);
        }
        self.path.0[step].end = at as u32;
        self.path.0.truncate(step + 1);
        Ok(())
    }

    /// The backend's mark at the last of `held` blocks, found from one that is there or behind.
    fn mark_before(&self, held: usize, mut mark: MarkId) -> MarkId {
        let Some((step, _)) = self.path.last_of(held) else { return NONE };
        while !self.runs.is_of(mark, self.path.0[step].run) {
            mark = self.runs.marks[mark].parent;
        }
        mark
    }

    /// The backend holds what goes on behind `leaf`, as far as the chain; returns the mark at its end.
    fn extend(&mut self, backend: usize, leaf: MarkId, held: usize, blocks: &[BlockHash]) -> MarkId {
        let mut last = leaf;
        if leaf != NONE {
            self.lists[backend].blocks += self.runs.hold_whole(leaf);
        }
        for &Step { run, .. } in
            &self.path.0[self.path.steps_of(held)..self.path.steps_of(self.path.matched().min(blocks.len()))]
        {
            last = self.runs.hold(run, last, backend);
        }
        for new in blocks.get(self.path.matched()..).unwrap_or_default().chunks(RUN_BLOCKS) {
            let run = self.runs.new_run(new);
            last = self.runs.hold(run, last, backend);
        }
        last
    }

    /// Makes a path the newest, the deepest first; its marks behind `leaf` are new.
    fn touch(&mut self, backend: usize, last: MarkId, leaf: MarkId) {
        let (list, marks) = (&mut self.lists[backend], &mut self.runs.marks);
        let mut id = last;
        while id != leaf {
            list.link_newest(marks, id);
            id = marks[id].parent;
        }
        list.touch_path(marks, leaf);
    }

    /// Drops the oldest until `wanted` more blocks fit into `capacity` and `places` into the index; returns how many
    /// blocks fit into the one, fewer if the rest is pinned.
    fn make_room(&mut self, backend: usize, wanted: usize, places: usize, capacity: usize) -> usize {
        let list = &mut self.lists[backend];
        let mut turned = 0;
        loop {
            let excess = (list.blocks + wanted).saturating_sub(capacity);
            let lacks_places = places > self.runs.room();
            if excess == 0 && !lacks_places {
                break;
            }
            let Some(oldest) = list.oldest() else { break };
            let Mark { pins, held, .. } = self.runs.marks[oldest];
            if pins > 0 {
                // What is in flight is in use, so it is new again; each pin is met once at most.
                turned += 1;
                if turned > list.pinned {
                    break;
                }
                list.touch_path(&mut self.runs.marks, oldest);
                continue;
            }
            let lost = if lacks_places { held.into() } else { excess.min(held.into()) };
            self.runs.lose(list, oldest, lost);
            self.counters.evicted_blocks += lost as u64;
        }
        wanted.min(capacity.saturating_sub(list.blocks))
    }

    fn pin(&mut self, backend: usize, leaf: MarkId) {
        if leaf != NONE {
            let pins = &mut self.runs.marks[leaf].pins;
            self.lists[backend].pinned += usize::from(*pins == 0);
            *pins += 1;
        }
    }

    fn release(&mut self, backend: usize, leaf: MarkId) {
        if leaf != NONE {
            let pins = &mut self.runs.marks[leaf].pins;
            *pins -= 1;
            self.lists[backend].pinned -= usize::from(*pins == 0);
        }
    }
}

#[cfg(test)]
#[path = "trie_tests.rs"]
mod tests;
