//! What is fuzzed of the router, by its source: linking the whole router instrumented would take minutes to build.

// Whole modules of which the targets use a part.
#![allow(dead_code, reason = "the router uses the rest")]

#[path = "../../src/forward/chunks.rs"]
mod chunks;
#[path = "../../src/forward/events.rs"]
mod events;
#[path = "../../src/accept/framing.rs"]
mod framing;
#[path = "../../src/forward/head.rs"]
mod head;
#[path = "../../src/backends/metrics_text/mod.rs"]
pub mod metrics_text;
#[path = "../../src/parse/mod.rs"]
pub mod parse;
#[path = "../../src/forward/retry.rs"]
pub mod retry;
pub mod state;

// The scanner beside serde_json, as the unit tests compare them.
#[path = "../../src/parse/json/model_tests.rs"]
mod model;

use parse::BodyError;
use parse::json::{Scanner, unescape};

/// A raw key and a raw value.
pub type Member<'a> = (&'a [u8], &'a [u8]);

/// How the scanner and serde_json differ over a text, if they do where they must not.
pub fn differs(text: &[u8]) -> Option<String> {
    model::differs(text)
}

/// Members of an object, raw; `None` if it is none, or has a key twice.
pub fn distinct_members(text: &[u8]) -> Option<Vec<Member<'_>>> {
    let members = model::members(text).ok()?;
    let mut keys: Vec<_> = members.iter().map(|(key, _)| unescape(key)).collect();
    keys.sort_unstable();
    keys.windows(2).all(|pair| pair[0] != pair[1]).then_some(members)
}

/// What a client's bytes are cut into.
#[derive(Debug, Default)]
pub struct Cut {
    /// The bodies of the messages that are whole.
    pub bodies: Vec<Vec<u8>>,
    /// The first byte that is not to be passed on.
    pub stopped: Option<usize>,
}

/// Cuts as the router does, byte by byte.
pub fn cut(bytes: &[u8]) -> Cut {
    use framing::{At, Framing};
    let (mut framing, mut cut, mut body) = (Framing::default(), Cut::default(), Vec::new());
    for (i, byte) in bytes.iter().enumerate() {
        let before = framing.at;
        if framing.pass(&[*byte]).is_err() {
            cut.stopped = Some(i);
            return cut;
        }
        if matches!(before, At::Data { .. }) {
            body.push(*byte);
        }
        if before != At::Request && framing.at == At::Request {
            cut.bodies.push(std::mem::take(&mut body));
        }
    }
    cut
}

/// Where the router stops when the bytes come in one read.
pub fn stops_at(bytes: &[u8]) -> Option<usize> {
    framing::Framing::default().pass(bytes).err().map(|stop| stop.at)
}

/// An answer as the router reads it: its status and its body, if it came to its end.
pub fn answered(bytes: &[u8], method: &hyper::Method, piece: usize) -> Option<(u16, Vec<u8>)> {
    use head::{Framing, Head};
    let mut rest = bytes;
    loop {
        let (Head { status, framing, .. }, len) = head::parse(rest, method).ok()??;
        rest = &rest[len..];
        let body = match framing {
            _ if status.as_u16() == 101 => return None,
            _ if status.is_informational() => continue,
            Framing::Sized(length) => rest.get(..usize::try_from(length).ok()?)?.to_vec(),
            Framing::ToClose => rest.to_vec(),
            Framing::Chunked(chunks) => unchunked(chunks, rest, piece.max(1))?,
        };
        return Some((status.as_u16(), body));
    }
}

/// The data of chunks that come in pieces, if their end comes.
fn unchunked(mut chunks: chunks::Chunks, bytes: &[u8], piece: usize) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    for mut input in bytes.chunks(piece) {
        while let Some(found) = chunks.next(&mut input).ok()? {
            data.extend_from_slice(found);
        }
        if chunks.is_ended() {
            return Some(data);
        }
    }
    None
}

/// A stream with a comment wherever the router may put one, its frames ending at `ends`.
pub fn with_comments(stream: &[u8], ends: &[usize]) -> Vec<u8> {
    let (mut boundary, mut out, mut from) = (events::Boundary::START, Vec::new(), 0);
    for &end in ends.iter().chain([&stream.len()]) {
        if boundary.is_here() {
            out.extend_from_slice(events::COMMENT);
        }
        let end = end.clamp(from, stream.len());
        boundary.saw(&stream[from..end]);
        out.extend_from_slice(&stream[from..end]);
        from = end;
    }
    out
}
