//! Runs and marks: up to [`RUN_BLOCKS`] blocks of a path that follow each other, and who holds how many of them.
//!
//! A run is found by its first block's hash, and keeps those of the others, so that a walk looks up one block of a run
//! and compares the rest in one go. It is never longer than what its longest holder holds; what a holder lost from the
//! end is the difference between the run and its mark. Whatever goes on behind a run holds all of it: hence a path that
//! branches or ends inside one cuts it in two first, of which **the tail keeps the run's place and its marks'**, since
//! what goes on behind it leads back to these.

use hashbrown::HashTable;

use super::age::AgeList;
use super::block::BlockHash;
use super::slab::{NONE, Place, Slab};

/// Blocks of a run at most.
pub(super) const RUN_BLOCKS: usize = 8;

pub(super) type RunId = u32;
pub(super) type MarkId = u32;

/// A hash in words, so that no padding is needed.
type Words = [u32; 4];

#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    hashes: [Words; RUN_BLOCKS],
    /// The first of its marks; of a free run the next free one.
    first: MarkId,
    holders: u16,
    len: u16,
}

/// That a backend holds the beginning of a run; or filler, which is no run's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) run: RunId,
    /// The same backend's mark of the run before, all of which it holds. It lives at least as long.
    pub(super) parent: MarkId,
    pub(super) newer: MarkId,
    pub(super) older: MarkId,
    /// The next mark of the run; of a free mark the next free one.
    next: MarkId,
    /// Requests in flight whose paths end here.
    pub(super) pins: u32,
    backend: u16,
    /// Leading blocks of the run that are held, at least one.
    pub(super) held: u16,
}

/// Bytes of a run and a mark, which a block takes that is alone in its run.
pub(super) const PAIR_BYTES: usize = size_of::<Run>() + size_of::<Mark>();

const _: () = assert!(size_of::<Run>() == 136 && size_of::<Mark>() == 28);

impl Place for Run {
    fn next_free(&mut self) -> &mut u32 {
        &mut self.first
    }
}

impl Place for Mark {
    fn next_free(&mut self) -> &mut u32 {
        &mut self.next
    }
}

const fn words(hash: BlockHash) -> Words {
    [hash as u32, (hash >> 32) as u32, (hash >> 64) as u32, (hash >> 96) as u32]
}

impl Run {
    fn new(hashes: impl Iterator<Item = Words>) -> Self {
        let mut run = Self { hashes: [[0; 4]; RUN_BLOCKS], first: NONE, holders: 0, len: 0 };
        for (place, hash) in run.hashes.iter_mut().zip(hashes) {
            *place = hash;
            run.len += 1;
        }
        run
    }

    pub(super) fn len(&self) -> usize {
        self.len.into()
    }

    /// Its first blocks, so many of them.
    pub(super) fn blocks(&self, held: u16) -> impl DoubleEndedIterator<Item = BlockHash> + ExactSizeIterator {
        self.hashes[..held.into()].iter().map(|&[a, b, c, d]| {
            u128::from(a) | u128::from(b) << 32 | u128::from(c) << 64 | u128::from(d) << 96
        })
    }

    /// How many backends hold its beginning.
    pub(super) const fn holders(&self) -> u16 {
        self.holders
    }

    /// How many of its blocks these begin with.
    pub(super) fn matching(&self, blocks: &[BlockHash]) -> usize {
        let hashes = &self.hashes[..self.len()];
        hashes.iter().zip(blocks).take_while(|&(hash, &block)| *hash == words(block)).count()
    }

    /// The low half of the first hash, which places the run in the table.
    fn low_hash(&self) -> u64 {
        u64::from(self.hashes[0][0]) | u64::from(self.hashes[0][1]) << 32
    }
}

/// All runs and marks.
#[derive(Debug)]
pub(super) struct Runs {
    table: HashTable<RunId>,
    runs: Slab<Run>,
    pub(super) marks: Slab<Mark>,
    /// Blocks that at least one backend holds, filler included.
    blocks: usize,
}

impl std::ops::Index<RunId> for Runs {
    type Output = Run;

    fn index(&self, id: RunId) -> &Run {
        &self.runs[id]
    }
}

/// Looking.
impl Runs {
    /// At most so many runs, and so many marks.
    pub(super) fn new(pairs_max: usize) -> Self {
        let (runs, marks) = (Slab::new(pairs_max), Slab::new(pairs_max));
        Self { table: HashTable::new(), runs, marks, blocks: 0 }
    }

    /// Runs and marks that may still be made, of each.
    pub(super) fn room(&self) -> usize {
        self.runs.room().min(self.marks.room())
    }

    /// Blocks that at least one backend holds, filler included.
    pub(super) const fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes it takes, unused room included.
    pub(super) fn bytes(&self) -> usize {
        self.table.allocation_size() + self.runs.bytes() + self.marks.bytes()
    }

    /// The run that begins with this block.
    pub(super) fn find(&self, first: BlockHash) -> Option<RunId> {
        let first_words = words(first);
        self.table.find(first as u64, |&run| self.runs[run].hashes[0] == first_words).copied()
    }

    /// Calls `see` with each backend that holds the beginning of a run, its mark, and how many blocks. O(holders).
    pub(super) fn for_each_holder(&self, run: RunId, mut see: impl FnMut(usize, MarkId, u32)) {
        let mut id = self.runs[run].first;
        while id != NONE {
            let mark = &self.marks[id];
            see(usize::from(mark.backend), id, mark.held.into());
            id = mark.next;
        }
    }

