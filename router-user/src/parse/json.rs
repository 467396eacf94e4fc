//! A JSON scanner that reads bytes once and hands out slices of them; it copies and unescapes nothing.
//!
//! It owns where values begin and end, and that a text is JSON at all: strings close, escapes, literals and numbers
//! are legal, brackets match, nothing but blanks follows. It does not judge what engines judge: invalid UTF-8, lone
//! surrogates and repeated keys pass. Control bytes inside a string are refused, as RFC 8259 says and engines do;
//! so bytes below 0x20 never occur in a slice of a string. Invariant: it may refuse, it never misreads the bounds of
//! a string.

use super::BodyError;

/// Nesting of arrays and objects at most; deeper texts are refused. Engines stop near 1,000.
pub const DEPTH_MAX: u32 = 128;

/// What a value is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
    /// `"…"`
    String,
    /// A number, `true`, `false` or `null`.
    Plain,
}

/// Position in a text. Every method starts at a value, blanks before it allowed, and ends just behind it.
#[derive(Debug)]
pub struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Scanner<'a> {
    /// Starts at the beginning of `text`.
    #[must_use]
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// The kind of the next value, which stays to be read.
    ///
    /// # Errors
    /// At the end of the text. Any other byte that begins no value is a `Plain` that `skip` refuses.
    pub fn kind(&mut self) -> Result<Kind, BodyError> {
        self.blanks();
        match self.peek() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(_) => Ok(Kind::Plain),
            None => Err(self.error("the text ends where a value is due")),
        }
    }

    /// Reads an object: `member` is called behind each colon with the raw key (without quotes) and must read
    /// exactly one value.
    ///
    /// # Errors
    /// If this is no object, or not a legal one, or `member` fails.
    pub fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &'a [u8]) -> Result<(), BodyError>,
    ) -> Result<(), BodyError> {
        self.open(b'{', "an object is due")?;
        if !self.closes(b'}') {
            loop {
                self.blanks();
                let key = self.string()?;
                self.expect(b':', "a colon is due")?;
                member(self, key)?;
                if self.closes(b'}') {
                    break;
                }
                self.expect(b',', "a comma or the end of the object is due")?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads an array: `element` is called at each element and must read exactly one value.
    ///
    /// # Errors
    /// If this is no array, or not a legal one, or `element` fails.
    pub fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), BodyError>,
    ) -> Result<(), BodyError> {
        self.open(b'[', "an array is due")?;
        if !self.closes(b']') {
            loop {
                element(self)?;
                if self.closes(b']') {
                    break;
                }
                self.expect(b',', "a comma or the end of the array is due")?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads any value and returns its bytes. Not recursive; O(bytes).
    ///
    /// # Errors
    /// If the value is not legal, not complete, or nested deeper than [`DEPTH_MAX`].
    pub fn skip(&mut self) -> Result<&'a [u8], BodyError> {
        self.blanks();
        let start = self.at;
        let floor = self.depth;
        // Bit 0 is the innermost bracket: 1 for an object, 0 for an array.
        let mut objects: u128 = 0;
        loop {
            self.blanks();
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    self.open(open, "a value is due")?;
                    objects = objects << 1 | u128::from(open == b'{');
                    let close = if open == b'{' { b'}' } else { b']' };
                    if self.closes(close) {
                        self.depth -= 1;
                        objects >>= 1;
                    } else {
                        if open == b'{' {
                            self.key()?;
                        }
                        continue;
                    }
                }
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(_) => self.literal()?,
                None => return Err(self.error("the text ends where a value is due")),
            }
            // A value ended: close what ends with it, or go on behind a comma.
            loop {
                if self.depth == floor {
                    return Ok(&self.text[start..self.at]);
                }
                let in_object = objects & 1 == 1;
                if self.closes(if in_object { b'}' } else { b']' }) {
                    self.depth -= 1;
                    objects >>= 1;
                    continue;
                }
                self.expect(b',', "a comma or a closing bracket is due")?;
                if in_object {
                    self.key()?;
                }
                break;
            }
        }
    }

    /// Reads a string and returns the bytes between its quotes, as they are written.
    ///
    /// # Errors
    /// If this is no string, or it does not close, or holds a control byte or an escape that JSON does not have.
    pub fn string(&mut self) -> Result<&'a [u8], BodyError> {
        if self.peek() != Some(b'"') {
            return Err(self.error("a string is due"));
        }
        self.at += 1;
        let start = self.at;
        loop {
            self.at += plain_run(&self.text[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(&self.text[start..self.at - 1]);
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.error("a control byte stands in a string")),
                None => return Err(self.error("a string does not close")),
            }
        }
    }

    /// Checks that only blanks follow.
    ///
    /// # Errors
    /// If something else does.
    pub fn end(&mut self) -> Result<(), BodyError> {
        self.blanks();
        if self.at == self.text.len() { Ok(()) } else { Err(self.error("something follows the value")) }
    }

    fn key(&mut self) -> Result<(), BodyError> {
        self.blanks();
        self.string()?;
        self.expect(b':', "a colon is due")
    }

    fn escape(&mut self) -> Result<(), BodyError> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => match self.text.get(self.at + 2..self.at + 6) {
                Some(hex) if hex.iter().all(u8::is_ascii_hexdigit) => {
                    self.at += 6;
                    Ok(())
                }
                _ => Err(self.error("a \\u escape lacks its four hexadecimal digits")),
            },
            Some(_) => Err(self.error("an escape that JSON does not have")),
            None => Err(self.error("a string does not close")),
        }
    }

    fn number(&mut self) -> Result<(), BodyError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        // A zero stands alone: what follows `0` must be no digit, which the caller's next byte shows.
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), BodyError> {
        let run = self.text[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
        if run == 0 {
            return Err(self.error("a digit is due"));
        }
        self.at += run;
        Ok(())
    }

    fn literal(&mut self) -> Result<(), BodyError> {
        let rest = &self.text[self.at..];
        let known = [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word));
        match known {
            Some(word) => {
                self.at += word.len();
                Ok(())
            }
            None => Err(self.error("a value is due")),
        }
    }

    fn open(&mut self, bracket: u8, what: &'static str) -> Result<(), BodyError> {
        self.expect(bracket, what)?;
        if self.depth == DEPTH_MAX {
            return Err(self.error("arrays and objects are nested too deep"));
        }
        self.depth += 1;
        Ok(())
    }

    /// Whether `bracket` is next; if so it is read.
    fn closes(&mut self, bracket: u8) -> bool {
        self.blanks();
        let closes = self.peek() == Some(bracket);
        self.at += usize::from(closes);
        closes
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), BodyError> {
        if self.closes(byte) { Ok(()) } else { Err(self.error(what)) }
    }

    fn blanks(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    const fn error(&self, what: &'static str) -> BodyError {
        BodyError { what, at: self.at }
    }
}

