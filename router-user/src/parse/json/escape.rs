//! Escapes in strings: whether they are legal, and the text they stand for.

use std::borrow::Cow;

use super::{BodyError, Scanner};

impl Scanner<'_> {
    /// Checks the escape at `here` and returns where it ends. A surrogate pair is one escape; half of one is legal,
    /// and noted.
    pub(super) fn escape(&mut self, here: usize) -> Result<usize, BodyError> {
        match self.text.get(here + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(here + 2),
            Some(b'u') => {
                let rest = &self.text[here..];
                let code = hex(rest);
                if code.is_none() {
                    self.at = here;
                    return Err(self.error("a \\u escape lacks its four hexadecimal digits"));
                }
                match code {
                    Some(0xd800..=0xdbff) if is_low(hex(&rest[6..])) => Ok(here + 12),
                    Some(0xd800..=0xdfff) => {
                        self.lone_surrogate = true;
                        Ok(here + 6)
                    }
                    _ => Ok(here + 6),
                }
            }
            Some(_) => {
                self.at = here;
                Err(self.error("an escape that JSON does not have"))
            }
            None => {
                self.at = here;
                Err(self.error("a string does not close"))
            }
        }
    }
}

/// The text of a raw string that [`Scanner::string`] returned. What is no Unicode becomes U+FFFD.
#[must_use]
pub fn unescape(raw: &[u8]) -> String {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|&b| b == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let (character, length) = unescape_one(&rest[at..]);
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        rest = &rest[at + length..];
    }
    out.extend_from_slice(rest);
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// The character of the escape that begins `raw`, and how many bytes it takes.
fn unescape_one(raw: &[u8]) -> (char, usize) {
    let Some(high) = hex(raw) else {
        let character = match raw.get(1) {
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(&b) => b.into(),
            None => char::REPLACEMENT_CHARACTER,
        };
        return (character, raw.len().min(2));
    };
    if let Some(character) = char::from_u32(high) {
        return (character, 6);
    }
    match hex(&raw[6..]) {
        Some(low @ 0xdc00..=0xdfff) if high < 0xdc00 => {
            let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
        }
        _ => (char::REPLACEMENT_CHARACTER, 6),
    }
}

/// The code of a `\uXXXX` at the beginning of `raw`.
fn hex(raw: &[u8]) -> Option<u32> {
    let digits = raw.strip_prefix(b"\\u")?.first_chunk::<4>()?;
    digits.iter().try_fold(0, |code, &digit| Some(code << 4 | char::from(digit).to_digit(16)?))
}

fn is_low(code: Option<u32>) -> bool {
    matches!(code, Some(0xdc00..=0xdfff))
}

/// Bytes of the longest key that anyone looks for.
const NAME_BYTES_MAX: usize = 32;

/// A raw key as text to compare with a name. Without escapes, as nearly always, it is what it was; so is one that
/// is too long to be a name however it is escaped (six bytes a character).
#[must_use]
pub fn name(raw: &[u8]) -> Cow<'_, [u8]> {
    if raw.len() <= NAME_BYTES_MAX * 6 && raw.contains(&b'\\') {
        return Cow::Owned(unescape(raw).into_bytes());
    }
    Cow::Borrowed(raw)
}
