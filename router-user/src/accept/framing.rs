//! Whether a client's bytes are framed so that every recipient cuts them into the same messages. Pure.
//!
//! hyper reads leniently what RFC 9112 lets it: a line that ends in a bare LF, `Content-Length` beside
//! `Transfer-Encoding`, the same length twice. Each is harmless here, since a request leaves with framing of our own,
//! but each is also how requests are smuggled past one proxy of a chain; such a client gets 400. Costs one search
//! for line ends over heads; bodies are skipped, not read. Invariant: it cuts messages exactly where hyper does.

/// What was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offence {
    /// A line that ends in LF without CR.
    BareLf,
    /// A header line that goes on in the next (obs-fold).
    Fold,
    /// A header without a name, or with a blank between name and colon.
    Name,
    /// A `Content-Length` that is no plain number, or that does not fit.
    Length,
    /// A second `Content-Length`, even an equal one.
    TwoLengths,
    /// `Content-Length` and `Transfer-Encoding`.
    LengthAndEncoding,
    /// A `Transfer-Encoding` other than one `chunked`.
    Encoding,
    /// A chunk that is not where the last one ended, or whose size is no hex number.
    Chunk,
}

/// Where it was wrong: the bytes before `at` are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// Index into the bytes given.
    pub(super) at: usize,
    /// Why.
    pub(super) offence: Offence,
}

/// What of a line is looked at, and kept if it comes in pieces: enough for `content-length` or `transfer-encoding` and its value.
const LINE_KEPT_BYTES: usize = 96;

/// The most hex digits of a chunk's size; hyper takes no more either.
const CHUNK_DIGITS_MAX: usize = 16;

/// Where in a message the next byte lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// In the line of a request, or in empty lines before it.
    Request,
    Header,
    ChunkSize,
    /// So many bytes of a body, then another chunk or another request.
    Data {
        left: u64,
        is_chunk: bool,
    },
    ChunkEnd,
    Trailer,
}

/// Follows what one client sends.
#[derive(Debug)]
pub(super) struct Framing {
    pub(super) at: At,
    length: Option<u64>,
    is_chunked: bool,
    line: Line,
}

/// The beginning of a line that has not ended.
#[derive(Debug)]
struct Line {
    kept: [u8; LINE_KEPT_BYTES],
    len: usize,
    last: u8,
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        let kept = self.kept.len().min(self.len);
        let room = &mut self.kept[kept..];
        let n = room.len().min(bytes.len());
        room[..n].copy_from_slice(&bytes[..n]);
        self.len = self.len.saturating_add(bytes.len());
        self.last = bytes.last().copied().unwrap_or(self.last);
    }
}

impl Default for Framing {
    fn default() -> Self {
        let line = Line { kept: [0; LINE_KEPT_BYTES], len: 0, last: 0 };
        Self { at: At::Request, length: None, is_chunked: false, line }
    }
}

