//! The memory of the index: nodes and marks in one slab, and each backend's marks in a list by age.
//!
//! A node has room for one mark, its first holder's, since most blocks are held by one backend; a further holder's mark
//! takes a place of the same size, so that a fleet that goes from sharing nothing to sharing all needs no more room than
//! before. A place is 36 bytes. The slab grows by an eighth, not by doubling, up to its bound; freed places are used
//! again, and given back when none is in use. Invariant: a mark's parent is the same backend's mark of the block before,
//! and lives at least as long.

use super::block::BlockHash;

/// A place: of a node for its first mark, of its own for a further one.
pub(super) type MarkId = u32;

/// No mark, no node.
pub(super) const NONE: u32 = u32::MAX;

/// Most places there can be; one less than the numbers, of which the last means none.
pub(super) const PLACES_MAX: usize = u32::MAX as usize - 1;

/// No backend: the node's own mark is free while further holders exist.
const VACANT: u16 = u16::MAX;

/// Marks of a path that are compared at once.
const COMPARED_AT_ONCE: usize = 16;

/// Places that are kept when nothing is left, so that a small index that empties now and then allocates nothing.
const PLACES_KEPT: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Of a node: its hash. Of a further mark: its node, and nothing. In four words, so that no padding is needed.
    words: [u32; 4],
    parent: MarkId,
    newer: MarkId,
    older: MarkId,
    /// The next holder of the same node; of a free place the next free one.
    next: MarkId,
    backend: u16,
    /// Of a node: how many backends hold it. Of a further mark: 0.
    holders: u16,
}

const _: () = assert!(size_of::<Place>() == 36);

impl Place {
    const fn new(words: [u32; 4], backend: u16) -> Self {
        Self { words, parent: NONE, newer: NONE, older: NONE, next: NONE, backend, holders: 0 }
    }
}

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
#[derive(Debug)]
pub(super) struct Slab {
    places: Vec<Place>,
    places_max: usize,
    /// The first free place, which leads to the others.
    free: u32,
    live: usize,
}

const fn words(hash: BlockHash) -> [u32; 4] {
    [hash as u32, (hash >> 32) as u32, (hash >> 64) as u32, (hash >> 96) as u32]
}

/// Places.
impl Slab {
    /// At most so many places.
    pub(super) fn new(places_max: usize) -> Self {
        Self { places: Vec::new(), places_max: places_max.min(PLACES_MAX), free: NONE, live: 0 }
    }

    /// Places that may still be taken.
    pub(super) fn room(&self) -> usize {
        self.places_max - self.live
    }

    /// Bytes the slab takes, unused room included.
    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
    }

    /// The caller has seen that there is room.
    fn take(&mut self, place: Place) -> u32 {
        self.live += 1;
        if let Some(free) = self.places.get_mut(self.free as usize) {
            return std::mem::replace(&mut self.free, std::mem::replace(free, place).next);
        }
        let len = self.places.len();
        if len == self.places.capacity() {
            self.places.reserve_exact((len / 8).max(64).min(self.places_max.saturating_sub(len)).max(1));
        }
        self.places.push(place);
        len as u32
    }

    fn give_back(&mut self, id: u32) {
        self.place_mut(id).next = std::mem::replace(&mut self.free, id);
        self.live -= 1;
        if self.live == 0 && self.places.capacity() > PLACES_KEPT {
            *self = Self::new(self.places_max);
        }
    }

    fn place(&self, id: u32) -> &Place {
        &self.places[id as usize]
    }

    fn place_mut(&mut self, id: u32) -> &mut Place {
        &mut self.places[id as usize]
    }
}

/// Nodes.
impl Slab {
    /// A node that nobody holds yet. There must be room.
    pub(super) fn new_node(&mut self, hash: BlockHash) -> u32 {
        self.take(Place::new(words(hash), VACANT))
    }

    /// Frees a node that nobody holds. With the last one the memory is given back.
    pub(super) fn free_node(&mut self, node: u32) {
        self.give_back(node);
    }

    pub(super) fn has_hash(&self, node: u32, hash: BlockHash) -> bool {
        self.place(node).words == words(hash)
    }

    /// The low half of a node's hash, which places it in the table.
    pub(super) fn low_hash(&self, node: u32) -> u64 {
        let words = &self.place(node).words;
        u64::from(words[0]) | u64::from(words[1]) << 32
    }

    /// How many backends hold a node.
    pub(super) fn holders(&self, node: u32) -> u16 {
        self.place(node).holders
    }

    /// Calls `see` with each backend that holds a node, and its mark there. O(holders).
    pub(super) fn for_each_holder(&self, node: u32, mut see: impl FnMut(usize, MarkId)) {
        let place = self.place(node);
        if place.backend != VACANT {
            see(usize::from(place.backend), node);
        }
        let mut id = place.next;
        while id != NONE {
            let place = self.place(id);
            see(usize::from(place.backend), id);
            id = place.next;
        }
    }
}

