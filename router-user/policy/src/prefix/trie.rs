//! The bounded prefix index: one trie over chained block hashes, with a mark per backend that holds a block.
//!
//! A node stands for a whole path: its key is the chained hash, which names the block and all before it. So the
//! walk from the root is one look-up a block, no child pointers are kept, and chains of different models (which
//! start from different hashes) never meet.
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
//! all (`cargo bench -p router-policy --bench index`): both take 45 to 47 bytes a mark, and a request takes 0.9, 0.8,
//! 0.3 and 0.08 times as long in one index at 2, 8, 64 and 512 backends, since a walk need not search each backend's. So
//! it is one. A request of 64 blocks takes 1.1 times as long with 10 M blocks as with 0.7 M, and 5 times as long as with
//! the 10 k that fit into a processor's cache.
//!
//! Memory: 36 bytes a block with its first holder, 36 each further holder, 6 to 11 of table a block.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use router_common::BackendId;

use super::block::BlockHash;
use super::slab::{AgeList, MarkId, NONE, PLACES_MAX, Slab};

/// Where a walk came: the nodes of the path, and how many leading blocks each backend holds.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    path: Vec<u32>,
    leading: Vec<Leading>,
}

/// How many leading blocks one backend holds, and its mark at the last of them.
#[derive(Clone, Copy, Debug)]
struct Leading {
    blocks: u32,
    mark: MarkId,
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

    fn of(&self, id: BackendId) -> Leading {
        self.leading.get(id.index()).copied().unwrap_or(Leading::NONE)
    }
}

/// Blocks of a request in flight, to be given back by [`Trie::unpin`].
#[derive(Debug, PartialEq, Eq)]
pub struct Pin {
    /// The marks from the first block to the last; at least one. They stay where they are while the last is pinned.
    path: Vec<MarkId>,
    epoch: u32,
}

/// Emptied paths that are kept to be used again, and how long each may be: a request allocates none.
const SPARE_PATHS_MAX: usize = 64;
const SPARE_PATH_MARKS_MAX: usize = 8192;

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
    table: HashTable<u32>,
    slab: Slab,
    /// By row; grows with the highest row seen.
    lists: Vec<AgeList>,
    /// Marks that end the path of requests in flight, and how many.
    pins: HashMap<MarkId, u32, RandomState>,
    fillers: u128,
    counters: TrieCounters,
    spare: Vec<Vec<MarkId>>,
}

impl Default for Trie {
    /// As large as can be numbered.
    fn default() -> Self {
        Self::new(PLACES_MAX)
    }
}

/// Looking.
impl Trie {
    /// An index that takes at most 48 bytes for each of `places_max`, inner structure included. A block with one holder
    /// takes a place, and each further holder one; a block whose first holder dropped it keeps its place for the others.
    #[must_use]
    pub fn new(places_max: usize) -> Self {
        Self {
            table: HashTable::new(),
            slab: Slab::new(places_max),
            lists: Vec::new(),
            pins: HashMap::default(),
            fillers: 0,
            counters: TrieCounters::default(),
            spare: Vec::new(),
        }
    }

    /// Walks a chain. O(matched blocks + holders wherever their number changes along the path); no allocation once
    /// `walk` has grown.
    pub fn walk(&self, blocks: &[BlockHash], walk: &mut Walk) {
        walk.path.clear();
        walk.leading.clear();
        walk.leading.resize(self.lists.len(), Leading::NONE);
        for &hash in blocks {
            let Some(&node) = self.table.find(hash as u64, |&node| self.slab.has_hash(node, hash)) else {
                break;
            };
            walk.path.push(node);
        }
        let mut below = 0;
        for (at, &node) in walk.path.iter().enumerate().rev() {
            let holders = self.slab.holders(node);
            if holders != below {
                let leading = &mut walk.leading;
                self.slab.for_each_holder(node, |backend, mark| {
                    if leading[backend].blocks == 0 {
                        leading[backend] = Leading { blocks: at as u32 + 1, mark };
                    }
                });
                below = holders;
            }
        }
    }

