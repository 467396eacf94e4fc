//! The pool of KV blocks, with its prefix cache.
//!
//! A block is referenced by running requests, or it is free and lies in one LRU list, oldest at the head. A free
//! block keeps its content and its name (the chained hash) until it is taken for something else.
//!
//! A host-memory tier makes the pool larger, and that is all: so many more blocks stay cached, while the requests
//! running together still hold no more blocks than the GPU has. Copying between the tiers costs no time here.
//! Not here: which request holds what, and when.
//! Invariant: a block is in the LRU list exactly when nobody references it, so eviction cannot take a referenced
//! block; and a name leads to at most one block.

use std::collections::HashMap;

use super::prompt::BlockHash;

/// Index of a block in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId(u32);

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Block {
    /// The name under which `names` finds this block.
    name: Option<BlockHash>,
    references: u32,
    /// Neighbours in the LRU list; meaningful only while unreferenced.
    older: u32,
    newer: u32,
}

/// A fixed number of blocks. Every operation is O(1) unless said otherwise.
#[derive(Debug)]
pub struct KvPool {
    blocks: Vec<Block>,
    names: HashMap<BlockHash, u32, foldhash::fast::FixedState>,
    oldest: u32,
    newest: u32,
    free: u32,
    /// How many of all blocks can only be cached, not used.
    host: u32,
}

impl KvPool {
    /// A pool of `total` empty blocks.
    #[must_use]
    pub fn new(total: u32) -> Self {
        Self::tiered(total, 0)
    }

    /// A pool of `gpu` empty blocks, and room in the cache for `host` more.
    #[must_use]
    pub fn tiered(gpu: u32, host: u32) -> Self {
        let total = gpu.saturating_add(host);
        let blank = Block { name: None, references: 0, older: NONE, newer: NONE };
        let mut pool = Self {
            blocks: vec![blank; total as usize],
            names: HashMap::default(),
            oldest: NONE,
            newest: NONE,
            free: 0,
            host,
        };
        for index in 0..total {
            pool.append(index);
        }
        pool
    }

    /// Blocks in all.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that nobody references, cached or empty.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Blocks that can still be used: the free ones, less those that the host tier only keeps.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.free.saturating_sub(self.host)
    }

    /// Forgets what every block contains; references stay. O(blocks).
    pub fn forget_names(&mut self) {
        self.names.clear();
        self.blocks.iter_mut().for_each(|block| block.name = None);
    }

    /// True if a block of this name is cached.
    #[must_use]
    pub fn is_cached(&self, name: BlockHash) -> bool {
        self.names.contains_key(&name)
    }

    /// Looks up the longest cached prefix of `names`. O(length of that prefix).
    #[must_use]
    pub fn longest_prefix(&self, names: &[BlockHash]) -> PrefixHit {
        let mut hit = PrefixHit::default();
        for name in names {
            let Some(&index) = self.names.get(name) else { break };
            hit.blocks += 1;
            hit.free_blocks += u32::from(self.blocks[index as usize].references == 0);
        }
        hit
    }

    /// References the cached block of this name, if there is one.
    pub fn acquire(&mut self, name: BlockHash) -> Option<BlockId> {
        let index = *self.names.get(&name)?;
        if self.blocks[index as usize].references == 0 {
            self.unlink(index);
        }
        self.blocks[index as usize].references += 1;
        Some(BlockId(index))
    }

    /// Takes the block longest unused, forgetting its content; `None` if every block is referenced.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let index = self.oldest;
        if index == NONE {
            return None;
        }
        self.unlink(index);
        if let Some(name) = self.blocks[index as usize].name.take() {
            self.names.remove(&name);
        }
        self.blocks[index as usize].references = 1;
        Some(BlockId(index))
    }

    /// Makes a referenced block findable. An older copy of the same content loses the name.
    pub fn publish(&mut self, BlockId(index): BlockId, name: BlockHash) {
        debug_assert!(self.blocks[index as usize].references > 0, "only its holder publishes a block");
        debug_assert!(
            self.blocks[index as usize].name.is_none_or(|old| old == name),
            "a block keeps one name until it is taken for something else"
        );
        if let Some(copy) = self.names.insert(name, index)
            && copy != index
        {
            self.blocks[copy as usize].name = None;
        }
        self.blocks[index as usize].name = Some(name);
    }

    /// Drops one reference; the last one makes the block the newest of the LRU list.
    pub fn release(&mut self, BlockId(index): BlockId) {
        let block = &mut self.blocks[index as usize];
        debug_assert!(block.references > 0, "a block is released once for each reference");
        block.references -= 1;
        if block.references == 0 {
            self.append(index);
        }
    }

    fn append(&mut self, index: u32) {
        let newest = self.newest;
        let block = &mut self.blocks[index as usize];
        (block.older, block.newer) = (newest, NONE);
        match newest {
            NONE => self.oldest = index,
            other => self.blocks[other as usize].newer = index,
        }
        self.newest = index;
        self.free += 1;
    }

    fn unlink(&mut self, index: u32) {
        let Block { older, newer, .. } = self.blocks[index as usize];
        match older {
            NONE => self.oldest = newer,
            other => self.blocks[other as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            other => self.blocks[other as usize].older = older,
        }
        self.free -= 1;
    }

    /// Checks every invariant against `held`, the references that exist outside. O(blocks); for tests.
    ///
    /// # Errors
    /// Says which invariant is broken.
    pub fn audit(&self, held: impl IntoIterator<Item = BlockId>) -> Result<(), String> {
        let mut expected = vec![0_u32; self.blocks.len()];
        for BlockId(index) in held {
            expected[index as usize] += 1;
        }
        let mut listed = vec![false; self.blocks.len()];
        let (mut index, mut length) = (self.oldest, 0);
        while index != NONE {
            if std::mem::replace(&mut listed[index as usize], true) {
                return Err(format!("block {index} is twice in the LRU list"));
            }
            length += 1;
            index = self.blocks[index as usize].newer;
        }
        if length != self.free {
            return Err(format!("{length} blocks are listed, {} counted as free", self.free));
        }
        for (index, block) in self.blocks.iter().enumerate() {
            if block.references != expected[index] {
                return Err(format!(
                    "block {index}: {} references, {} held",
                    block.references, expected[index]
                ));
            }
            if listed[index] != (block.references == 0) {
                return Err(format!("block {index} is listed or referenced, not both and not neither"));
            }
            if block.name.is_some_and(|name| self.names.get(&name) != Some(&(index as u32))) {
                return Err(format!("the name of block {index} leads elsewhere"));
            }
        }
        let named = self.blocks.iter().filter(|b| b.name.is_some()).count();
        if named != self.names.len() {
            return Err(format!("{named} blocks have names, {} names are known", self.names.len()));
        }
        Ok(())
    }
}