/// Marks.
impl Slab {
    /// A mark of `backend` at `node`, in no list by age yet. There must be room.
    pub(super) fn new_mark(&mut self, node: u32, parent: MarkId, backend: usize) -> MarkId {
        let first = self.place_mut(node);
        first.holders += 1;
        if first.backend == VACANT {
            (first.parent, first.backend) = (parent, backend as u16);
            return node;
        }
        let next = first.next;
        let further = Place { parent, next, ..Place::new([node, 0, 0, 0], backend as u16) };
        let id = self.take(further);
        self.place_mut(node).next = id;
        id
    }

    /// Frees a mark that is in no list by age; returns its node if nobody holds it any more.
    pub(super) fn free_mark(&mut self, id: MarkId) -> Option<u32> {
        let node = self.node_of(id);
        let first = self.place_mut(node);
        first.holders -= 1;
        let is_last = first.holders == 0;
        if id == node {
            first.backend = VACANT;
        } else {
            let next = self.place(id).next;
            let mut before = node;
            while self.place(before).next != id {
                before = self.place(before).next;
            }
            self.place_mut(before).next = next;
            self.give_back(id);
        }
        is_last.then_some(node)
    }

    /// Whether the node's own mark is this backend's.
    pub(super) fn is_first_holder(&self, node: u32, backend: usize) -> bool {
        usize::from(self.place(node).backend) == backend
    }

    pub(super) fn parent(&self, id: MarkId) -> MarkId {
        self.place(id).parent
    }

    /// Puts a mark that is in no list at the young end.
    pub(super) fn link_newest(&mut self, list: &mut AgeList, id: MarkId) {
        let before = list.newest;
        let place = self.place_mut(id);
        (place.newer, place.older) = (NONE, before);
        match before {
            NONE => list.oldest = id,
            before => self.place_mut(before).newer = id,
        }
        list.newest = id;
        list.len += 1;
    }

    /// Takes a mark out of its list.
    pub(super) fn unlink(&mut self, list: &mut AgeList, id: MarkId) {
        let Place { newer, older, .. } = *self.place(id);
        match newer {
            NONE => list.newest = older,
            newer => self.place_mut(newer).older = older,
        }
        match older {
            NONE => list.oldest = newer,
            older => self.place_mut(older).newer = newer,
        }
        list.len -= 1;
    }

    /// Makes the marks of a path, the first block's first, the newest of their list, the deepest before the others.
    /// O(path), but what was touched together before still lies together and is moved in one piece: its marks are only
    /// read, and not one after another, so that memory's latency is paid once.
    pub(super) fn touch(&mut self, list: &mut AgeList, path: &[MarkId]) {
        let mut rest = path;
        while let Some(&deepest) = rest.last() {
            let first = self.run_start(rest);
            self.move_run(list, deepest, rest[first]);
            rest = &rest[..first];
        }
    }

    /// Where the run begins that ends with the path's last mark: from there on each is the next older of the one
    /// before. Compares in groups without leaving early, since a compiler that knows two numbers to be equal would
    /// take the one from memory for the one at hand, and wait for it.
    fn run_start(&self, path: &[MarkId]) -> usize {
        let mut first = path.len() - 1;
        while first > 0 {
            let group = first.min(COMPARED_AT_ONCE);
            let mut breaks = 0_u32;
            for n in 0..group {
                let is_break = self.place(path[first - n]).newer != path[first - n - 1];
                breaks |= u32::from(is_break) << n;
            }
            let run = (breaks.trailing_zeros() as usize).min(group);
            first -= run;
            if run < group {
                break;
            }
        }
        first
    }

    /// The same of a mark and all before it on its path, found from parent to parent.
    pub(super) fn touch_path(&mut self, list: &mut AgeList, mut id: MarkId) {
        while id != NONE {
            self.move_run(list, id, id);
            id = self.parent(id);
        }
    }

    /// Moves what lies between two marks of a list, both included, to its young end.
    fn move_run(&mut self, list: &mut AgeList, oldest: MarkId, newest: MarkId) {
        if list.newest == newest {
            return;
        }
        let (before, after) = (self.place(oldest).older, self.place(newest).newer);
        self.place_mut(after).older = before;
        match before {
            NONE => list.oldest = after,
            before => self.place_mut(before).newer = after,
        }
        self.place_mut(oldest).older = list.newest;
        self.place_mut(list.newest).newer = oldest;
        self.place_mut(newest).newer = NONE;
        list.newest = newest;
    }

    fn node_of(&self, id: MarkId) -> u32 {
        let place = self.place(id);
        if place.holders > 0 { id } else { place.words[0] }
    }
}
