//! Chunks of an answer, as they come (RFC 9112, 7.1). Pure.
//!
//! Invariant: where the bytes were cut on the way changes nothing; what is no chunk is an error, never data.

/// An answer's chunks are framed wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine's chunks are framed wrongly")]
pub struct BadChunks;

/// Extensions of all chunks and trailers, which nobody reads: a limit.
const UNREAD_BYTES_MAX: u32 = 32 << 10;

/// Hex digits of a chunk's size.
const DIGITS_MAX: u8 = 16;

/// What the next byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Size {
        digits: u8,
        size: u64,
    },
    /// Up to the end of the size's line.
    Extension {
        size: u64,
    },
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerEnd,
    LastLf,
    End,
}

/// Follows the chunks of one answer.
#[derive(Debug)]
pub(super) struct Chunks {
    at: At,
    unread: u32,
}

impl Chunks {
    pub(super) const START: Self = Self { at: At::Size { digits: 0, size: 0 }, unread: 0 };

    /// The last chunk and its trailers are over.
    pub(super) fn is_ended(&self) -> bool {
        self.at == At::End
    }

    /// Takes from `input` up to and with the next data, which it returns; `None` once all is taken, or the end is
    /// reached: what `input` has left then is not of this answer.
    ///
    /// # Errors
    /// The first byte that is out of place.
    pub(super) fn next<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<&'i [u8]>, BadChunks> {
        while let Some((&byte, rest)) = input.split_first() {
            match self.at {
                At::End => return Ok(None),
                At::Size { digits: 0, .. } => {
                    if let Some((size, rest)) = plain_size(input) {
                        self.at = At::Data { left: size };
                        *input = rest;
                        continue;
                    }
                    self.at = self.step(byte)?;
                }
                At::DataCr if input.starts_with(b"\r\n") => {
                    self.at = At::Size { digits: 0, size: 0 };
                    *input = &input[2..];
                    continue;
                }
                At::Data { left } => {
                    let here = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
                    let (data, rest) = input.split_at(here);
                    *input = rest;
                    let left = left - here as u64;
                    self.at = if left == 0 { At::DataCr } else { At::Data { left } };
                    return Ok(Some(data));
                }
                _ => self.at = self.step(byte)?,
            }
            *input = rest;
        }
        Ok(None)
    }

    /// One byte of framing.
    fn step(&mut self, byte: u8) -> Result<At, BadChunks> {
        Ok(match (self.at, byte) {
            (At::Size { digits, size }, _) if digits < DIGITS_MAX && byte.is_ascii_hexdigit() => {
                At::Size { digits: digits + 1, size: with_digit(size, byte).ok_or(BadChunks)? }
            }
            (At::Size { digits: 1.., size }, b'\r') => At::SizeEnd { size },
            (At::Size { digits: 1.., size }, b';' | b' ' | b'\t') => At::Extension { size },
            (At::Extension { size }, b'\r') => At::SizeEnd { size },
            (At::Extension { size }, 0x20.. | b'\t') => self.unread(At::Extension { size })?,
            (At::SizeEnd { size: 0 }, b'\n') => At::TrailerStart,
            (At::SizeEnd { size }, b'\n') => At::Data { left: size },
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size { digits: 0, size: 0 },
            (At::TrailerStart, b'\r') => At::LastLf,
            (At::TrailerStart | At::Trailer, 0x20.. | b'\t') => self.unread(At::Trailer)?,
            (At::Trailer, b'\r') => At::TrailerEnd,
            (At::TrailerEnd, b'\n') => At::TrailerStart,
            (At::LastLf, b'\n') => At::End,
            _ => return Err(BadChunks),
        })
    }

    fn unread(&mut self, at: At) -> Result<At, BadChunks> {
        self.unread += 1;
        if self.unread > UNREAD_BYTES_MAX { Err(BadChunks) } else { Ok(at) }
    }
}

