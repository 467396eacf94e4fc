//! Heads of answers: from bytes to what is passed on, and how the body after it is framed (RFC 9112, 6.3). Pure.
//!
//! Invariant: an answer whose end could be understood in two ways is an error.

use std::mem::MaybeUninit;

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};

use super::chunks::Chunks;

/// Fields of a head.
const FIELDS_MAX: usize = 256;

/// Bytes of a head.
pub(super) const HEAD_BYTES_MAX: usize = 256 << 10;

/// Why a head is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    /// Not HTTP.
    #[error("the engine's answer is no HTTP: {0}")]
    Syntax(httparse::Error),
    /// Longer than allowed.
    #[error("the head of the engine's answer is over {HEAD_BYTES_MAX} bytes")]
    TooLarge,
    /// A length that is no number, or two that differ.
    #[error("the engine's answer has no clear length")]
    Length,
    /// A coding that was not asked for.
    #[error("the engine's answer is in an unknown transfer coding")]
    Coding,
}

/// How a body is framed.
#[derive(Debug)]
pub(super) enum Framing {
    /// So many bytes are to come.
    Sized(u64),
    /// In chunks.
    Chunked(Chunks),
    /// All until the engine closes.
    ToClose,
}

/// A head.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) framing: Framing,
    /// The engine means to keep the connection open.
    pub(super) keeps: bool,
}

/// Reads a head and its length; `None` if it goes on. `method` is the request's. Copies the head once.
///
/// # Errors
/// [`BadHead`].
pub(super) fn parse(bytes: &[u8], method: &Method) -> Result<Option<(Head, usize)>, BadHead> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut answer = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut answer, bytes, &mut fields);
    let len = match parsed.map_err(BadHead::Syntax)? {
        httparse::Status::Complete(len) => len,
        httparse::Status::Partial if bytes.len() > HEAD_BYTES_MAX => return Err(BadHead::TooLarge),
        httparse::Status::Partial => return Ok(None),
    };
    let status = StatusCode::from_u16(answer.code.unwrap_or_default());
    let status = status.map_err(|_| BadHead::Syntax(httparse::Error::Status))?;
    let is_1_0 = answer.version == Some(0);
    let whole = Bytes::copy_from_slice(&bytes[..len]);
    let mut headers = HeaderMap::with_capacity(answer.headers.len());
    let mut says = Says::default();
    for field in &*answer.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes())
            .map_err(|_| BadHead::Syntax(httparse::Error::HeaderName))?;
        if says.hears(&name, field.value)? {
            continue;
        }
        let at = field.value.as_ptr().addr() - bytes.as_ptr().addr();
        let value = HeaderValue::from_maybe_shared(whole.slice(at..at + field.value.len()))
            .map_err(|_| BadHead::Syntax(httparse::Error::HeaderValue))?;
        headers.append(name, value);
    }
    let keeps = if is_1_0 { says.keep } else { !says.close };
    let framing = says.framing(status, method)?;
    if matches!(framing, Framing::Chunked(_)) {
        // It overrides a length, which must not reach the client.
        headers.remove(header::CONTENT_LENGTH);
    }
    Ok(Some((Head { status, headers, framing, keeps }, len)))
}

/// What the headers say of the body's end and the connection's.
#[derive(Debug, Default)]
struct Says {
    length: Option<u64>,
    coding: Option<Coding>,
    keep: bool,
    close: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Chunked,
    Identity,
    /// Another, or more than one.
    Unknown,
}

impl Says {
    /// Takes one header; true if it was said before and is not to be said twice.
    fn hears(&mut self, name: &HeaderName, value: &[u8]) -> Result<bool, BadHead> {
        if name == header::CONTENT_LENGTH {
            let length = number(value).ok_or(BadHead::Length)?;
            return match self.length.replace(length) {
                Some(before) if before != length => Err(BadHead::Length),
                before => Ok(before.is_some()),
            };
        }
        if name == header::TRANSFER_ENCODING {
            let one = match value {
                _ if self.coding.is_some() => Coding::Unknown,
                one if one.eq_ignore_ascii_case(b"chunked") => Coding::Chunked,
                one if one.eq_ignore_ascii_case(b"identity") => Coding::Identity,
                _ => Coding::Unknown,
            };
            self.coding = Some(one);
        } else if name == header::CONNECTION {
            let mut tokens = value.split(|&b| b == b',').map(<[u8]>::trim_ascii);
            self.keep |= tokens.clone().any(|token| token.eq_ignore_ascii_case(b"keep-alive"));
            self.close |= tokens.any(|token| token.eq_ignore_ascii_case(b"close"));
        }
        Ok(false)
    }

