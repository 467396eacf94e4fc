//! A prompt's text: an engine that hashes 64 bytes a block, four a token, finds in it the prefixes that the ids
//! stand for, and so does a router that hashes 256 bytes a block.
//!
//! Invariant: four bytes a token; equal leading hashes give equal leading bytes, and unequal ones unequal bytes.

use engine_sim::Prompt;
use engine_sim::model::{BLOCK_TOKENS, TOKEN_BYTES};

use super::super::keys::mix;

const BLOCK_BYTES: usize = BLOCK_TOKENS as usize * TOKEN_BYTES;
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The text of a prompt. What has no hash (the part of a block at the end) is told from all others by `unique`.
pub(super) fn of(prompt: &Prompt, unique: u64) -> String {
    let mut text = String::with_capacity(prompt.tokens() as usize * TOKEN_BYTES);
    prompt.hashes().iter().for_each(|hash| push(&mut text, hash.0, BLOCK_BYTES));
    let mut filler = mix(unique);
    loop {
        let rest = prompt.tokens() as usize * TOKEN_BYTES - text.len();
        if rest == 0 {
            return text;
        }
        push(&mut text, filler, rest.min(BLOCK_BYTES));
        filler = mix(filler);
    }
}

/// Appends so many hexadecimal digits, the first 16 of which are `seed`.
fn push(text: &mut String, seed: u64, digits: usize) {
    let mut word = seed;
    for at in 0..digits {
        if at > 0 && at % 16 == 0 {
            word = mix(word);
        }
        text.push(char::from(DIGITS[(word.rotate_left(4 * (at as u32 % 16 + 1)) & 15) as usize]));
    }
}

#[cfg(test)]
mod tests {
    use engine_sim::model::BlockHash;
    use router_policy::prefix::{ChainBuilder, HashKey};

    use super::super::super::chooser::Asked;
    use super::super::super::keys;
    use super::*;

    fn prompt(tokens: u32, hashes: &[u64]) -> Prompt {
        Prompt::new(tokens, hashes.iter().copied().map(BlockHash).collect())
    }

    #[test]
    fn an_engine_counts_the_same_tokens_and_finds_the_same_prefix() {
        let (a, b) = (prompt(5 * 16 + 3, &[7, 8, 9, 1, 2]), prompt(5 * 16 + 15, &[7, 8, 9, 3, 2]));
        let seen = |prompt: &Prompt, unique| Prompt::of_text(&of(prompt, unique));
        let (seen_a, seen_b) = (seen(&a, 1), seen(&b, 2));
        assert_eq!((seen_a.tokens(), seen_b.tokens()), (a.tokens(), b.tokens()));
        assert_eq!(seen_a.hashes()[..3], seen_b.hashes()[..3], "three blocks are equal");
        assert!(seen_a.hashes()[3..].iter().all(|hash| !seen_b.hashes().contains(hash)), "then none is");
    }

    #[test]
    fn a_router_finds_as_many_blocks_as_replay_gives_it() {
        let key = HashKey::new([7; 192]);
        // As the router reads a plain prompt: a border, then the text.
        let chain = |prompt: &Prompt, unique| {
            let mut builder = ChainBuilder::new(&key, b"");
            builder.update(&[3]);
            builder.update(of(prompt, unique).as_bytes());
            builder.finish()
        };
        for common in [0, 3, 4, 7, 8, 40] {
            let ids = |own: u64| (0..40).map(|i| if i < common { i } else { own + i }).collect::<Vec<_>>();
            let (a, b) = (prompt(40 * 16 + 9, &ids(100)), prompt(40 * 16 + 2, &ids(200)));
            let equal = |a: &[u128], b: &[u128]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
            let (text_a, text_b) = (chain(&a, 1).blocks, chain(&b, 2).blocks);
            let shape = |prompt| {
                let asked = Asked { prompt, stream: true, session: None };
                keys::shape(&asked, 16).chain.blocks
            };
            assert_eq!(equal(&text_a, &text_b), equal(&shape(&a), &shape(&b)), "{common} engine blocks");
            assert_eq!(text_a.len(), shape(&a).len());
        }
    }

    #[test]
    fn what_has_no_hash_is_like_nothing_else() {
        let unhashed = prompt(64, &[7]);
        let (a, b) = (of(&unhashed, 1), of(&unhashed, 2));
        assert_eq!((a.len(), &a[..64]), (256, &b[..64]));
        let blocks = |text: &str| text.as_bytes().chunks(64).map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert!(blocks(&a)[1..].iter().all(|block| !blocks(&b).contains(block)));
    }
}
