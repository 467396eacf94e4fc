//! What a segment of an HTTP/1.1 connection says of the request on it: its first bytes, a head, its last bytes.
//!
//! For the BPF programs, which see segments and not a stream: everything here reads bytes that were copied from one
//! segment, in a bounded number of steps, and keeps nothing. It does not validate; whatever it cannot read is
//! [`Sent::Other`] or [`Head::UNREADABLE`]. Invariant: no index can leave its array, whatever the bytes are.

use memory::{get, put};

/// The bytes of a response that are searched for the end of its head. A mask of them is a bound the verifier sees.
pub const HEAD_BYTES: usize = 511;

/// Zeros before the bytes of [`HeadBuffer`], so that looking back from the first needs no test.
pub const HEAD_PAD: usize = 16;

/// Room for the start of a response, and what was found in it.
///
/// What is found goes through memory, not through variables: the verifier follows each value a variable may have on
/// every way through the loop, and gives up; of memory in a map it knows nothing, so the ways join again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadBuffer {
    /// Zeros, then the bytes, then whatever was there before.
    pub bytes: Bytes,
    status: u32,
    is_chunked: u32,
    length_at: u32,
    len: u32,
}

type Bytes = [u8; HEAD_PAD + HEAD_BYTES + 17];

impl HeadBuffer {
    /// Nothing.
    pub const ZERO: Self = Self { bytes: [0; _], status: 0, is_chunked: 0, length_at: 0, len: 0 };
}

/// What a segment to the backend begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// A request.
    Request,
    /// A request whose answer has no body, whatever its head says.
    HeadRequest,
    /// A request's body, or a protocol whose requests cannot be told: TLS, or anything else.
    Other,
    /// The preface of HTTP/2.
    Http2,
}

/// What the first eight bytes of a segment, as one big-endian number, are the beginning of.
#[must_use]
#[inline(always)]
pub const fn sent(first: u64) -> Sent {
    if first == u64::from_be_bytes(*b"PRI * HT") {
        return Sent::Http2;
    }
    let four = ((first >> 32) as u32).to_be_bytes();
    match &four {
        b"HEAD" => Sent::HeadRequest,
        b"POST" | b"GET " | b"PUT " | b"DELE" | b"PATC" | b"OPTI" => Sent::Request,
        _ => Sent::Other,
    }
}

/// What the start of a response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The status; 0 if this is no HTTP/1 response. Of several heads (`100 Continue`), the last.
    pub status: u32,
    /// The body comes in chunks.
    pub is_chunked: bool,
    /// Its length, or [`Head::NO_LENGTH`].
    pub length: u64,
    /// Bytes of the head; 0 if its end is not among the bytes that were searched.
    pub len: u32,
}

impl Head {
    /// No length was told.
    pub const NO_LENGTH: u64 = u64::MAX;
    /// No response of HTTP/1.
    pub const UNREADABLE: Self = Self { status: 0, is_chunked: false, length: Self::NO_LENGTH, len: 0 };

    /// Whether another head follows this one, in this segment or a later one.
    #[must_use]
    #[inline(always)]
    pub const fn is_interim(&self) -> bool {
        is_interim(self.status)
    }

    /// Whether no body follows, whatever the head says of one.
    #[must_use]
    #[inline(always)]
    pub const fn is_without_body(&self) -> bool {
        self.status == 204 || self.status == 304
    }
}

