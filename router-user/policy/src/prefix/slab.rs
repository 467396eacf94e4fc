//! The memory of the index: nodes and marks in two slabs, and each backend's marks in a list by age.
//!
//! A node has room for one mark, its first holder's, since most blocks are held by one backend; further holders'
//! marks lie in a slab of their own. So a block with one holder costs 36 bytes, each further holder 24. Slabs grow
//! by an eighth, not by doubling; freed places are used again, and given back when none is in use. Invariant: a mark's parent is the same backend's mark
//! of the block before, and lives at least as long.

use super::block::BlockHash;

/// A mark: index of a node for its first mark, or [`EXTRA`] plus an index of the second slab.
pub(super) type MarkId = u32;

/// No mark, no node.
pub(super) const NONE: u32 = u32::MAX;

/// Set in ids of marks outside their node.
const EXTRA: u32 = 1 << 31;

/// No backend: the node's own mark is free while further holders exist.
const VACANT: u16 = u16::MAX;

/// What every mark has.
#[derive(Clone, Copy, Debug)]
struct Link {
    parent: MarkId,
    newer: MarkId,
    older: MarkId,
    /// The next holder of the same node.
    next: MarkId,
    backend: u16,
    /// In a node: how many backends hold it.
    holders: u16,
}

impl Link {
    const fn new(parent: MarkId, backend: u16) -> Self {
        Self { parent, newer: NONE, older: NONE, next: NONE, backend, holders: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The hash in four words, so that the node needs no padding.
    hash: [u32; 4],
    link: Link,
}

#[derive(Clone, Copy, Debug)]
struct Extra {
    node: u32,
    link: Link,
}

const _: () = assert!(size_of::<Node>() == 36 && size_of::<Extra>() == 24);

/// The marks of one backend by age.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgeList {
    newest: MarkId,
    oldest: MarkId,
    pub(super) len: usize,
    /// Counts clearings, so that a pin from before one is known to be void.
    pub(super) epoch: u32,
}

impl AgeList {
    pub(super) const EMPTY: Self = Self { newest: NONE, oldest: NONE, len: 0, epoch: 0 };

    pub(super) fn oldest(&self) -> Option<MarkId> {
        (self.oldest != NONE).then_some(self.oldest)
    }
}

/// Nodes and marks.
#[derive(Debug, Default)]
pub(super) struct Slab {
    nodes: Vec<Node>,
    /// The first free place; `next` of its link leads to the others.
    free_node: Option<u32>,
    live_nodes: usize,
    extras: Vec<Extra>,
    free_extra: Option<u32>,
}

/// Places that are kept when nothing is left, so that a small index that empties now and then allocates nothing.
const KEPT_NODES: usize = 4096;

/// A free place's link to the next, and back.
const fn free_next(next: Option<u32>) -> u32 {
    match next {
        Some(id) => id,
        None => NONE,
    }
}

fn words(hash: BlockHash) -> [u32; 4] {
    [hash as u32, (hash >> 32) as u32, (hash >> 64) as u32, (hash >> 96) as u32]
}

/// Makes room for one more by an eighth of what is there.
fn grow<T>(vec: &mut Vec<T>) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact((vec.len() / 8).max(64));
    }
}

/// Nodes.
impl Slab {
    /// A node that nobody holds yet.
    pub(super) fn new_node(&mut self, hash: BlockHash) -> u32 {
        let node = Node { hash: words(hash), link: Link::new(NONE, VACANT) };
        self.live_nodes += 1;
        if let Some(id) = self.free_node {
            let place = &mut self.nodes[id as usize];
            self.free_node = Some(place.link.next).filter(|&next| next != NONE);
            *place = node;
            return id;
        }
        grow(&mut self.nodes);
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Frees a node that nobody holds. With the last one the memory is given back.
    pub(super) fn free_node(&mut self, node: u32) {
        self.nodes[node as usize].link.next = free_next(self.free_node);
        self.free_node = Some(node);
        self.live_nodes -= 1;
        if self.live_nodes == 0 && self.nodes.capacity() > KEPT_NODES {
            *self = Self::default();
        }
    }

    pub(super) fn has_hash(&self, node: u32, hash: BlockHash) -> bool {
        self.nodes[node as usize].hash == words(hash)
    }

    /// The low half of a node's hash, which places it in the table.
    pub(super) fn low_hash(&self, node: u32) -> u64 {
        let hash = &self.nodes[node as usize].hash;
        u64::from(hash[0]) | u64::from(hash[1]) << 32
    }

    /// How many backends hold a node.
    pub(super) fn holders(&self, node: u32) -> u16 {
        self.nodes[node as usize].link.holders
    }

    /// Calls `see` with each backend that holds a node, and its mark there. O(holders).
    pub(super) fn for_each_holder(&self, node: u32, mut see: impl FnMut(usize, MarkId)) {
        let link = &self.nodes[node as usize].link;
        if link.backend != VACANT {
            see(usize::from(link.backend), node);
        }
        let mut id = link.next;
        while id != NONE {
            let link = self.link(id);
            see(usize::from(link.backend), id);
            id = link.next;
        }
    }

    /// Bytes the slabs take, unused room included.
    pub(super) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.extras.capacity() * size_of::<Extra>()
    }
}

