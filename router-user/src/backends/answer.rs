//! Where the body of an answer goes: a bounded text in memory, or a metrics text read as it comes, packed or not.

use std::io::{self, Write};

use bytes::{Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use hyper::HeaderMap;
use hyper::header::CONTENT_ENCODING;

use super::metrics_text::{Reader, TooLarge};
use super::probe::AskError;

/// Takes the body of an answer `200`, piece by piece.
pub(super) trait Sink: Send {
    /// A body begins; what was taken before belongs to an answer that broke off.
    fn begin(&mut self, headers: &HeaderMap) -> Result<(), AskError>;
    /// A piece of it.
    fn take(&mut self, piece: &[u8]) -> Result<(), AskError>;
    /// It is whole.
    fn end(&mut self) -> Result<(), AskError>;
}

/// Keeps a body of so many bytes at most.
pub(super) struct Whole {
    body: BytesMut,
    bytes_max: usize,
}

impl Whole {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { body: BytesMut::new(), bytes_max }
    }

    pub(super) fn into_bytes(self) -> Bytes {
        self.body.freeze()
    }
}

impl Sink for Whole {
    fn begin(&mut self, _headers: &HeaderMap) -> Result<(), AskError> {
        self.body.clear();
        Ok(())
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), AskError> {
        if self.body.len() + piece.len() > self.bytes_max {
            return Err(AskError::TooLarge);
        }
        self.body.extend_from_slice(piece);
        Ok(())
    }

    fn end(&mut self) -> Result<(), AskError> {
        Ok(())
    }
}

/// Reads a metrics text. Memory: a line of it, and the window of the packing.
pub(super) struct Text {
    with_names: bool,
    body: Body,
}

enum Body {
    Plain(Box<Reader>),
    Packed(Box<MultiGzDecoder<Unpacked>>),
}

/// What comes out of a packed text.
struct Unpacked(Reader);

impl Write for Unpacked {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.0.feed(piece).map_err(io::Error::other)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Text {
    /// `with_names` also keeps names of it.
    pub(super) fn new(with_names: bool) -> Self {
        Self { with_names, body: Body::Plain(Box::new(Reader::new(with_names))) }
    }

    /// The reader, once the body is whole.
    pub(super) fn into_reader(self) -> Reader {
        match self.body {
            Body::Plain(reader) => *reader,
            // `end` has taken it out.
            Body::Packed(_) => Reader::default(),
        }
    }
}

impl Sink for Text {
    fn begin(&mut self, headers: &HeaderMap) -> Result<(), AskError> {
        let reader = Reader::new(self.with_names);
        self.body = match headers.get(CONTENT_ENCODING).map(|v| v.as_bytes().to_ascii_lowercase()) {
            None => Body::Plain(Box::new(reader)),
            Some(name) if name == b"identity" => Body::Plain(Box::new(reader)),
            Some(name) if name == b"gzip" || name == b"x-gzip" => {
                Body::Packed(Box::new(MultiGzDecoder::new(Unpacked(reader))))
            }
            Some(_) => return Err(AskError::Unreadable("a content encoding other than gzip")),
        };
        Ok(())
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), AskError> {
        match &mut self.body {
            Body::Plain(reader) => reader.feed(piece).map_err(|TooLarge| AskError::TooLarge),
            Body::Packed(packed) => packed.write_all(piece).map_err(|e| unpacking(&e)),
        }
    }

    fn end(&mut self) -> Result<(), AskError> {
        let body = std::mem::replace(&mut self.body, Body::Plain(Box::default()));
        self.body = match body {
            plain @ Body::Plain(_) => plain,
            Body::Packed(packed) => Body::Plain(Box::new(packed.finish().map_err(|e| unpacking(&e))?.0)),
        };
        Ok(())
    }
}

fn unpacking(error: &io::Error) -> AskError {
    match error.get_ref() {
        Some(inner) if inner.is::<TooLarge>() => AskError::TooLarge,
        _ => AskError::Unreadable("gzip that is broken"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use hyper::HeaderMap;
    use hyper::header::{CONTENT_ENCODING, HeaderValue};
    use router_policy::Nanos;

    use super::{AskError, Sink, Text};
    use crate::backends::metrics_text::TEXT_BYTES_MAX;

    const TEXT: &[u8] = b"vllm:num_requests_running 4\nvllm:num_requests_waiting 6\n";

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn read(encoding: Option<&'static str>, body: &[u8], piece: usize) -> Result<Option<u32>, AskError> {
        let mut headers = HeaderMap::new();
        if let Some(name) = encoding {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
        }
        let mut text = Text::new(false);
        text.begin(&headers)?;
        for piece in body.chunks(piece) {
            text.take(piece)?;
        }
        text.end()?;
        Ok(text.into_reader().finish(Nanos(1), None).report.running.value())
    }

    #[test]
    fn a_packed_text_says_the_same_wherever_it_is_cut() {
        for piece in [1, 7, 1 << 20] {
            assert_eq!(read(None, TEXT, piece).unwrap(), Some(4));
            assert_eq!(read(Some("identity"), TEXT, piece).unwrap(), Some(4));
            assert_eq!(read(Some("GZIP"), &packed(TEXT), piece).unwrap(), Some(4));
            let twice = [packed(&TEXT[..30]), packed(&TEXT[30..])].concat();
            assert_eq!(read(Some("gzip"), &twice, piece).unwrap(), Some(4), "two members are one text");
        }
    }

    #[test]
    fn what_cannot_be_unpacked_is_an_error_and_no_text() {
        let whole = packed(TEXT);
        let mut spoilt = whole.clone();
        spoilt[whole.len() - 5] ^= 1;
        for (encoding, body) in [
            ("gzip", TEXT),
            ("gzip", &whole[..whole.len() - 9]),
            ("gzip", &spoilt),
            ("br", TEXT),
            ("gzip, gzip", &whole),
        ] {
            assert!(matches!(read(Some(encoding), body, 16), Err(AskError::Unreadable(_))), "{encoding}");
        }
    }

    #[test]
    fn a_text_that_unpacks_to_more_than_is_read_is_given_up() {
        let bomb = packed(&b"x 1\n".repeat(TEXT_BYTES_MAX / 4 + 1));
        assert!(bomb.len() < TEXT_BYTES_MAX / 50, "{}", bomb.len());
        assert!(matches!(read(Some("gzip"), &bomb, 1 << 20), Err(AskError::TooLarge)));
        assert!(matches!(read(None, &vec![b'x'; TEXT_BYTES_MAX + 1], 1 << 20), Err(AskError::TooLarge)));
    }
}
