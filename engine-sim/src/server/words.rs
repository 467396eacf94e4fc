//! What the engine says: pseudo-words.
//!
//! Each is three letters and a space, so that a word is one token again when the answer comes back in a prompt.

use crate::mix::mix;

const CONSONANTS: &[u8; 16] = b"bcdfghjklmnprstv";
const VOWELS: &[u8; 5] = b"aeiou";

/// The `index`-th word of the answer to request `id`; the same for the same seed.
pub(super) fn word(seed: u64, id: u64, index: u32) -> [u8; 4] {
    let mut bits = mix(seed ^ mix(id ^ mix(u64::from(index))));
    let mut take = |letters: &[u8]| {
        let letter = letters[(bits % letters.len() as u64) as usize];
        bits /= letters.len() as u64;
        letter
    };
    [take(CONSONANTS), take(VOWELS), take(CONSONANTS), b' ']
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_depend_on_seed_request_and_place_alone() {
        assert_eq!(word(1, 2, 3), word(1, 2, 3));
        let text = |seed, id| (0..20).map(|index| word(seed, id, index)).collect::<Vec<_>>();
        assert_ne!(text(1, 2), text(2, 2), "another seed");
        assert_ne!(text(1, 2), text(1, 3), "another request");
    }

    #[test]
    fn a_word_is_one_token_of_text() {
        for index in 0..100 {
            let word = word(7, 7, index);
            assert_eq!(word.len(), crate::model::TOKEN_BYTES);
            assert!(word[..3].iter().all(u8::is_ascii_lowercase) && word[3] == b' ');
        }
    }
}
