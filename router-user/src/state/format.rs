//! What a state file holds. Pure: bytes in, bytes out.
//!
//! ```text
//! header   magic 8 | version u32 | bytes of a block u32 | saved at u64 | check u64
//! chunk    kind u32 | length u32 | check u64 | payload
//!   key      192 bytes: the secret of the hashes
//!   engine   address 16 | port u16 | seen at u64 | process start f64 | KV tokens u64 | seats 3 × u32
//!            | averages 6 × (f64, u64) | URL; NaN and 0 stand for unknown
//!   pieces   of the engine before, by age: 1 to 8 blocks of a prompt, or the number of an answer's (see `pieces`)
//!   whole    pieces u64: there are so many of the engine before; without it they are void
//!   end      the last chunk
//! ```
//! Numbers are little endian, times are Unix milliseconds. A check is the XXH3-64 of what lies before it and of the
//! payload, seeded with the chunk's number, so that none can be changed, left out or moved. Invariant: what [`read`]
//! lets through is whole, as one [`Writer`] wrote it; no bytes make it panic, or allocate more than their length.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use router_policy::Taught;
use router_policy::prefix::{BLOCK_BYTES, Recalled};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::pieces::{self, Pieces};

const MAGIC: [u8; 8] = *b"unlatch\0";
/// To be raised with this format, and with the rule by which prompts become hashes.
const VERSION: u32 = 1;
const HEADER: usize = 32;
const CHUNK: usize = 16;
/// Bytes of an engine but for its URL.
const ENGINE: usize = 16 + 2 + 8 + 8 + 8 + 12 + 6 * 16;
const URL_BYTES_MAX: usize = 4096;
/// Engines of a state at most: more than can be at once, since some wait to be there again.
pub const ENGINES_MAX: usize = 1024;

/// Bytes of the secret of the hashes.
pub const KEY_BYTES: usize = 192;

const KEY: u32 = 1;
const ENGINE_KIND: u32 = 2;
const PIECES: u32 = 3;
const WHOLE: u32 = 4;
const END: u32 = 5;

/// Why a file is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Something else.
    #[error("it is no state of a router")]
    Foreign,
    /// Another version of the program wrote it.
    #[error("another version of the program wrote it")]
    OtherVersion,
    /// It ends too early.
    #[error("it is cut short")]
    Cut,
    /// It is not as it was written.
    #[error("a checksum is wrong")]
    Damaged,
    /// Its checksums are right and its content is not.
    #[error("its content is none")]
    Malformed,
}

/// What identifies an engine, and what it taught.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// Where it is: its identity.
    pub addr: SocketAddr,
    /// Its URL, for people.
    pub url: String,
    /// When it was last known to be there; Unix milliseconds.
    pub seen_at: u64,
    /// When its process started, if it told; Unix seconds.
    pub process_start: Option<f64>,
    /// What it taught.
    pub taught: Taught,
}

/// An engine as it was saved. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Which, and what it taught.
    pub engine: Engine,
    bytes: Arc<Vec<u8>>,
    pieces: Vec<Range<usize>>,
    count: u64,
}

impl Saved {
    /// What it held. O(blocks).
    #[must_use]
    pub fn recall(&self) -> Recalled {
        let mut recalled = Recalled::default();
        for range in &self.pieces {
            pieces::recall(&self.bytes[range.clone()], &mut recalled);
        }
        recalled
    }

    /// Whether it held anything.
    #[must_use]
    pub const fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Forgets what it held.
    pub fn forget(&mut self) {
        (self.pieces, self.count) = Default::default();
    }

    /// Writes it as it was saved.
    ///
    /// # Errors
    /// As [`Writer::engine`].
    pub fn write(&self, to: &mut Writer<impl Write>) -> io::Result<()> {
        to.engine(&self.engine)?;
        for range in &self.pieces {
            to.chunk(PIECES, &self.bytes[range.clone()])?;
        }
        to.whole(self.count)
    }
}

/// A state as it was read.
#[derive(Debug)]
pub struct State {
    /// When it was saved; Unix milliseconds.
    pub saved_at: u64,
    /// The secret of the hashes.
    pub key: Key,
    /// The engines.
    pub engines: Vec<Saved>,
}