/// Reads the start of a response: `len` bytes from [`HEAD_PAD`] on.
#[must_use]
#[inline(always)]
pub fn head(buffer: &mut HeadBuffer, len: usize) -> Head {
    let HeadBuffer { bytes, status, is_chunked, length_at, len: end } = buffer;
    put(status, status_at(bytes, 0, len));
    for found in [&mut *is_chunked, &mut *length_at, &mut *end] {
        put(found, 0);
    }
    let mut at = 0;
    while at < HEAD_BYTES {
        if at >= len {
            break;
        }
        let byte = bytes[HEAD_PAD + at];
        if byte == b':' {
            // Few colons follow one of these letters; only there the whole name is compared.
            let before = bytes[HEAD_PAD + at - 1] | 0x20;
            if before == b'h' && is_name(bytes, at, *b"\ncontent", *b"-length:") {
                put(length_at, at as u32 + 1);
            } else if before == b'g' && is_name(bytes, at, *b"ansfer-e", *b"ncoding:") {
                put(is_chunked, 1);
            }
        } else if byte == b'\n' && bytes[HEAD_PAD + at - 1] == b'\r' && bytes[HEAD_PAD + at - 2] == b'\n' {
            let next = if is_interim(get(status)) { status_at(bytes, at + 1, len) } else { 0 };
            if next == 0 {
                put(end, at as u32 + 1);
                break;
            }
            put(status, next);
            put(is_chunked, 0);
            put(length_at, 0);
        }
        at += 1;
    }
    let length = match get(length_at) {
        0 => Head::NO_LENGTH,
        at => number(bytes, at as usize & HEAD_BYTES),
    };
    match get(status) {
        0 => Head::UNREADABLE,
        status => Head { status, is_chunked: get(is_chunked) != 0, length, len: get(end) },
    }
}

/// Whether a chunked body ends with this segment of `len` bytes, given the last eight bytes up to its end.
///
/// The end is an empty last chunk. One that follows a line break counts wherever segments were cut; one that is a
/// segment of its own counts also when the segment before it was lost and comes later.
#[must_use]
#[inline(always)]
pub const fn ends_chunked(tail: u64, len: u32) -> bool {
    const LAST: u64 = u64::from_be_bytes(*b"\0\r\n0\r\n\r\n");
    let seen: u64 = match len {
        5 => 0x00ff_ffff_ffff,
        6 => 0xffff_ffff_ffff,
        _ => 0x00ff_ffff_ffff_ffff,
    };
    tail & seen == LAST & seen
}

/// The last eight bytes after a segment shorter than that: those before it, and its `len` (1 to 7) in front of
/// `bytes`.
#[must_use]
#[inline(always)]
pub const fn push_tail(tail: u64, bytes: u64, len: u32) -> u64 {
    let bits = 8 * (len & 7);
    if bits == 0 { bytes } else { tail << bits | bytes >> (64 - bits) }
}

#[inline(always)]
const fn is_interim(status: u32) -> bool {
    status >= 100 && status < 200 && status != 101
}

/// The status of a status line that begins at `at`; 0 if there is none.
#[inline(always)]
fn status_at(bytes: &Bytes, at: usize, len: usize) -> u32 {
    let http = word(bytes, at + 6) & 0x00ff_ffff_ffff_ffff;
    if at + 12 > len || http != u64::from_be_bytes(*b"\0HTTP/1.") {
        return 0;
    }
    let digit = |at: usize| u32::from(bytes[HEAD_PAD + at]).wrapping_sub(u32::from(b'0'));
    let (a, b, c) = (digit(at + 9), digit(at + 10), digit(at + 11));
    if a > 9 || b > 9 || c > 9 { 0 } else { a * 100 + b * 10 + c }
}

/// Whether the sixteen bytes up to `at` are these, whatever the case of letters.
#[inline(always)]
fn is_name(bytes: &Bytes, at: usize, first: [u8; 8], last: [u8; 8]) -> bool {
    const LOWER: u64 = 0x2020_2020_2020_2020;
    word(bytes, at) | LOWER == u64::from_be_bytes(last) | LOWER
        && word_before(bytes, at) | LOWER == u64::from_be_bytes(first) | LOWER
}

/// The eight bytes up to and with `at`.
#[inline(always)]
fn word(bytes: &Bytes, at: usize) -> u64 {
    let mut word = 0;
    let mut back = 0;
    while back < 8 {
        word = word << 8 | u64::from(bytes[HEAD_PAD - 7 + at + back]);
        back += 1;
    }
    word
}