/// The longest cached prefix of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixHit {
    /// Its length in blocks.
    pub blocks: u32,
    /// How many of these blocks nobody references: taking them makes the free ones fewer.
    pub free_blocks: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(range: std::ops::Range<u64>) -> Vec<BlockHash> {
        range.map(BlockHash).collect()
    }

    fn fill(pool: &mut KvPool, names: &[BlockHash]) -> Vec<BlockId> {
        names
            .iter()
            .map(|name| {
                let block = pool.allocate().unwrap();
                pool.publish(block, *name);
                block
            })
            .collect()
    }

    fn release_tail_first(pool: &mut KvPool, blocks: Vec<BlockId>) {
        for block in blocks.into_iter().rev() {
            pool.release(block);
        }
    }

    #[test]
    fn the_head_of_a_prefix_outlives_its_tail() {
        let mut pool = KvPool::new(4);
        let prefix = names(0..4);
        let held = fill(&mut pool, &prefix);
        release_tail_first(&mut pool, held);
        for left in [3, 2, 1] {
            pool.allocate().unwrap();
            assert_eq!(pool.longest_prefix(&prefix).blocks, left, "the tail goes before the head");
        }
    }

    #[test]
    fn eviction_never_takes_a_referenced_block() {
        let mut pool = KvPool::new(3);
        let held = fill(&mut pool, &names(0..2));
        let other = pool.allocate().unwrap();
        assert_eq!(pool.allocate(), None, "every block is referenced");
        pool.release(other);
        assert_eq!(pool.allocate(), Some(other), "only the released block can be taken");
        assert_eq!(pool.longest_prefix(&names(0..2)).blocks, 2);
        pool.audit(held.into_iter().chain([other])).unwrap();
    }

    #[test]
    fn a_block_found_again_becomes_the_newest_when_it_is_released() {
        let mut pool = KvPool::new(2);
        let held = fill(&mut pool, &names(0..2));
        for block in held {
            pool.release(block);
        }
        let again = pool.acquire(BlockHash(0)).unwrap();
        pool.release(again);
        pool.allocate().unwrap();
        assert!(pool.is_cached(BlockHash(0)), "used last, so evicted last");
        assert!(!pool.is_cached(BlockHash(1)));
    }

    #[test]
    fn a_shared_block_is_free_only_after_its_last_release() {
        let mut pool = KvPool::new(1);
        let first = fill(&mut pool, &names(0..1))[0];
        let second = pool.acquire(BlockHash(0)).unwrap();
        pool.release(first);
        assert_eq!((pool.free(), pool.allocate()), (0, None));
        pool.release(second);
        assert_eq!(pool.free(), 1);
        pool.audit([]).unwrap();
    }

    #[test]
    fn of_two_copies_only_the_newer_is_named() {
        let mut pool = KvPool::new(3);
        let older = fill(&mut pool, &names(0..1))[0];
        let newer = fill(&mut pool, &names(0..1))[0];
        assert_eq!(pool.acquire(BlockHash(0)), Some(newer));
        pool.audit([older, newer, newer]).unwrap();
        pool.release(older);
        assert!(pool.is_cached(BlockHash(0)));
    }

    #[test]
    fn host_blocks_are_cached_but_never_available() {
        let mut pool = KvPool::tiered(2, 3);
        assert_eq!((pool.total(), pool.available()), (5, 2));
        let held = fill(&mut pool, &names(0..2));
        assert_eq!(pool.available(), 0, "the GPU is full");
        release_tail_first(&mut pool, held);
        let held = fill(&mut pool, &names(2..4));
        assert_eq!(pool.longest_prefix(&names(0..2)).blocks, 2, "kept although the GPU has other blocks");
        pool.audit(held).unwrap();
    }

    #[test]
    fn forgotten_names_are_not_found_and_references_stay() {
        let mut pool = KvPool::new(3);
        let held = fill(&mut pool, &names(0..2));
        pool.release(held[1]);
        pool.forget_names();
        assert_eq!(pool.longest_prefix(&names(0..2)), PrefixHit::default());
        pool.audit([held[0]]).unwrap();
    }

    #[test]
    fn a_hit_says_how_many_free_blocks_it_would_take() {
        let mut pool = KvPool::new(4);
        let held = fill(&mut pool, &names(0..3));
        pool.release(held[2]);
        assert_eq!(pool.longest_prefix(&names(0..4)), PrefixHit { blocks: 3, free_blocks: 1 });
        assert_eq!(pool.longest_prefix(&names(1..4)), PrefixHit { blocks: 2, free_blocks: 1 });
        assert_eq!(pool.longest_prefix(&names(7..9)), PrefixHit::default());
    }
}