/// The secret of the hashes.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; KEY_BYTES]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// Writes a state, one part after the other.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    chunks: u64,
    bytes: u64,
    bytes_max: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a state of at most so many bytes.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut out: W, saved_at: u64, key: &[u8; KEY_BYTES], bytes_max: u64) -> io::Result<Self> {
        let mut header = Vec::with_capacity(HEADER);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((BLOCK_BYTES as u32).to_le_bytes());
        header.extend(saved_at.to_le_bytes());
        header.extend(xxh3_64_with_seed(&header, 0).to_le_bytes());
        out.write_all(&header)?;
        let mut writer = Self { out, chunks: 0, bytes: HEADER as u64, bytes_max };
        writer.chunk(KEY, key)?;
        Ok(writer)
    }

    /// Begins an engine.
    ///
    /// # Errors
    /// It cannot be written, or [`io::ErrorKind::FileTooLarge`].
    pub fn engine(&mut self, engine: &Engine) -> io::Result<()> {
        let Engine { addr, url, seen_at, process_start, taught } = engine;
        let ip = match addr.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut payload = Vec::with_capacity(ENGINE + url.len());
        payload.extend(ip.octets());
        payload.extend(addr.port().to_le_bytes());
        payload.extend(seen_at.to_le_bytes());
        payload.extend(process_start.unwrap_or(f64::NAN).to_le_bytes());
        payload.extend(taught.kv_tokens.unwrap_or(0).to_le_bytes());
        let (scrapes, waiting) = (taught.seats_from_scrapes, taught.seats_from_waiting);
        for seats in [scrapes.unwrap_or(0), waiting.unwrap_or(0), taught.proven_seats] {
            payload.extend(seats.to_le_bytes());
        }
        for average in taught.averages {
            let (value, observations) = average.unwrap_or((f64::NAN, 0));
            payload.extend(value.to_le_bytes());
            payload.extend(observations.to_le_bytes());
        }
        payload.extend(url.bytes().take(URL_BYTES_MAX));
        self.chunk(ENGINE_KIND, &payload)
    }

    /// Adds what the engine holds.
    ///
    /// # Errors
    /// As [`Self::engine`].
    pub fn pieces(&mut self, pieces: &Pieces) -> io::Result<()> {
        if pieces.is_empty() { Ok(()) } else { self.chunk(PIECES, pieces.bytes()) }
    }

    /// Ends what the engine holds: so many pieces in all.
    ///
    /// # Errors
    /// As [`Self::engine`].
    pub fn whole(&mut self, pieces: u64) -> io::Result<()> {
        self.chunk(WHOLE, &pieces.to_le_bytes())
    }

    /// Ends the state; returns the bytes of it and where it went.
    ///
    /// # Errors
    /// As [`Self::engine`].
    pub fn end(mut self) -> io::Result<(u64, W)> {
        self.chunk(END, &[])?;
        Ok((self.bytes, self.out))
    }

    fn chunk(&mut self, kind: u32, payload: &[u8]) -> io::Result<()> {
        self.bytes += (CHUNK + payload.len()) as u64;
        if self.bytes > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.chunks += 1;
        let mut head = [0; CHUNK];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let check = check(&head[..8], payload, self.chunks);
        head[8..].copy_from_slice(&check.to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(payload)
    }
}

/// Of the head of a chunk and its payload.
fn check(head: &[u8], payload: &[u8], number: u64) -> u64 {
    xxh3_64_with_seed(head, xxh3_64_with_seed(payload, number))
}

/// Reads a state, whole or not at all. O(bytes).
///
/// # Errors
/// Why not.
pub fn read(bytes: Vec<u8>) -> Result<State, Refused> {
    let bytes = Arc::new(bytes);
    let mut rest = Rest { bytes: &bytes, at: 0 };
    let saved_at = header(&mut rest)?;
    let (mut number, mut key, mut engines) = (0, None, Vec::<Saved>::new());
    loop {
        number += 1;
        let (kind, range) = chunk(&mut rest, number)?;
        let mut payload = Rest { bytes: &bytes[range.clone()], at: 0 };
        match (kind, engines.last_mut()) {
            (KEY, None) if key.is_none() => key = Some(Key(payload.array()?)),
            (ENGINE_KIND, last) if key.is_some() => {
                last.into_iter().for_each(void_if_cut);
                if engines.len() == ENGINES_MAX {
                    return Err(Refused::Malformed);
                }
                let engine = engine(&mut payload)?;
                engines.push(Saved { engine, bytes: Arc::clone(&bytes), pieces: Vec::new(), count: 0 });
            }
            (PIECES, Some(saved)) if saved.count == 0 => {
                pieces::count(payload.all()).ok_or(Refused::Malformed)?;
                saved.pieces.push(range);
            }
            (WHOLE, Some(saved)) if saved.count == 0 => {
                saved.count = payload.u64()?;
                let each = saved.pieces.iter().map(|range| pieces::count(&bytes[range.clone()]));
                if each.sum::<Option<u64>>() != Some(saved.count) {
                    return Err(Refused::Malformed);
                }
            }
            (END, last) => {
                last.into_iter().for_each(void_if_cut);
                break;
            }
            _ => return Err(Refused::Malformed),
        }
        if !payload.is_empty() {
            return Err(Refused::Malformed);
        }
    }
    match key {
        Some(key) if rest.is_empty() => Ok(State { saved_at, key, engines }),
        _ => Err(Refused::Malformed),
    }
}

