//! Reading a state.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use router_policy::Taught;
use router_policy::prefix::BLOCK_BYTES;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::format::{
    ENGINES_MAX, Engine, HEADER, Key, MAGIC, Refused, Saved, State, URL_BYTES_MAX, VERSION, check, kind,
};
use super::pieces;

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
            (kind::KEY, None) if key.is_none() => key = Some(Key(payload.array()?)),
            (kind::ENGINE, last) if key.is_some() => {
                last.into_iter().for_each(void_if_cut);
                if engines.len() == ENGINES_MAX {
                    return Err(Refused::Malformed);
                }
                let engine = engine(&mut payload)?;
                engines.push(Saved { engine, bytes: Arc::clone(&bytes), pieces: Vec::new(), count: 0 });
            }
            (kind::PIECES, Some(saved)) if saved.count == 0 => {
                pieces::count(payload.all()).ok_or(Refused::Malformed)?;
                saved.pieces.push(range);
            }
            (kind::WHOLE, Some(saved)) if saved.count == 0 => {
                saved.count = payload.u64()?;
                let each = saved.pieces.iter().map(|range| pieces::count(&bytes[range.clone()]));
                if each.sum::<Option<u64>>() != Some(saved.count) {
                    return Err(Refused::Malformed);
                }
            }
            (kind::END, last) => {
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