impl Framing {
    /// Takes the next bytes of the connection.
    ///
    /// # Errors
    /// The first offence; nothing is to be passed on from there, and nothing more to be asked.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if let At::Data { left, is_chunk } = self.at {
                at += self.skip(left, is_chunk, rest.len());
                continue;
            }
            let Some(end) = memchr::memchr(b'\n', rest) else {
                self.line.push(rest);
                return Ok(());
            };
            let line = &rest[..end];
            let last = line.last().copied().unwrap_or(self.line.last);
            if last != b'\r' {
                return Err(Stop { at: at + end, offence: Offence::BareLf });
            }
            let ended = if self.line.len == 0 { self.ended(&line[..end - 1]) } else { self.joined(line) };
            ended.map_err(|offence| Stop { at, offence })?;
            at += end + 1;
        }
        Ok(())
    }

    fn skip(&mut self, left: u64, is_chunk: bool, here: usize) -> usize {
        let taken = left.min(here as u64);
        self.at = match left - taken {
            0 if is_chunk => At::ChunkEnd,
            0 => At::Request,
            left => At::Data { left, is_chunk },
        };
        taken as usize
    }

    /// A line whose beginning came before: judged by what was kept of it.
    fn joined(&mut self, rest: &[u8]) -> Result<(), Offence> {
        self.line.push(rest);
        let (kept, whole) = (self.line.kept, self.line.len);
        (self.line.len, self.line.last) = (0, 0);
        // Without its CR, where that was kept.
        self.ended(&kept[..whole.saturating_sub(1).min(LINE_KEPT_BYTES)])
    }

    fn ended(&mut self, line: &[u8]) -> Result<(), Offence> {
        // The same of a line that came at once as of one that came in pieces.
        let line = &line[..line.len().min(LINE_KEPT_BYTES)];
        match self.at {
            At::Request if line.is_empty() => {}
            At::Request => (self.at, self.length, self.is_chunked) = (At::Header, None, false),
            At::Header if line.is_empty() => self.at = self.body(),
            At::Header => self.header(line)?,
            At::ChunkSize => match chunk_size(line)? {
                0 => self.at = At::Trailer,
                left => self.at = At::Data { left, is_chunk: true },
            },
            At::ChunkEnd if line.is_empty() => self.at = At::ChunkSize,
            At::ChunkEnd => return Err(Offence::Chunk),
            At::Trailer if line.is_empty() => self.at = At::Request,
            At::Trailer => {
                name_of(line)?;
            }
            At::Data { .. } => unreachable!("invariant: data has no lines"),
        }
        Ok(())
    }

    /// What comes after a head.
    const fn body(&self) -> At {
        match self.length {
            _ if self.is_chunked => At::ChunkSize,
            Some(left) if left > 0 => At::Data { left, is_chunk: false },
            _ => At::Request,
        }
    }

    fn header(&mut self, line: &[u8]) -> Result<(), Offence> {
        let name = name_of(line)?;
        // Most are told apart by their length.
        let is_length = name.eq_ignore_ascii_case(b"content-length");
        if !is_length && !name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Ok(());
        }
        let value = line.get(name.len() + 1..).unwrap_or_default().trim_ascii();
        // The value may go on beyond what is kept.
        let is_cut = line.len() == LINE_KEPT_BYTES;
        if is_length {
            if self.length.is_some() {
                return Err(Offence::TwoLengths);
            }
            if is_cut {
                return Err(Offence::Length);
            }
            self.length = Some(number(value)?);
        } else {
            if is_cut || self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Offence::Encoding);
            }
            self.is_chunked = true;
        }
        if self.is_chunked && self.length.is_some() {
            return Err(Offence::LengthAndEncoding);
        }
        Ok(())
    }
}

/// The name before the colon. A name longer than what is kept of a line is none that matters here.
fn name_of(line: &[u8]) -> Result<&[u8], Offence> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(Offence::Fold);
    }
    match memchr::memchr(b':', line) {
        None if line.len() == LINE_KEPT_BYTES => Ok(line),
        None | Some(0) => Err(Offence::Name),
        Some(colon) if matches!(line[colon - 1], b' ' | b'\t') => Err(Offence::Name),
        Some(colon) => Ok(&line[..colon]),
    }
}

fn number(digits: &[u8]) -> Result<u64, Offence> {
    if digits.is_empty() {
        return Err(Offence::Length);
    }
    digits.iter().try_fold(0_u64, |so_far, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'));
        digit.and_then(|d| so_far.checked_mul(10)?.checked_add(d)).ok_or(Offence::Length)
    })
}

/// The size that begins a chunk: hex digits, then nothing, blanks, or extensions.
fn chunk_size(line: &[u8]) -> Result<u64, Offence> {
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let after_is_fine = matches!(line.get(digits), None | Some(b' ' | b'\t' | b';'));
    if digits == 0 || digits > CHUNK_DIGITS_MAX || !after_is_fine {
        return Err(Offence::Chunk);
    }
    let digits = std::str::from_utf8(&line[..digits]).map_err(|_| Offence::Chunk)?;
    u64::from_str_radix(digits, 16).map_err(|_| Offence::Chunk)
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
