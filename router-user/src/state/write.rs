//! Writing a state.

use std::io::{self, Write};
use std::net::IpAddr;

use router_policy::prefix::BLOCK_BYTES;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::format::{
    CHUNK, ENGINE_BYTES, Engine, HEADER, KEY_BYTES, MAGIC, Saved, URL_BYTES_MAX, VERSION, check, kind,
};
use super::pieces::Pieces;

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
        writer.chunk(kind::KEY, key)?;
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
        let mut payload = Vec::with_capacity(ENGINE_BYTES + url.len());
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
        self.chunk(kind::ENGINE, &payload)
    }

    /// Adds what the engine holds.
    ///
    /// # Errors
    /// As [`Self::engine`].
    pub fn pieces(&mut self, pieces: &Pieces) -> io::Result<()> {
        if pieces.is_empty() { Ok(()) } else { self.chunk(kind::PIECES, pieces.bytes()) }
    }

    /// Ends what the engine holds: so many pieces in all.
    ///
    /// # Errors
    /// As [`Self::engine`].
    pub fn whole(&mut self, pieces: u64) -> io::Result<()> {
        self.chunk(kind::WHOLE, &pieces.to_le_bytes())
    }

    /// Ends the state; returns the bytes of it and where it went.
    ///
    /// # Errors
    /// As [`Self::engine`].
    pub fn end(mut self) -> io::Result<(u64, W)> {
        self.chunk(kind::END, &[])?;
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

impl Saved {
    /// Writes it as it was saved.
    ///
    /// # Errors
    /// As [`Writer::engine`].
    pub fn write(&self, to: &mut Writer<impl Write>) -> io::Result<()> {
        to.engine(&self.engine)?;
        for range in &self.pieces {
            to.chunk(kind::PIECES, &self.bytes[range.clone()])?;
        }
        to.whole(self.count)
    }
}
