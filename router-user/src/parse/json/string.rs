//! Where a string ends. Most bytes of a body lie in strings, so this is where the time goes.
//!
//! A window of up to 64 bytes becomes a bit mask of the bytes that matter (quotes, backslashes, control bytes); the
//! marks are then taken one by one, so that a text full of escapes needs no new search behind each. `memchr2` would be
//! as fast on long runs, but does not see control bytes, and starts anew behind each escape.

use super::marks::{self, LANE, WINDOW};
use super::{BodyError, Scanner};

/// What may follow a backslash, `u` apart: a look-up, for a branch each would be guessed wrongly in source code.
const SHORT: [bool; 256] = {
    let mut short = [false; 256];
    let known = *b"\"\\/bfnrt";
    let mut i = 0;
    while i < known.len() {
        short[known[i] as usize] = true;
        i += 1;
    }
    short
};

impl<'a> Scanner<'a> {
    /// Reads a string and returns the bytes between its quotes, as they are written.
    ///
    /// # Errors
    /// If this is no string, or it does not close, or holds a control byte or an escape that JSON does not have.
    pub fn string(&mut self) -> Result<&'a [u8], BodyError> {
        if self.peek() != Some(b'"') {
            return Err(self.error("a string is due"));
        }
        let start = self.at + 1;
        self.at = start;
        // Keys and roles are short: a whole window would cost them more than it saves.
        let mut window = look_short(&self.text[start..]);
        loop {
            let (mut marks, width) = window;
            let base = self.at;
            self.at += width;
            while marks != 0 {
                let here = base + marks.trailing_zeros() as usize;
                match self.text[here] {
                    b'"' => {
                        self.at = here + 1;
                        return Ok(&self.text[start..here]);
                    }
                    b'\\' => {
                        let is_short = self.text.get(here + 1).is_some_and(|&b| SHORT[usize::from(b)]);
                        let next = if is_short { here + 2 } else { self.escape(here)? };
                        self.at = self.at.max(next);
                        // Marks inside the escape are part of it; one that reaches past the window ends it.
                        marks &= u64::MAX.checked_shl((next - base) as u32).unwrap_or(0);
                    }
                    _ => {
                        self.at = here;
                        return Err(self.error("a control byte stands in a string"));
                    }
                }
            }
            if self.at >= self.text.len() {
                return Err(self.error("a string does not close"));
            }
            window = look(&self.text[self.at..]);
        }
    }
}

/// The marks of the next bytes (bit 0 is the first), and how many bytes they are of: at least one if there is one.
fn look(text: &[u8]) -> (u64, usize) {
    text.first_chunk().map_or_else(|| look_short(text), |window| (marks::of_window(window), WINDOW))
}

/// The same of 16 bytes, or fewer at the end of the text.
fn look_short(text: &[u8]) -> (u64, usize) {
    if let Some(lane) = text.first_chunk() {
        return (marks::of_lane(lane).into(), LANE);
    }
    let mut lane = [b' '; LANE];
    lane[..text.len()].copy_from_slice(text);
    (marks::of_lane(&lane).into(), text.len())
}

#[cfg(test)]
mod tests {
    use super::look;

    #[test]
    fn a_window_is_of_the_bytes_that_are_there() {
        for length in 0..200 {
            let text = vec![b'"'; length];
            let (mask, width) = look(&text);
            assert!(width <= length && (width > 0 || length == 0), "{width} of {length}");
            assert_eq!(
                mask.count_ones() as usize,
                width,
                "every byte of the window is marked, none behind it"
            );
        }
    }
}