/// The eight bytes before those of [`word`].
#[inline(always)]
fn word_before(bytes: &Bytes, at: usize) -> u64 {
    let mut word = 0;
    let mut back = 0;
    while back < 8 {
        word = word << 8 | u64::from(bytes[HEAD_PAD - 15 + at + back]);
        back += 1;
    }
    word
}

/// The decimal number at `at`, after spaces.
#[inline(always)]
fn number(bytes: &Bytes, at: usize) -> u64 {
    const DIGITS: usize = 14;
    let mut number = Head::NO_LENGTH;
    let mut n = 0;
    while n < DIGITS {
        let byte = bytes[HEAD_PAD + at + n];
        if byte.is_ascii_digit() {
            let so_far = if number == Head::NO_LENGTH { 0 } else { number };
            number = so_far * 10 + u64::from(byte - b'0');
        } else if byte != b' ' || number != Head::NO_LENGTH {
            break;
        }
        n += 1;
    }
    number
}

#[expect(unsafe_code, reason = "keeps the compiler from turning memory into variables, see `HeadBuffer`")]
mod memory {
    #[inline(always)]
    pub(super) fn get(from: &u32) -> u32 {
        // SAFETY: a reference is valid for reads.
        unsafe { core::ptr::read_volatile(from) }
    }

    #[inline(always)]
    pub(super) fn put(to: &mut u32, value: u32) {
        // SAFETY: a reference is valid for writes.
        unsafe { core::ptr::write_volatile(to, value) };
    }
}

#[cfg(test)]
mod tests {
    use super::{HEAD_BYTES, HEAD_PAD, Head, HeadBuffer, Sent, ends_chunked, head, push_tail, sent};

    fn read(text: &str) -> Head {
        // What an earlier segment left there.
        let mut buffer = HeadBuffer { status: 200, is_chunked: 1, length_at: 20, len: 9, ..HeadBuffer::ZERO };
        buffer.bytes[HEAD_PAD..].fill(b'7');
        let len = text.len().min(HEAD_BYTES);
        buffer.bytes[HEAD_PAD..HEAD_PAD + len].copy_from_slice(&text.as_bytes()[..len]);
        head(&mut buffer, len)
    }

    fn long(name_bytes: usize) -> Head {
        let padding = "x".repeat(name_bytes);
        read(&["HTTP/1.1 200 OK\r\nx: ", &padding, "\r\ntransfer-encoding: chunked\r\n\r\n"].concat())
    }

    #[test]
    fn a_request_is_told_by_its_method() {
        let told = |text: &[u8; 8]| sent(u64::from_be_bytes(*text));
        for text in [b"POST /v1", b"GET /hea", b"PUT /a H", b"DELETE /", b"PATCH /a", b"OPTIONS "] {
            assert_eq!(told(text), Sent::Request);
        }
        assert_eq!(told(b"HEAD / H"), Sent::HeadRequest);
        assert_eq!(told(b"PRI * HT"), Sent::Http2);
        for text in [b"{\"model\"", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"post /v1", b"\0\0\0\0\0\0\0\0"] {
            assert_eq!(told(text), Sent::Other);
        }
    }

    #[test]
    fn a_head_tells_how_its_body_ends() {
        let chunked = read("HTTP/1.1 200 OK\r\nserver: u\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n");
        assert_eq!((chunked.status, chunked.is_chunked, chunked.length), (200, true, Head::NO_LENGTH));
        assert_eq!(chunked.len, 58);
        let sized = read("HTTP/1.1 404 Not Found\r\nCONTENT-LENGTH:  12 \r\ndate: x\r\n\r\n{");
        assert_eq!((sized.status, sized.is_chunked, sized.length), (404, false, 12));
        let neither = read("HTTP/1.0 200 OK\r\nx-content-length: 7\r\nx: transfer-encoding\r\n\r\n");
        assert_eq!((neither.status, neither.is_chunked, neither.length), (200, false, Head::NO_LENGTH));
        assert_ne!(neither.len, 0);
        assert_eq!(read("HTTP/1.1 200 OK\r\ncontent-length: none\r\n\r\n").length, Head::NO_LENGTH);
    }

