//! What an answer says of itself: the usage object at its end, streamed or not.
//!
//! Keeps the last frames by reference, copies nothing while the answer passes, and looks once, at the end. A reader
//! of a few numbers, not a parser: an answer that has them elsewhere, or oddly, tells nothing.

use bytes::Bytes;
use memchr::memmem;
use router_policy::Usage;

/// Frames kept; usage and `[DONE]` come in the last two.
const FRAMES: usize = 3;

/// Bytes of the end that are looked at.
const LOOKED_AT: usize = 4096;

/// The end of an answer that is passing.
#[derive(Debug, Default)]
pub(super) struct Tail {
    frames: [Bytes; FRAMES],
    next: usize,
    bytes: u64,
}

impl Tail {
    /// A frame passed.
    pub(super) fn saw(&mut self, frame: &Bytes) {
        self.bytes += frame.len() as u64;
        self.frames[self.next % FRAMES] = frame.clone();
        self.next = self.next.wrapping_add(1);
    }

    /// What the answer said.
    pub(super) fn usage(&self) -> Usage {
        let mut end = Vec::with_capacity(LOOKED_AT);
        for age in (0..FRAMES).rev() {
            let frame = &self.frames[(self.next + FRAMES - 1 - age) % FRAMES];
            end.extend_from_slice(&frame[frame.len().saturating_sub(LOOKED_AT)..]);
        }
        let end = &end[end.len().saturating_sub(LOOKED_AT)..];
        let usage = memmem::rfind(end, b"\"usage\"").map_or(&[][..], |at| &end[at..]);
        Usage {
            prompt_tokens: number(usage, b"\"prompt_tokens\""),
            completion_tokens: number(usage, b"\"completion_tokens\""),
            answer_bytes: self.bytes,
        }
    }
}

/// The whole number after a key.
fn number(text: &[u8], key: &[u8]) -> Option<u64> {
    let rest = &text[memmem::find(text, key)? + key.len()..];
    let rest = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Tail;
    use bytes::Bytes;

    fn usage(frames: &[&'static str]) -> (Option<u64>, Option<u64>) {
        let mut tail = Tail::default();
        for frame in frames {
            tail.saw(&Bytes::from_static(frame.as_bytes()));
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