/// The size of a chunk as nearly all of them begin: a few digits, a line's end, and that is all here. Not the last
/// chunk's.
fn plain_size(input: &[u8]) -> Option<(u64, &[u8])> {
    const DIGITS: usize = 6;
    let mut size = 0_u64;
    for (at, &byte) in input.iter().enumerate().take(DIGITS + 1) {
        if byte == b'\r' {
            let rest = input[at..].strip_prefix(b"\r\n").filter(|_| size > 0)?;
            return Some((size, rest));
        }
        size = with_digit(size, byte)?;
    }
    None
}

/// A size with one more hex digit, if it is one.
fn with_digit(size: u64, digit: u8) -> Option<u64> {
    Some(size << 4 | u64::from(char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BadChunks, Chunks, UNREAD_BYTES_MAX};

    /// The data, what is left after the end, and whether there was one; `text` comes in pieces.
    fn read(text: &[u8], piece: usize) -> Result<(Vec<u8>, &[u8], bool), BadChunks> {
        let (mut chunks, mut data, mut at) = (Chunks::START, Vec::new(), 0);
        while at < text.len() && !chunks.is_ended() {
            let mut input = &text[at..text.len().min(at + piece)];
            let whole = input.len();
            while let Some(found) = chunks.next(&mut input)? {
                data.extend_from_slice(found);
            }
            at += whole - input.len();
        }
        Ok((data, &text[at..], chunks.is_ended()))
    }

    #[test]
    fn chunks_are_read_to_their_end_and_no_further() {
        for (text, data, left) in [
            (&b"5\r\nhello\r\n0\r\n\r\n"[..], &b"hello"[..], &b""[..]),
            (b"5\r\nhello\r\n06 \r\n world\r\n0\r\n\r\nHTTP", b"hello world", b"HTTP"),
            (b"A;name=\"v\"\r\n0123456789\r\n000;last\r\nx-trailer: v\r\ny:\r\n\r\n!", b"0123456789", b"!"),
            (b"0\r\n\r\n", b"", b""),
        ] {
            for piece in 1..=text.len() {
                assert_eq!(read(text, piece), Ok((data.to_vec(), left, true)), "{piece}");
            }
        }
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        let extension = [&b"5;"[..], &[b'x'; UNREAD_BYTES_MAX as usize + 1]].concat();
        for text in [
            &b"\r\n"[..],
            b"x\r\n",
            b"-1\r\n",
            b"5\nhello",
            b"5\r\r",
            b"5\r\nhello!",
            b"5\r\nhello\n",
            b"5;a\nhello",
            b"10000000000000000\r\n",
            b"0\r\nx: y\n\r\n",
            b"0\r\n\n",
            &extension,
        ] {
            for piece in [1, 2, text.len()] {
                assert_eq!(read(text, piece), Err(BadChunks), "{:?}", String::from_utf8_lossy(text));
            }
        }
    }

    #[test]
    fn what_is_cut_has_not_ended() {
        let text = b"5\r\nhello\r\n0\r\nx: y\r\n\r\n";
        for len in 0..text.len() {
            let (data, left, ended) = read(&text[..len], len.max(1)).unwrap();
            assert!(!ended && left.is_empty() && b"hello".starts_with(&data), "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_chunks_in_any_pieces_are_what_was_sent(
            sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
            piece in 1..64_usize,
        ) {
            let mut text = Vec::new();
            for chunk in &sent {
                text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\nrest");
            prop_assert_eq!(read(&text, piece), Ok((sent.concat(), &b"rest"[..], true)));
        }

        #[test]
        fn any_bytes_are_read_alike_in_any_pieces(
            text in prop::collection::vec(
                prop::sample::select(&b"0123aF;\r\r\n\n x:"[..]), 0..60),
            piece in 1..16_usize,
        ) {
            let (whole, cut) = (read(&text, text.len().max(1)), read(&text, piece));
            prop_assert_eq!(whole, cut);
        }
    }
}
