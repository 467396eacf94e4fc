//! What a backend held, to be held again: from pieces of prompts, as [`super::copy`] met them, to whole prompts in the
//! order in which they were last touched.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::block::{BlockHash, MAX_BLOCKS};

/// Pieces of prompts and answers, by age, the oldest first.
#[derive(Debug, Default)]
pub struct Recalled {
    /// Of all prompts' pieces, one after the other.
    blocks: Vec<BlockHash>,
    pieces: Vec<Piece>,
    /// The youngest piece that ends with a block.
    by_last: HashMap<BlockHash, u32, FixedState>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    before: Option<BlockHash>,
    start: u32,
    end: u32,
    /// Of an answer, which has no blocks of its own.
    answer: u16,
}

impl Recalled {
    /// A piece of a prompt that is younger than all before. Without blocks it is none.
    pub fn prompt(&mut self, before: Option<BlockHash>, blocks: impl Iterator<Item = BlockHash>) {
        let start = self.blocks.len() as u32;
        self.blocks.extend(blocks);
        if let Some(&last) = self.blocks.get(start as usize..).and_then(<[_]>::last) {
            self.by_last.insert(last, self.pieces.len() as u32);
            self.pieces.push(Piece { before, start, end: self.blocks.len() as u32, answer: 0 });
        }
    }

    /// So many blocks of an answer behind a block of a prompt.
    pub fn answer(&mut self, before: BlockHash, blocks: u16) {
        let end = self.blocks.len() as u32;
        self.pieces.push(Piece { before: Some(before), start: end, end, answer: blocks });
    }

    /// Calls `hold` with each whole prompt and the blocks of its answer, as often as it was touched, the oldest first,
    /// until it says that it has enough. Held in this order they are of the age they were. Returns how many pieces were
    /// left out: what they go on from is not there. O(blocks of all these prompts).
    pub fn prompts(&self, mut hold: impl FnMut(&[BlockHash], usize) -> bool) -> usize {
        let (mut path, mut prompt) = (Vec::new(), Vec::new());
        let (mut at, mut left_out) = (0, 0);
        while let Some(deepest) = self.pieces.get(at) {
            at += 1;
            let of_answer = self.is_of_answer(deepest);
            if !self.climb(deepest, &mut path) {
                left_out += 1;
                continue;
            }
            prompt.clear();
            for piece in path.iter().rev() {
                prompt.extend_from_slice(self.blocks_of(piece));
            }
            // What was touched with it lies behind it.
            let mut last: &Piece = deepest;
            while let Some(next) = self.pieces.get(at)
                && !self.is_of_answer(next)
                && self.blocks_of(next).last().copied() == last.before
            {
                last = next;
                at += 1;
            }
            if !hold(&prompt, if of_answer { deepest.answer.into() } else { 0 }) {
                break;
            }
        }
        left_out
    }

    const fn is_of_answer(&self, piece: &Piece) -> bool {
        piece.start == piece.end
    }

    fn blocks_of(&self, piece: &Piece) -> &[BlockHash] {
        &self.blocks[piece.start as usize..piece.end as usize]
    }

    /// The pieces of the prompt up to one, that one first; whether its beginning is there.
    fn climb(&self, deepest: &Piece, path: &mut Vec<Piece>) -> bool {
        path.clear();
        path.push(*deepest);
        let mut before = deepest.before;
        while let Some(block) = before {
            // What goes round in a circle is none of ours.
            let Some(&at) = self.by_last.get(&block) else { return false };
            if path.len() > MAX_BLOCKS {
                return false;
            }
            let piece = self.pieces[at as usize];
            before = piece.before;
            path.push(piece);
        }
        true
    }
}