    fn framing(&self, status: StatusCode, method: &Method) -> Result<Framing, BadHead> {
        let has_none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if method == Method::HEAD || has_none || status.is_informational() {
            return Ok(Framing::Sized(0));
        }
        match (self.coding, self.length) {
            (None, length) => Ok(length.map_or(Framing::ToClose, Framing::Sized)),
            (Some(Coding::Chunked), _) => Ok(Framing::Chunked(Chunks::START)),
            (Some(Coding::Identity), None) => Ok(Framing::ToClose),
            _ => Err(BadHead::Coding),
        }
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_plain)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::{BadHead, Framing, HEAD_BYTES_MAX, Head, parse};

    fn head(text: &str) -> Result<Option<(Head, usize)>, BadHead> {
        parse(text.as_bytes(), &Method::POST)
    }

    /// Framing as a word, and whether the connection is kept.
    fn read(lines: &str, method: &Method) -> Result<(String, bool), BadHead> {
        let text = format!("HTTP/1.1 {lines}\r\n\r\nbody");
        let (head, len) = parse(text.as_bytes(), method)?.expect("it is whole");
        assert_eq!(&text[len..], "body");
        let framing = match head.framing {
            Framing::Sized(length) => length.to_string(),
            Framing::Chunked(_) => {
                assert!(!head.headers.contains_key("content-length"));
                "chunked".to_owned()
            }
            Framing::ToClose => "close".to_owned(),
        };
        Ok((framing, head.keeps))
    }

    #[test]
    fn the_body_is_framed_as_the_head_says() {
        for (lines, want, keeps) in [
            ("200 OK\r\ncontent-length: 12", "12", true),
            ("200 OK\r\nContent-Length: 12\r\ncontent-length: 12\r\nConnection: x, Close", "12", false),
            ("200 OK\r\nTransfer-Encoding: Chunked\r\ncontent-length: 3", "chunked", true),
            ("200 OK\r\ntransfer-encoding: identity", "close", true),
            ("200 OK", "close", true),
            ("204 No Content\r\ncontent-length: 12", "0", true),
            ("304 Not Modified\r\ntransfer-encoding: chunked", "0", true),
            ("100 Continue", "0", true),
            ("200", "close", true),
        ] {
            assert_eq!(read(lines, &Method::POST), Ok((want.to_owned(), keeps)), "{lines}");
        }
        assert_eq!(read("200 OK\r\ncontent-length: 12", &Method::HEAD), Ok(("0".to_owned(), true)));
    }

    #[test]
    fn an_unclear_end_is_an_error() {
        for (lines, want) in [
            ("200 OK\r\ncontent-length: 12\r\ncontent-length: 13", BadHead::Length),
            ("200 OK\r\ncontent-length: 12\r\ncontent-length: 12\r\ncontent-length: 13", BadHead::Length),
            ("200 OK\r\ncontent-length: 12, 12", BadHead::Length),
            ("200 OK\r\ncontent-length: +12", BadHead::Length),
            ("200 OK\r\ncontent-length: ", BadHead::Length),
            ("200 OK\r\ncontent-length: 99999999999999999999", BadHead::Length),
            ("200 OK\r\ntransfer-encoding: gzip, chunked", BadHead::Coding),
            ("200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked", BadHead::Coding),
        ] {
            assert_eq!(read(lines, &Method::POST).unwrap_err(), want, "{lines}");
        }
    }

    #[test]
    fn an_engine_that_speaks_http_1_0_closes_unless_it_says_otherwise() {
        for (lines, want) in [("", false), ("Connection: Keep-Alive\r\n", true)] {
            let (head, _) = head(&format!("HTTP/1.0 200 OK\r\n{lines}\r\n")).unwrap().unwrap();
            assert_eq!(head.keeps, want);
        }
    }

    #[test]
    fn headers_are_passed_on_byte_for_byte() {
        let text = b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nset-cookie: b\xe9 c\r\nX-Empty:\r\n\r\n";
        let (head, len) = parse(text, &Method::GET).unwrap().unwrap();
        assert_eq!(len, text.len());
        let cookies: Vec<_> = head.headers.get_all("set-cookie").iter().map(|v| v.as_bytes()).collect();
        assert_eq!(cookies, [&b"a"[..], b"b\xe9 c"]);
        assert_eq!(head.headers["x-empty"], "");
    }

    #[test]
    fn a_head_that_goes_on_is_waited_for_within_its_limit() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n";
        assert!((0..text.len()).all(|len| head(&text[..len]).unwrap().is_none()));
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(head(&endless).unwrap_err(), BadHead::TooLarge);
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(257));
        assert!(matches!(head(&many).unwrap_err(), BadHead::Syntax(httparse::Error::TooManyHeaders)));
        assert!(matches!(head("SSH-2.0-x\r\n").unwrap_err(), BadHead::Syntax(_)));
    }
}
