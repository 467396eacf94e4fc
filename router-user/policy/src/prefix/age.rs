//! The marks of one backend by age.

use super::run::{Mark, MarkId};
use super::slab::{NONE, Slab};

/// A list by age, and what its marks hold together.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgeList {
    newest: MarkId,
    oldest: MarkId,
    /// Blocks.
    pub(super) blocks: usize,
    /// Marks that are pinned.
    pub(super) pinned: usize,
    /// Counts clearings, so that a pin from before one is known to be void.
    pub(super) epoch: u32,
    /// The mark that a copy in progress comes to next. What leaves its place before that is met again where it went.
    pub(super) cursor: MarkId,
}

impl AgeList {
    pub(super) const EMPTY: Self =
        Self { newest: NONE, oldest: NONE, blocks: 0, pinned: 0, epoch: 0, cursor: NONE };

    pub(super) fn oldest(&self) -> Option<MarkId> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Puts a mark that is in no list at the young end.
    pub(super) fn link_newest(&mut self, marks: &mut Slab<Mark>, id: MarkId) {
        self.link_between(marks, id, self.newest, NONE);
        self.blocks += usize::from(marks[id].held);
    }

    /// Puts a mark that is in no list behind `older`, whose blocks it took over.
    pub(super) fn link_behind(&mut self, marks: &mut Slab<Mark>, id: MarkId, older: MarkId) {
        self.link_between(marks, id, older, marks[older].newer);
    }

    fn link_between(&mut self, marks: &mut Slab<Mark>, id: MarkId, older: MarkId, newer: MarkId) {
        (marks[id].older, marks[id].newer) = (older, newer);
        self.set_newer(marks, older, id);
        self.set_older(marks, newer, id);
    }

    /// Takes a mark out.
    pub(super) fn unlink(&mut self, marks: &mut Slab<Mark>, id: MarkId) {
        let Mark { newer, older, held, .. } = marks[id];
        if self.cursor == id {
            self.cursor = newer;
        }
        self.set_newer(marks, older, newer);
        self.set_older(marks, newer, older);
        self.blocks -= usize::from(held);
    }

    /// Makes a mark and all before it on its path the newest, the deepest before the others. O(marks of the path), but
    /// what was touched together before still lies together and is moved in one piece: its marks are only read.
    pub(super) fn touch_path(&mut self, marks: &mut Slab<Mark>, deepest: MarkId) {
        let mut oldest = deepest;
        while oldest != NONE {
            let mut newest = oldest;
            let mut before = marks[newest].parent;
            let mut has_cursor = newest == self.cursor;
            while before != NONE && marks[newest].newer == before {
                newest = before;
                has_cursor |= newest == self.cursor;
                before = marks[newest].parent;
            }
            if has_cursor && self.newest != newest {
                self.cursor = marks[newest].newer;
            }
            self.move_span(marks, oldest, newest);
            oldest = before;
        }
    }

    /// Moves what lies between two marks, both included, to the young end.
    fn move_span(&mut self, marks: &mut Slab<Mark>, oldest: MarkId, newest: MarkId) {
        if self.newest == newest {
            return;
        }
        let (older, newer) = (marks[oldest].older, marks[newest].newer);
        self.set_older(marks, newer, older);
        self.set_newer(marks, older, newer);
        let before = self.newest;
        marks[oldest].older = before;
        self.set_newer(marks, before, oldest);
        marks[newest].newer = NONE;
        self.newest = newest;
    }

    /// Sets what is newer than a mark; of none, what is the oldest.
    fn set_newer(&mut self, marks: &mut Slab<Mark>, id: MarkId, newer: MarkId) {
        match id {
            NONE => self.oldest = newer,
            id => marks[id].newer = newer,
        }
    }

    /// Sets what is older than a mark; of none, what is the newest.
    fn set_older(&mut self, marks: &mut Slab<Mark>, id: MarkId, older: MarkId) {
        match id {
            NONE => self.newest = older,
            id => marks[id].older = older,
        }
    }
}
