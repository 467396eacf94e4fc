//! A JSON scanner that reads bytes once and hands out slices of them; it copies and unescapes nothing.
//!
//! It owns where values begin and end, and that a text is JSON at all: strings close ([`string`]), escapes
//! ([`escape`]), literals and numbers ([`plain`]) are legal, brackets match, nothing but blanks follows. It does not
//! judge what engines judge: invalid UTF-8, lone surrogates (which it reports) and repeated keys pass. Control bytes
//! inside a string are refused, as RFC 8259 says and engines do; so bytes below 0x20 never occur in a slice of a
//! string. Invariant: it may refuse, it never misreads the bounds of a string.

use super::BodyError;

pub mod escape;
mod marks;
mod plain;
mod string;

pub use escape::{name, unescape};

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
    lone_surrogate: bool,
}

impl<'a> Scanner<'a> {
    /// Starts at the beginning of `text`.
    #[must_use]
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, depth: 0, lone_surrogate: false }
    }

    /// Whether a string so far held half a surrogate pair as an escape (`\ud83e` alone): legal JSON, but no Unicode,
    /// which engines refuse.
    #[must_use]
    pub const fn has_lone_surrogate(&self) -> bool {
        self.lone_surrogate
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
                let key = self.key()?;
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

    /// Reads one value by `read` and returns its bytes beside what `read` returned.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn spanned<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, BodyError>,
    ) -> Result<(T, &'a [u8]), BodyError> {
        self.blanks();
        let start = self.at;
        let value = read(self)?;
        Ok((value, &self.text[start..self.at]))
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
            match self.kind()? {
                kind @ (Kind::Object | Kind::Array) => {
                    let in_object = kind == Kind::Object;
                    let (open, close) = if in_object { (b'{', b'}') } else { (b'[', b']') };
                    self.open(open, "a value is due")?;
                    objects = objects << 1 | u128::from(in_object);
                    if self.closes(close) {
                        self.depth -= 1;
                        objects >>= 1;
                    } else {
                        if in_object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                Kind::String => drop(self.string()?),
                Kind::Plain => self.plain()?,
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

    /// Checks that only blanks follow.
    ///
    /// # Errors
    /// If something else does.
    pub fn end(&mut self) -> Result<(), BodyError> {
        self.blanks();
        if self.at == self.text.len() { Ok(()) } else { Err(self.error("something follows the value")) }
    }

    /// A key and its colon.
    fn key(&mut self) -> Result<&'a [u8], BodyError> {
        self.blanks();
        let key = self.string()?;
        self.expect(b':', "a colon is due")?;
        Ok(key)
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

#[cfg(test)]
mod tests;