    /// Blocks the backend holds, fillers included.
    #[must_use]
    pub fn held_blocks(&self, id: BackendId) -> usize {
        self.lists.get(id.index()).map_or(0, |list| list.len)
    }

    /// Blocks that at least one backend holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no backend holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// What was refused or dropped.
    #[must_use]
    pub const fn counters(&self) -> TrieCounters {
        self.counters
    }

    /// Bytes the index takes, unused room included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.allocation_size() + self.slab.bytes() + self.lists.capacity() * size_of::<AgeList>()
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
        let wanted = blocks.len().min(capacity);
        let held = (walk.of(id).blocks as usize).min(wanted);
        let mut path = self.held_path(id, walk, held);
        let leaf = path.last().copied().unwrap_or(NONE);
        // Pinned while room is made, so that the head of this very chain stays.
        self.pin(leaf);
        let kept = held + self.make_room(backend, wanted - held, capacity);
        self.release(leaf);
        self.counters.cut_blocks += (blocks.len() - kept) as u64;
        let mut last = leaf;
        for (depth, &hash) in blocks[..kept].iter().enumerate().skip(held) {
            let node = walk.path.get(depth).copied().unwrap_or_else(|| self.new_node(hash));
            last = self.slab.new_mark(node, last, backend);
            path.push(last);
        }
        self.link_new(backend, last, leaf);
        self.slab.touch(&mut self.lists[backend], &path[..held]);
        if path.is_empty() {
            self.keep_spare(path);
            return None;
        }
        self.pin(last);
        Some(Pin { path, epoch: self.lists[backend].epoch })
    }

    /// The backend's marks at the first `held` blocks of a walk. Most are their nodes' own, which are looked at all at
    /// once; only the others are found one after another.
    fn held_path(&mut self, id: BackendId, walk: &Walk, held: usize) -> Vec<MarkId> {
        let mut path = self.spare.pop().unwrap_or_default();
        path.resize(held, NONE);
        let Leading { blocks: leading, mark } = walk.of(id);
        let mut mark = mark;
        for _ in held..leading as usize {
            mark = self.slab.parent(mark);
        }
        for at in (0..held).rev() {
            path[at] = mark;
            if let Some(before) = at.checked_sub(1) {
                let node = walk.path[before];
                mark =
                    if self.slab.is_first_holder(node, id.index()) { node } else { self.slab.parent(mark) };
            }
        }
        path
    }

    fn keep_spare(&mut self, mut path: Vec<MarkId>) {
        if self.spare.len() < SPARE_PATHS_MAX && path.capacity() <= SPARE_PATH_MARKS_MAX {
            path.clear();
            self.spare.push(path);
        }
    }

    /// A request ended: its blocks are no longer pinned and are the newest, behind them `answer_blocks` of filler.
    /// O(blocks).
    pub fn unpin(&mut self, id: BackendId, pin: Pin, answer_blocks: usize, capacity: usize) {
        let backend = id.index();
        if self.lists.get(backend).is_none_or(|list| list.epoch != pin.epoch) {
            return;
        }
        let room = self.make_room(backend, answer_blocks.min(capacity), capacity);
        let Pin { path, .. } = pin;
        let leaf = *path.last().expect("invariant: a pin has a last mark");
        let mut last = leaf;
        for _ in 0..room {
            self.fillers += 1;
            // Chained hashes are random in 128 bits: that none of them is a small number is as sure as that no two
            // are equal.
            let node = self.new_node(self.fillers);
            last = self.slab.new_mark(node, last, backend);
        }
        self.link_new(backend, last, leaf);
        self.slab.touch(&mut self.lists[backend], &path);
        self.release(leaf);
        self.keep_spare(path);
    }

    /// Forgets everything the backend holds; pins from before become void. O(its blocks).
    pub fn clear(&mut self, id: BackendId) {
        let backend = id.index();
        if backend >= self.lists.len() {
            return;
        }
        while let Some(oldest) = self.lists[backend].oldest() {
            self.pins.remove(&oldest);
            self.drop_mark(backend, oldest);
        }
        self.lists[backend].epoch += 1;
        if self.table.is_empty() {
            self.table = HashTable::new();
        }
    }

    /// Links marks from `leaf` up to `stop` (not it) as the newest, the deepest first.
    fn link_new(&mut self, backend: usize, leaf: MarkId, stop: MarkId) {
        let mut id = leaf;
        while id != stop {
            self.slab.link_newest(&mut self.lists[backend], id);
            id = self.slab.parent(id);
        }
    }

    /// Drops the oldest until `wanted` more fit into `capacity`; returns how many fit, fewer if the rest is pinned.
    fn make_room(&mut self, backend: usize, wanted: usize, capacity: usize) -> usize {
        let mut turned = 0;
        while self.lists[backend].len + wanted > capacity || wanted > self.slab.room() {
            let Some(oldest) = self.lists[backend].oldest() else { break };
            if self.pins.contains_key(&oldest) {
                // What is in flight is in use, so it is new again; each pin is met once at most.
                turned += 1;
                if turned > self.pins.len() {
                    break;
                }
                self.slab.touch_path(&mut self.lists[backend], oldest);
            } else {
                self.drop_mark(backend, oldest);
                self.counters.evicted_blocks += 1;
            }
        }
        wanted.min(capacity.saturating_sub(self.lists[backend].len)).min(self.slab.room())
    }

    fn pin(&mut self, leaf: MarkId) {
        if leaf != NONE {
            *self.pins.entry(leaf).or_insert(0) += 1;
        }
    }

    fn release(&mut self, leaf: MarkId) {
        if let Some(count) = self.pins.get_mut(&leaf) {
            *count -= 1;
            if *count == 0 {
                self.pins.remove(&leaf);
            }
        }
    }

    fn new_node(&mut self, hash: BlockHash) -> u32 {
        let node = self.slab.new_node(hash);
        let slab = &self.slab;
        self.table.insert_unique(hash as u64, node, |&node| slab.low_hash(node));
        node
    }

    fn drop_mark(&mut self, backend: usize, id: MarkId) {
        self.slab.unlink(&mut self.lists[backend], id);
        if let Some(node) = self.slab.free_mark(id) {
            if let Ok(entry) = self.table.find_entry(self.slab.low_hash(node), |&other| other == node) {
                entry.remove();
            }
            self.slab.free_node(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BackendId, BlockHash, Pin, Trie, Walk};

    fn id(row: usize) -> BackendId {
        BackendId::new(row).unwrap()
    }

    fn insert(t: &mut Trie, row: usize, chain: &[BlockHash], capacity: usize) -> Option<Pin> {
        let mut walk = Walk::default();
        t.walk(chain, &mut walk);
        t.insert(id(row), chain, &walk, capacity)
    }

    /// Inserts and lets the request end at once.
    fn hold(t: &mut Trie, row: usize, chain: &[BlockHash], capacity: usize) {
        if let Some(pin) = insert(t, row, chain, capacity) {
            t.unpin(id(row), pin, 0, capacity);
        }
    }

    fn leading(t: &Trie, row: usize, chain: &[BlockHash]) -> u32 {
        let mut walk = Walk::default();
        t.walk(chain, &mut walk);
        walk.leading_blocks(id(row))
    }

    #[test]
    fn leading_blocks_count_per_backend() {
        let mut t = Trie::default();
        hold(&mut t, 0, &[1, 2, 3], 10);
        hold(&mut t, 1, &[1, 2], 10);
        hold(&mut t, 2, &[1, 2, 3], 10);
        let chain = [1, 2, 3, 4];
        assert_eq!([0, 1, 2, 3].map(|row| leading(&t, row, &chain)), [3, 2, 3, 0]);
        assert_eq!(leading(&t, 0, &[9, 2, 3]), 0, "the first block decides");
    }

    #[test]
    fn a_common_head_outlives_its_tails() {
        let mut t = Trie::default();
        hold(&mut t, 0, &[1, 2, 3, 4], 6);
        hold(&mut t, 0, &[1, 2, 5, 6], 6);
        hold(&mut t, 0, &[1, 2, 7, 8], 6);
        assert_eq!(t.held_blocks(id(0)), 6);
        assert_eq!(leading(&t, 0, &[1, 2, 3, 4]), 2, "the oldest tail went, its head stayed");
        assert_eq!(leading(&t, 0, &[1, 2, 7, 8]), 4);
        assert_eq!(t.counters().evicted_blocks, 2);
    }

    #[test]
    fn one_backends_bound_does_not_touch_another() {
        let mut t = Trie::default();
        hold(&mut t, 0, &[1, 2], 2);
        hold(&mut t, 1, &[1, 2, 3], 9);
        hold(&mut t, 0, &[8, 9], 2);
        assert_eq!((leading(&t, 0, &[1, 2, 3]), leading(&t, 1, &[1, 2, 3])), (0, 3));
        hold(&mut t, 0, &[1, 2], 2);
        assert_eq!(leading(&t, 0, &[1, 2, 3]), 2, "it may hold again what it lost");
        t.clear(id(1));
        assert_eq!((t.held_blocks(id(1)), t.len()), (0, 2));
    }

    #[test]
    fn a_chain_longer_than_the_capacity_keeps_its_head() {
        let mut t = Trie::default();
        let chain: Vec<BlockHash> = (1..=100).map(|n| n << 64).collect();
        hold(&mut t, 3, &chain, 10);
        assert_eq!((leading(&t, 3, &chain), t.counters().cut_blocks), (10, 90));
        assert_eq!(insert(&mut t, 4, &chain, 0), None, "capacity 0 holds nothing");
    }

    #[test]
    fn what_is_in_flight_is_not_evicted() {
        let mut t = Trie::default();
        let pin = insert(&mut t, 0, &[1, 2], 4).unwrap();
        for n in 10..30 {
            hold(&mut t, 0, &[n << 64, (n + 100) << 64], 4);
        }
        assert_eq!(leading(&t, 0, &[1, 2]), 2, "pinned though it is the oldest");
        t.unpin(id(0), pin, 0, 4);
        for n in 40..42 {
            hold(&mut t, 0, &[n << 64, (n + 100) << 64], 4);
        }
        assert_eq!(leading(&t, 0, &[1, 2]), 0, "no longer pinned, it ages");
    }

    #[test]
    fn when_all_is_pinned_the_newcomer_is_cut() {
        let mut t = Trie::default();
        let pin = insert(&mut t, 0, &[1, 2, 3, 4], 4);
        assert!(pin.is_some());
        assert_eq!(insert(&mut t, 0, &[7, 8], 4), None);
        assert_eq!((t.held_blocks(id(0)), t.counters().cut_blocks), (4, 2));
    }

    #[test]
    fn an_answer_leaves_filler_that_goes_before_its_prompt() {
        let mut t = Trie::default();
        let pin = insert(&mut t, 0, &[1 << 64, 2 << 64], 6).unwrap();
        t.unpin(id(0), pin, 3, 6);
        assert_eq!(t.held_blocks(id(0)), 5);
        hold(&mut t, 0, &[7 << 64, 8 << 64, 9 << 64], 6);
        assert_eq!(leading(&t, 0, &[1 << 64, 2 << 64]), 2, "the filler went first");
    }

    #[test]
    fn a_pin_from_before_a_clearing_is_void() {
        let mut t = Trie::default();
        let pin = insert(&mut t, 0, &[1, 2], 4).unwrap();
        t.clear(id(0));
        hold(&mut t, 0, &[5, 6], 4);
        t.unpin(id(0), pin, 9, 4);
        assert_eq!((t.held_blocks(id(0)), leading(&t, 0, &[5, 6])), (2, 2));
    }
}
