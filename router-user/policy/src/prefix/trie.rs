//! The bounded prefix index: one trie over chained block hashes, with a mark per backend that holds a block.
//!
//! A node stands for a whole path: its key is the chained hash, which names the block and all before it. So the
//! walk from the root is one look-up a block, no child pointers are kept, and chains of different models (which
//! start from different hashes) never meet. Each backend's marks form a list by age; inserting a chain touches
//! its tail first and its head last, hence a block is never older than what extends it, eviction of the oldest
//! never leaves a hole, and a common head outlives its tails.
//!
//! Memory: about 48 bytes a node and 24 a mark. Bound: each backend's capacity, and their sum.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use router_common::BackendId;
use router_common::limits::MAX_BACKENDS;

use super::block::BlockHash;
use super::lru::{AgeList, MarkId, Marks, NONE};

/// Leading blocks each backend holds, by row.
#[derive(Clone, Debug)]
pub struct Matches([u32; MAX_BACKENDS]);

impl Matches {
    /// Leading blocks that `id` holds.
    #[must_use]
    pub const fn blocks(&self, id: BackendId) -> u32 {
        self.0[id.index()]
    }
}

impl Default for Matches {
    fn default() -> Self {
        Self([0; MAX_BACKENDS])
    }
}

#[derive(Debug)]
struct Node {
    hash: BlockHash,
    first_holder: MarkId,
}

/// Which backend holds which block.
#[derive(Debug)]
pub struct Trie {
    index: HashMap<BlockHash, u32, RandomState>,
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    marks: Marks,
    lists: Vec<AgeList>,
    evicted_blocks: u64,
    cut_blocks: u64,
}

impl Default for Trie {
    fn default() -> Self {
        Self {
            index: HashMap::default(),
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            marks: Marks::default(),
            lists: vec![AgeList::EMPTY; MAX_BACKENDS],
            evicted_blocks: 0,
            cut_blocks: 0,
        }
    }
}

impl Trie {
    /// How many leading blocks of a chain each backend holds. O(matched blocks × holders).
    #[must_use]
    pub fn matches(&self, blocks: &[BlockHash]) -> Matches {
        let mut found = Matches::default();
        for (depth, hash) in (0_u32..).zip(blocks) {
            let Some(&node) = self.index.get(hash) else { break };
            let mut holder = self.nodes[node as usize].first_holder;
            while holder != NONE {
                let mark = self.marks.get(holder);
                let leading = &mut found.0[usize::from(mark.backend)];
                if *leading == depth {
                    *leading = depth + 1;
                }
                holder = mark.next_holder;
            }
        }
        found
    }

    /// The backend now holds these blocks, and at most `capacity` in all: its oldest go. O(blocks × holders).
    pub fn insert(&mut self, id: BackendId, blocks: &[BlockHash], capacity: usize) {
        let kept = blocks.len().min(capacity);
        self.cut_blocks += (blocks.len() - kept) as u64;
        for hash in blocks[..kept].iter().rev() {
            self.hold(id, *hash);
        }
        while self.lists[id.index()].len > capacity {
            self.drop_oldest(id);
            self.evicted_blocks += 1;
        }
    }

    /// Forgets everything the backend holds. O(its blocks).
    pub fn clear(&mut self, id: BackendId) {
        while self.lists[id.index()].len > 0 {
            self.drop_oldest(id);
        }
    }

    /// Blocks the backend holds.
    #[must_use]
    pub fn held_blocks(&self, id: BackendId) -> usize {
        self.lists[id.index()].len
    }

    /// Blocks that at least one backend holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether no backend holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Blocks that went for being the oldest, since the start.
    #[must_use]
    pub const fn evicted_blocks(&self) -> u64 {
        self.evicted_blocks
    }

    /// Blocks of chains longer than a backend's capacity, never inserted, since the start.
    #[must_use]
    pub const fn cut_blocks(&self) -> u64 {
        self.cut_blocks
    }

