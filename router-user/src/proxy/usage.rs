//! What an answer says of itself: the usage object at its end, streamed or not.
//!
//! Copies the end of what passes, and looks once, at the end. A copy, since a frame that is kept holds the whole buffer
//! it was read into: three of them were 24 KiB a stream, and the connection had to read each token into a new one. A
//! reader of a few numbers, not a parser: an answer that has them elsewhere, or oddly, tells nothing.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use router_policy::Usage;

/// Bytes of the end that are looked at.
const LOOKED_AT: usize = 1024;

/// Made once: that takes longer than to search.
static USAGE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("\"usage\""));
static PROMPT: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("\"prompt_tokens\""));
static COMPLETION: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("\"completion_tokens\""));

/// The end of an answer that is passing.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// At most [`LOOKED_AT`] bytes.
    end: Vec<u8>,
    bytes: u64,
}

impl Tail {
    /// A frame passed.
    pub(super) fn saw(&mut self, frame: &[u8]) {
        self.bytes += frame.len() as u64;
        let frame = &frame[frame.len().saturating_sub(LOOKED_AT)..];
        let over = (self.end.len() + frame.len()).saturating_sub(LOOKED_AT);
        self.end.drain(..over);
        self.end.extend_from_slice(frame);
    }

    /// What the answer said.
    pub(super) fn usage(&self) -> Usage {
        // The last of them: forwards, since only that way many bytes are looked at at once.
        let usage = USAGE.find_iter(&self.end).last().map_or(&[][..], |at| &self.end[at..]);
        Usage {
            prompt_tokens: number(usage, &PROMPT),
            completion_tokens: number(usage, &COMPLETION),
            answer_bytes: self.bytes,
        }
    }
}

/// The whole number after a key.
fn number(text: &[u8], key: &Finder<'_>) -> Option<u64> {
    let rest = &text[key.find(text)? + key.needle().len()..];
    let rest = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{LOOKED_AT, Tail};

    fn usage(frames: &[&'static str]) -> (Option<u64>, Option<u64>) {
        let mut tail = Tail::default();
        for frame in frames {
            tail.saw(frame.as_bytes());
        }
        let usage = tail.usage();
        assert_eq!(usage.answer_bytes, frames.iter().map(|f| f.len() as u64).sum::<u64>());
        (usage.prompt_tokens, usage.completion_tokens)
    }

    #[test]
    fn usage_is_found_in_plain_and_streamed_answers() {
        let plain = r#"{"choices":[],"usage":{"prompt_tokens":12,"total_tokens":19,"completion_tokens": 7}}"#;
        assert_eq!(usage(&[plain]), (Some(12), Some(7)));
        let chunk = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":7,\"prompt_tokens\":12}}\n\n";
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":null}\n\n";
        assert_eq!(usage(&[text, text, text, text, chunk, "data: [DONE]\n\n"]), (Some(12), Some(7)));
    }

    #[test]
    fn usage_that_is_cut_between_frames_is_found() {
        assert_eq!(
            usage(&["{\"usage\":{\"prompt_to", "kens\":34,\"completion", "_tokens\":5}}"]),
            (Some(34), Some(5))
        );
    }

    #[test]
    fn no_more_than_the_end_is_kept_however_it_is_cut() {
        let text = format!("{}{{\"usage\":{{\"prompt_tokens\":34}}}}", "x".repeat(3 * LOOKED_AT));
        for piece in [1, 7, 100, LOOKED_AT - 1, LOOKED_AT, LOOKED_AT + 1, text.len()] {
            let mut tail = Tail::default();
            text.as_bytes().chunks(piece).for_each(|frame| tail.saw(frame));
            assert_eq!(tail.end, &text.as_bytes()[text.len() - LOOKED_AT..], "{piece}");
            assert_eq!(tail.usage().prompt_tokens, Some(34), "{piece}");
        }
    }

    #[test]
    fn an_answer_without_usage_or_with_nonsense_tells_nothing() {
        for frames in [
            &[][..],
            &["hello"],
            &["{\"usage\":null}"],
            &["{\"usage\":{\"prompt_tokens\":\"many\",\"completion_tokens\":-4}}"],
            &["{\"usage\":{\"prompt_tokens\":99999999999999999999999}}"],
        ] {
            assert_eq!(usage(frames), (None, None), "{frames:?}");
        }
    }
}
