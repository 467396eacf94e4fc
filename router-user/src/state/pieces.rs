//! Pieces of prompts and answers as bytes.
//!
//! ```text
//! piece    blocks u8, 0x80 if one goes before | the block before 16 | blocks 16 each
//! answer   0x80 | the block before 16 | blocks u16
//! ```

use router_policy::prefix::{BlockHash, Held, Recalled};

const HASH: usize = 16;
const HAS_BEFORE: u8 = 0x80;
/// Blocks of a piece at most.
const BLOCKS_MAX: u8 = 8;

/// Bytes of a piece at most.
pub const PIECE_BYTES_MAX: usize = 1 + HASH + HASH * BLOCKS_MAX as usize;

/// Some pieces, as they are written.
#[derive(Debug, Default)]
pub struct Pieces {
    bytes: Vec<u8>,
    count: u64,
}

impl Pieces {
    /// None, with room for so many.
    #[must_use]
    pub fn with_room(pieces: usize) -> Self {
        Self { bytes: Vec::with_capacity(pieces * PIECE_BYTES_MAX), count: 0 }
    }

    /// Adds one. A copy of its bytes; allocates only beyond the room there is.
    pub fn push(&mut self, held: Held<&mut dyn ExactSizeIterator<Item = BlockHash>>) {
        self.count += 1;
        match held {
            Held::Prompt { before, blocks } => {
                let has_before = if before.is_some() { HAS_BEFORE } else { 0 };
                self.bytes.push(blocks.len() as u8 | has_before);
                for hash in before.into_iter().chain(blocks) {
                    self.bytes.extend(hash.to_le_bytes());
                }
            }
            Held::Answer { before, blocks } => {
                self.bytes.push(HAS_BEFORE);
                self.bytes.extend(before.to_le_bytes());
                self.bytes.extend(blocks.to_le_bytes());
            }
        }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Forgets all; keeps the room. Returns how many there were.
    pub fn clear(&mut self) -> u64 {
        self.bytes.clear();
        std::mem::take(&mut self.count)
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// How many pieces these bytes are; `None` if they are something else. O(pieces).
pub fn count(bytes: &[u8]) -> Option<u64> {
    let (mut rest, mut count) = (bytes, 0);
    while !rest.is_empty() {
        next(&mut rest)?;
        count += 1;
    }
    Some(count)
}

/// Adds these pieces to what is recalled, up to where the bytes are something else.
pub fn recall(bytes: &[u8], recalled: &mut Recalled) {
    let mut rest = bytes;
    while let Some((before, hashes, answer)) = next(&mut rest) {
        match (before, answer) {
            (Some(before), Some(blocks)) => recalled.answer(before, blocks),
            (before, _) => recalled.prompt(before, hashes.iter().map(|hash| BlockHash::from_le_bytes(*hash))),
        }
    }
}

type Piece<'a> = (Option<BlockHash>, &'a [[u8; HASH]], Option<u16>);

/// Takes a piece off the front.
fn next<'a>(rest: &mut &'a [u8]) -> Option<Piece<'a>> {
    let (&head, mut bytes) = rest.split_first()?;
    let blocks = head & !HAS_BEFORE;
    let mut before = None;
    if head & HAS_BEFORE != 0 {
        let (hash, behind) = bytes.split_first_chunk()?;
        (before, bytes) = (Some(BlockHash::from_le_bytes(*hash)), behind);
    }
    if blocks > BLOCKS_MAX || (blocks == 0 && before.is_none()) {
        return None;
    }
    let answer = match blocks {
        0 => {
            let (blocks, behind) = bytes.split_first_chunk()?;
            bytes = behind;
            Some(u16::from_le_bytes(*blocks))
        }
        _ => None,
    };
    let (hashes, behind) = bytes.split_at_checked(usize::from(blocks) * HASH)?;
    *rest = behind;
    Some((before, hashes.as_chunks().0, answer))
}