    /// Whether a mark is one of this run.
    pub(super) fn is_of(&self, mark: MarkId, run: RunId) -> bool {
        self.marks[mark].run == run
    }
}

/// Holding. There must be room.
impl Runs {
    /// A run of these blocks that nobody holds yet.
    pub(super) fn new_run(&mut self, blocks: &[BlockHash]) -> RunId {
        let run = Run::new(blocks.iter().copied().map(words));
        self.blocks += run.len();
        self.insert(run)
    }

    /// The backend holds all of a run of which it has no mark; the mark is in no list by age yet.
    pub(super) fn hold(&mut self, run: RunId, parent: MarkId, backend: usize) -> MarkId {
        let held = self.runs[run].len;
        self.new_mark(run, parent, backend as u16, held)
    }

    /// The same of so many blocks that match nothing, at most [`u16::MAX`].
    pub(super) fn hold_filler(&mut self, parent: MarkId, backend: usize, blocks: u16) -> MarkId {
        self.blocks += usize::from(blocks);
        self.new_mark(NONE, parent, backend as u16, blocks)
    }

    /// The backend of this mark now holds all of its run; returns how many blocks more.
    pub(super) fn hold_whole(&mut self, id: MarkId) -> usize {
        let mark = &mut self.marks[id];
        let len = self.runs[mark.run].len;
        usize::from(len - std::mem::replace(&mut mark.held, len))
    }

    /// Cuts a run in two; returns the new one, of its first `at` blocks: at least one, and not all. `lists` are those of
    /// the backends.
    pub(super) fn split(&mut self, tail: RunId, at: usize, lists: &mut [AgeList]) -> RunId {
        let whole = self.runs[tail];
        let hashes = &whole.hashes[..whole.len()];
        let head = self.runs.take(Run::new(hashes[..at].iter().copied()));
        if let Ok(mut entry) = self.table.find_entry(whole.low_hash(), |&run| run == tail) {
            *entry.get_mut() = head;
        }
        self.runs[tail] = Run::new(hashes[at..].iter().copied());
        self.place(tail);
        let mut next = whole.first;
        while next != NONE {
            let id = next;
            let mark = self.marks[id];
            next = mark.next;
            if usize::from(mark.held) > at {
                let above = self.new_mark(head, mark.parent, mark.backend, at as u16);
                lists[usize::from(mark.backend)].link_behind(&mut self.marks, above, id);
                (self.marks[id].parent, self.marks[id].held) = (above, mark.held - at as u16);
                self.hang(id, tail);
            } else {
                self.hang(id, head);
            }
        }
        head
    }

    fn insert(&mut self, run: Run) -> RunId {
        let id = self.runs.take(run);
        self.place(id);
        id
    }

    fn place(&mut self, id: RunId) {
        let runs = &self.runs;
        self.table.insert_unique(runs[id].low_hash(), id, |&run| runs[run].low_hash());
    }

    fn new_mark(&mut self, run: RunId, parent: MarkId, backend: u16, held: u16) -> MarkId {
        let mark = Mark { run, parent, newer: NONE, older: NONE, next: NONE, pins: 0, backend, held };
        let id = self.marks.take(mark);
        if run != NONE {
            self.hang(id, run);
        }
        id
    }

    /// Makes a mark one of a run's.
    fn hang(&mut self, id: MarkId, run: RunId) {
        let of = &mut self.runs[run];
        of.holders += 1;
        let next = std::mem::replace(&mut of.first, id);
        (self.marks[id].run, self.marks[id].next) = (run, next);
    }
}

/// Losing.
impl Runs {
    /// A backend loses so many blocks from the end of a mark, at most those it holds; without any the mark is gone.
    /// O(holders).
    pub(super) fn lose(&mut self, list: &mut AgeList, id: MarkId, blocks: usize) {
        let mark = self.marks[id];
        if blocks >= usize::from(mark.held) {
            list.unlink(&mut self.marks, id);
            self.unhang(id);
            self.marks.give_back(id);
        } else {
            list.blocks -= blocks;
            self.marks[id].held -= blocks as u16;
        }
        match mark.run {
            NONE => self.blocks -= blocks.min(mark.held.into()),
            run => self.shorten(run),
        }
    }

    /// Gives the table back if it is empty; the rest was given back with its last place.
    pub(super) fn shrink(&mut self) {
        if self.table.is_empty() {
            self.table = HashTable::new();
        }
    }

    /// Takes a mark off its run.
    fn unhang(&mut self, id: MarkId) {
        let Mark { run, next, .. } = self.marks[id];
        if run == NONE {
            return;
        }
        let of = &mut self.runs[run];
        of.holders -= 1;
        if of.first == id {
            of.first = next;
            return;
        }
        let mut before = of.first;
        while self.marks[before].next != id {
            before = self.marks[before].next;
        }
        self.marks[before].next = next;
    }

    /// Takes off a run what nobody holds any more; without holders the run is gone.
    fn shorten(&mut self, run: RunId) {
        let mut longest = 0;
        self.for_each_holder(run, |_, _, held| longest = longest.max(held as u16));
        let of = &mut self.runs[run];
        self.blocks -= usize::from(std::mem::replace(&mut of.len, longest) - longest);
        if longest == 0 {
            if let Ok(entry) = self.table.find_entry(self.runs[run].low_hash(), |&other| other == run) {
                entry.remove();
            }
            self.runs.give_back(run);
        }
    }
}