    #[test]
    fn an_interim_head_stands_for_itself_or_gives_way_to_the_next() {
        let alone = read("HTTP/1.1 100 Continue\r\n\r\n");
        assert!(alone.is_interim() && alone.len == 25);
        let both =
            read("HTTP/1.1 100 Continue\r\nlength: 1\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc");
        assert_eq!((both.status, both.length), (200, 3));
        let upgrade =
            read("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(upgrade.status, 101);
    }

    #[test]
    fn a_head_longer_than_what_is_searched_has_no_end() {
        let framing = "transfer-encoding: chunked\r\n\r\n".len();
        let fits = HEAD_BYTES - "HTTP/1.1 200 OK\r\nx: \r\n".len() - framing;
        assert_eq!((long(fits).len, long(fits).is_chunked), (HEAD_BYTES as u32, true));
        assert_eq!((long(fits + 1).len, long(fits + 1).is_chunked), (0, true), "the framing was seen");
        assert_eq!((long(2 * fits).len, long(2 * fits).is_chunked), (0, false));
        assert_eq!(read("HTTP/1.1 200 OK\r\ncontent-le").len, 0);
    }

    #[test]
    fn what_is_no_response_is_unreadable() {
        for text in [
            "",
            "H",
            "HTTP/1.1 20",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "\0\0\0\x04\x08\0\0\0\0\0\0\0",
        ] {
            assert_eq!(read(text), Head::UNREADABLE, "{text:?}");
        }
        read(&":".repeat(HEAD_BYTES));
        read(&["HTTP/1.1 200 ", &"h:".repeat(HEAD_BYTES)].concat());
        read(&["HTTP/1.1 100 ", &"\r\n\r\n".repeat(HEAD_BYTES)].concat());
    }

    /// Whether any prefix of the segments ends the body, and after how many of them.
    fn end(segments: &[&[u8]]) -> Option<usize> {
        let mut tail = 0;
        segments.iter().position(|segment| {
            let mut bytes = [0; 8];
            let len = segment.len().min(8);
            bytes[..len].copy_from_slice(&segment[segment.len() - len..]);
            let word = u64::from_be_bytes(bytes);
            tail = if len == 8 { word } else { push_tail(tail, word, len as u32) };
            ends_chunked(tail, segment.len() as u32)
        })
    }

    #[test]
    fn a_chunked_body_ends_with_its_last_chunk_however_it_is_cut() {
        assert_eq!(end(&[b"5\r\nhello\r\n0\r\n\r\n"]), Some(0), "with the last event");
        assert_eq!(end(&[b"5\r\nhello\r\n", b"0\r\n\r\n"]), Some(1), "alone");
        assert_eq!(end(&[b"5\r\nhello\r\n", b"0\r\n", b"\r\n"]), Some(2), "cut in two");
        assert_eq!(end(&[b"5\r\nhello", b"\r\n0\r\n\r\n"]), Some(1));
        assert_eq!(end(&[b"5\r\nhello\r", b"\n0\r\n\r\n"]), Some(1));
        assert_eq!(end(&[b"never seen", b"0\r\n\r\n"]), Some(1), "what was before it was lost");
    }

    #[test]
    fn a_chunked_body_goes_on_where_it_only_looks_like_an_end() {
        assert_eq!(end(&[b"a\r\nline 10\r\n\r\n"]), None, "a chunk that ends in a line break");
        assert_eq!(end(&[b"10\r\n", b"\r\n\r\n"]), None);
        assert_eq!(end(&[b"\r\n", b"\r\n"]), None);
        assert_eq!(end(&[b"5\r\nhello\r\n0\r\nserver-timing: x\r\n\r\n"]), None, "trailers are not read");
    }
}
