//! Lists of marks, newest first: one list a backend, all in one slab.

/// Index into the slab; [`NONE`] = no mark.
pub(super) type MarkId = u32;

/// No mark.
pub(super) const NONE: u32 = u32::MAX;

/// "This backend holds this block": a link in the backend's list by age and in the node's list of holders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) node: u32,
    pub(super) backend: u16,
    /// The next holder of the same node.
    pub(super) next_holder: MarkId,
    newer: MarkId,
    older: MarkId,
}

/// The marks of one backend by age.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgeList {
    newest: MarkId,
    oldest: MarkId,
    pub(super) len: usize,
}

impl AgeList {
    pub(super) const EMPTY: Self = Self { newest: NONE, oldest: NONE, len: 0 };

    pub(super) fn oldest(&self) -> Option<MarkId> {
        (self.oldest != NONE).then_some(self.oldest)
    }
}

/// All marks. Freed places are used again.
#[derive(Debug, Default)]
pub(super) struct Marks {
    slab: Vec<Mark>,
    free: Vec<MarkId>,
}

impl Marks {
    pub(super) fn get(&self, id: MarkId) -> &Mark {
        &self.slab[id as usize]
    }

    pub(super) fn set_next_holder(&mut self, id: MarkId, next: MarkId) {
        self.slab[id as usize].next_holder = next;
    }

    /// A new mark, the newest of its list.
    pub(super) fn push(
        &mut self,
        list: &mut AgeList,
        node: u32,
        backend: u16,
        next_holder: MarkId,
    ) -> MarkId {
        let mark = Mark { node, backend, next_holder, newer: NONE, older: NONE };
        let id = match self.free.pop() {
            Some(id) => {
                self.slab[id as usize] = mark;
                id
            }
            None => {
                self.slab.push(mark);
                (self.slab.len() - 1) as MarkId
            }
        };
        self.link_newest(list, id);
        id
    }

    /// Makes a mark the newest of its list.
    pub(super) fn touch(&mut self, list: &mut AgeList, id: MarkId) {
        if list.newest != id {
            self.unlink(list, id);
            self.link_newest(list, id);
        }
    }

    /// Takes a mark out of its list and frees it; its node's list of holders is the caller's.
    pub(super) fn remove(&mut self, list: &mut AgeList, id: MarkId) {
        self.unlink(list, id);
        self.free.push(id);
    }

    fn link_newest(&mut self, list: &mut AgeList, id: MarkId) {
        let before = list.newest;
        let mark = &mut self.slab[id as usize];
        (mark.newer, mark.older) = (NONE, before);
        match before {
            NONE => list.oldest = id,
            before => self.slab[before as usize].newer = id,
        }
        list.newest = id;
        list.len += 1;
    }

    fn unlink(&mut self, list: &mut AgeList, id: MarkId) {
        let Mark { newer, older, .. } = self.slab[id as usize];
        match newer {
            NONE => list.newest = older,
            newer => self.slab[newer as usize].older = older,
        }
        match older {
            NONE => list.oldest = newer,
            older => self.slab[older as usize].newer = newer,
        }
        list.len -= 1;
    }
}