/// The copy of what it held was never completed.
fn void_if_cut(saved: &mut Saved) {
    if saved.count == 0 {
        saved.forget();
    }
}

fn header(rest: &mut Rest<'_>) -> Result<u64, Refused> {
    let head = rest.bytes.get(..HEADER - 8).ok_or(Refused::Cut);
    if !rest.bytes.starts_with(&MAGIC[..rest.bytes.len().min(MAGIC.len())]) {
        return Err(Refused::Foreign);
    }
    let expected = xxh3_64_with_seed(head?, 0);
    let _magic: [u8; 8] = rest.array()?;
    if (rest.u32()?, rest.u32()?) != (VERSION, BLOCK_BYTES as u32) {
        return Err(Refused::OtherVersion);
    }
    let saved_at = rest.u64()?;
    if rest.u64()? == expected { Ok(saved_at) } else { Err(Refused::Damaged) }
}

/// The kind of the next chunk and where its payload lies.
fn chunk(rest: &mut Rest<'_>, number: u64) -> Result<(u32, Range<usize>), Refused> {
    let head = rest.bytes.get(rest.at..rest.at + 8).ok_or(Refused::Cut)?;
    let (kind, len, wanted) = (rest.u32()?, rest.u32()? as usize, rest.u64()?);
    let start = rest.at;
    let payload = rest.take(len)?;
    if check(head, payload, number) != wanted {
        return Err(Refused::Damaged);
    }
    Ok((kind, start..start + len))
}

fn engine(payload: &mut Rest<'_>) -> Result<Engine, Refused> {
    let ip = IpAddr::V6(Ipv6Addr::from(payload.array::<16>()?)).to_canonical();
    let addr = SocketAddr::new(ip, u16::from_le_bytes(payload.array()?));
    let seen_at = payload.u64()?;
    let process_start = Some(payload.f64()?).filter(|start| start.is_finite());
    let mut taught =
        Taught { kv_tokens: Some(payload.u64()?).filter(|&tokens| tokens > 0), ..Taught::default() };
    let seats = [payload.u32()?, payload.u32()?, payload.u32()?];
    let known = |seats: u32| Some(seats).filter(|&seats| seats > 0);
    (taught.seats_from_scrapes, taught.seats_from_waiting, taught.proven_seats) =
        (known(seats[0]), known(seats[1]), seats[2]);
    for average in &mut taught.averages {
        let (value, observations) = (payload.f64()?, payload.u64()?);
        *average = Some((value, observations)).filter(|(value, n)| value.is_finite() && *n > 0);
    }
    let url = std::str::from_utf8(payload.all()).map_err(|_| Refused::Malformed)?;
    if url.len() > URL_BYTES_MAX {
        return Err(Refused::Malformed);
    }
    Ok(Engine { addr, url: url.to_owned(), seen_at, process_start, taught })
}

/// Bytes that are still to be read.
struct Rest<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Rest<'a> {
    const fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Refused> {
        let taken = self.bytes[self.at..].get(..len).ok_or(Refused::Cut)?;
        self.at += len;
        Ok(taken)
    }

    fn all(&mut self) -> &'a [u8] {
        let all = &self.bytes[self.at..];
        self.at = self.bytes.len();
        all
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        self.take(N)?.try_into().map_err(|_| Refused::Cut)
    }

    fn u32(&mut self) -> Result<u32, Refused> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Refused> {
        self.array().map(u64::from_le_bytes)
    }

    fn f64(&mut self) -> Result<f64, Refused> {
        self.array().map(f64::from_le_bytes)
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