/// Marks.
impl Slab {
    /// A mark of `backend` at `node`, in no list by age yet.
    pub(super) fn new_mark(&mut self, node: u32, parent: MarkId, backend: usize) -> MarkId {
        let first = &mut self.nodes[node as usize].link;
        let next = first.next;
        first.holders += 1;
        if first.backend == VACANT {
            let holders = first.holders;
            *first = Link { next, holders, ..Link::new(parent, backend as u16) };
            return node;
        }
        let extra = Extra { node, link: Link { next, ..Link::new(parent, backend as u16) } };
        let index = match self.free_extra {
            Some(index) => {
                let place = &mut self.extras[index as usize];
                self.free_extra = Some(place.link.next).filter(|&next| next != NONE);
                *place = extra;
                index
            }
            None => {
                grow(&mut self.extras);
                self.extras.push(extra);
                (self.extras.len() - 1) as u32
            }
        };
        self.nodes[node as usize].link.next = EXTRA | index;
        EXTRA | index
    }

    /// Frees a mark that is in no list by age; returns its node if nobody holds it any more.
    pub(super) fn free_mark(&mut self, id: MarkId) -> Option<u32> {
        let node = self.node_of(id);
        if id == node {
            self.nodes[node as usize].link.backend = VACANT;
        } else {
            let next = self.link(id).next;
            let mut before = node;
            while self.link(before).next != id {
                before = self.link(before).next;
            }
            self.link_mut(before).next = next;
            self.link_mut(id).next = free_next(self.free_extra);
            self.free_extra = Some(id & !EXTRA);
        }
        let link = &mut self.nodes[node as usize].link;
        link.holders -= 1;
        (link.holders == 0).then_some(node)
    }

    pub(super) fn parent(&self, id: MarkId) -> MarkId {
        self.link(id).parent
    }

    /// Puts a mark that is in no list at the young end.
    pub(super) fn link_newest(&mut self, list: &mut AgeList, id: MarkId) {
        let before = list.newest;
        let link = self.link_mut(id);
        (link.newer, link.older) = (NONE, before);
        match before {
            NONE => list.oldest = id,
            before => self.link_mut(before).newer = id,
        }
        list.newest = id;
        list.len += 1;
    }

    /// Takes a mark out of its list.
    pub(super) fn unlink(&mut self, list: &mut AgeList, id: MarkId) {
        let Link { newer, older, .. } = *self.link(id);
        match newer {
            NONE => list.newest = older,
            newer => self.link_mut(newer).older = older,
        }
        match older {
            NONE => list.oldest = newer,
            older => self.link_mut(older).newer = newer,
        }
        list.len -= 1;
    }

    /// Makes a mark and all before it on its path the newest, the deepest first. O(path).
    pub(super) fn touch_path(&mut self, list: &mut AgeList, mut id: MarkId) {
        while id != NONE {
            if list.newest != id {
                self.unlink(list, id);
                self.link_newest(list, id);
            }
            id = self.parent(id);
        }
    }

    fn node_of(&self, id: MarkId) -> u32 {
        if id & EXTRA == 0 { id } else { self.extras[(id & !EXTRA) as usize].node }
    }

    fn link(&self, id: MarkId) -> &Link {
        if id & EXTRA == 0 {
            &self.nodes[id as usize].link
        } else {
            &self.extras[(id & !EXTRA) as usize].link
        }
    }

    fn link_mut(&mut self, id: MarkId) -> &mut Link {
        if id & EXTRA == 0 {
            &mut self.nodes[id as usize].link
        } else {
            &mut self.extras[(id & !EXTRA) as usize].link
        }
    }
}