    fn hold(&mut self, id: BackendId, hash: BlockHash) {
        let node = self.node(hash);
        let first = self.nodes[node as usize].first_holder;
        let list = &mut self.lists[id.index()];
        let mut holder = first;
        while holder != NONE {
            let mark = self.marks.get(holder);
            if usize::from(mark.backend) == id.index() {
                self.marks.touch(list, holder);
                return;
            }
            holder = mark.next_holder;
        }
        let mark = self.marks.push(list, node, id.index() as u16, first);
        self.nodes[node as usize].first_holder = mark;
    }

    fn node(&mut self, hash: BlockHash) -> u32 {
        if let Some(&node) = self.index.get(&hash) {
            return node;
        }
        let fresh = Node { hash, first_holder: NONE };
        let node = match self.free_nodes.pop() {
            Some(node) => {
                self.nodes[node as usize] = fresh;
                node
            }
            None => {
                self.nodes.push(fresh);
                (self.nodes.len() - 1) as u32
            }
        };
        self.index.insert(hash, node);
        node
    }

    fn drop_oldest(&mut self, id: BackendId) {
        let list = &mut self.lists[id.index()];
        let Some(oldest) = list.oldest() else { return };
        let mark = *self.marks.get(oldest);
        self.marks.remove(list, oldest);
        self.unhold(mark.node, oldest, mark.next_holder);
    }

    /// Takes a mark out of its node's holders; a node without holders goes.
    fn unhold(&mut self, node: u32, gone: MarkId, next: MarkId) {
        let entry = &mut self.nodes[node as usize];
        if entry.first_holder == gone {
            entry.first_holder = next;
        } else {
            let mut holder = entry.first_holder;
            while self.marks.get(holder).next_holder != gone {
                holder = self.marks.get(holder).next_holder;
            }
            self.marks.set_next_holder(holder, next);
        }
        if self.nodes[node as usize].first_holder == NONE {
            self.index.remove(&self.nodes[node as usize].hash);
            self.free_nodes.push(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BackendId, BlockHash, Trie};

    fn id(row: usize) -> BackendId {
        BackendId::new(row).unwrap()
    }

    #[test]
    fn leading_blocks_count_and_later_ones_alone_do_not() {
        let mut t = Trie::default();
        t.insert(id(0), &[1, 2, 3], 10);
        t.insert(id(1), &[1, 2], 10);
        let m = t.matches(&[1, 2, 3, 4]);
        assert_eq!((m.blocks(id(0)), m.blocks(id(1)), m.blocks(id(2))), (3, 2, 0));
        assert_eq!(t.matches(&[9, 2, 3]).blocks(id(0)), 0, "the first block decides");
    }

    #[test]
    fn a_common_head_outlives_its_tails() {
        let mut t = Trie::default();
        t.insert(id(0), &[1, 2, 3, 4], 6);
        t.insert(id(0), &[1, 2, 5, 6], 6);
        t.insert(id(0), &[1, 2, 7, 8], 6);
        assert_eq!(t.held_blocks(id(0)), 6);
        assert_eq!(t.matches(&[1, 2, 3, 4]).blocks(id(0)), 2, "the oldest tail went, its head stayed");
        assert_eq!(t.matches(&[1, 2, 7, 8]).blocks(id(0)), 4);
        assert_eq!(t.evicted_blocks(), 2);
    }

    #[test]
    fn one_backends_bound_does_not_touch_another() {
        let mut t = Trie::default();
        t.insert(id(0), &[1, 2], 2);
        t.insert(id(1), &[1, 2, 3], 9);
        t.insert(id(0), &[8, 9], 2);
        assert_eq!(t.matches(&[1, 2, 3]).blocks(id(0)), 0);
        assert_eq!(t.matches(&[1, 2, 3]).blocks(id(1)), 3);
        t.clear(id(1));
        assert_eq!((t.held_blocks(id(1)), t.len()), (0, 2));
    }

    #[test]
    fn a_chain_longer_than_the_capacity_keeps_its_head() {
        let mut t = Trie::default();
        let chain: Vec<BlockHash> = (0..100).collect();
        t.insert(id(3), &chain, 10);
        assert_eq!(t.matches(&chain).blocks(id(3)), 10);
        assert_eq!(t.cut_blocks(), 90);
        t.insert(id(4), &chain, 0);
        assert_eq!(t.matches(&chain).blocks(id(4)), 0, "capacity 0 holds nothing");
    }
}