/// Bytes of the string's body before the next quote, backslash or control byte: eight at a time.
fn plain_run(text: &[u8]) -> usize {
    let (words, tail) = text.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let stops = stops(u64::from_le_bytes(*word));
        if stops != 0 {
            return i * 8 + stops.trailing_zeros() as usize / 8;
        }
    }
    let stop = |&b: &u8| b == b'"' || b == b'\\' || b < 0x20;
    words.len() * 8 + tail.iter().position(stop).unwrap_or(tail.len())
}

/// The high bit of the lowest byte that ends a run; higher bytes may be marked wrongly, by a borrow.
const fn stops(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES << 7;
    const fn below(word: u64, limit: u8) -> u64 {
        word.wrapping_sub(ONES * limit as u64) & !word
    }
    let quote = below(word ^ (ONES * b'"' as u64), 1);
    let backslash = below(word ^ (ONES * b'\\' as u64), 1);
    (quote | backslash | below(word, 0x20)) & HIGH
}

/// Whether a raw string is `name`, however it is escaped. `name` is ASCII.
#[must_use]
pub fn is_text(raw: &[u8], name: &str) -> bool {
    if raw.contains(&b'\\') {
        // An escaped character takes up to six bytes: longer texts cannot be `name`.
        return raw.len() <= name.len() * 6 && unescape(raw) == name;
    }
    raw == name.as_bytes()
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
    let digits = raw.strip_prefix(b"\\u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
