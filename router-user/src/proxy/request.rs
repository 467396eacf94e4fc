//! The request as the engine gets it, made from the client's; and the request's id.
//!
//! Invariant: where it goes is the target's alone. Nothing in a client's request names an address.

use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::{PathAndQuery, Uri};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::payload::Payload;
use super::tunnel::Wanted;
use crate::accept::Client;
use crate::backends::Target;
use crate::forward;
use crate::forward::hop_headers::Hop;
use crate::forward::upload::RequestBody;

/// Name of the request's id, both ways.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Of the headers of a usual request.
const FIELDS_BYTES: usize = 512;

/// A client's id is honoured up to this length.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Makes request ids: 128 random bits as hex. One a worker.
#[derive(Debug)]
pub(super) struct RequestIds(Mutex<Xoshiro256PlusPlus>);

impl RequestIds {
    /// Ids that follow from `seed`, which must differ between workers.
    #[must_use]
    pub(super) fn new(seed: u64) -> Self {
        Self(Mutex::new(Xoshiro256PlusPlus::seed_from_u64(seed)))
    }

    /// The client's id if it is short and visible ASCII, else a new one.
    pub(super) fn of(&self, headers: &HeaderMap) -> HeaderValue {
        let honoured = match headers.get(X_REQUEST_ID) {
            // A copy: what the client sent lies in the buffer that it was read into.
            Some(id) if is_honoured(id.as_bytes()) => HeaderValue::from_bytes(id.as_bytes()).ok(),
            _ => None,
        };
        honoured.unwrap_or_else(|| self.make())
    }

    fn make(&self) -> HeaderValue {
        let (high, low) = {
            let mut rng = self.0.lock();
            (rng.next_u64(), rng.next_u64())
        };
        HeaderValue::from_bytes(&hex((u128::from(high) << 64) | u128::from(low)))
            .expect("invariant: hex digits are visible ASCII")
    }
}

/// All 32 digits; what `format!` does in a fraction of its time.
fn hex(number: u128) -> [u8; 32] {
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair.copy_from_slice(&HEX[usize::from(byte)]);
    }
    digits
}

/// The two digits of every byte.
const HEX: [[u8; 2]; 256] = {
    let (digits, mut pairs, mut byte) = (b"0123456789abcdef", [[0; 2]; 256], 0);
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 0xf]];
        byte += 1;
    }
    pairs
};

fn is_honoured(id: &[u8]) -> bool {
    !id.is_empty() && id.len() <= REQUEST_ID_BYTES_MAX && id.iter().all(u8::is_ascii_graphic)
}

/// The client's head, made ready for any target: hop-by-hop headers gone, id and `X-Forwarded-*` set.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    method: Method,
    id: &'a HeaderValue,
    /// Path and query.
    path: Box<str>,
    /// The headers as they are written, without the target's and those of framing.
    fields: Vec<u8>,
    /// Where in them the client's key begins, which is the last.
    key_at: usize,
}

impl<'a> Outgoing<'a> {
    /// From the client's head, which is used up: it would hold the buffer that it was read into.
    #[must_use]
    pub(super) fn new(
        parts: &mut Parts,
        id: &'a HeaderValue,
        client: &Client,
        upgrade: Option<&Wanted>,
    ) -> Self {
        let (uri, headers) = (std::mem::take(&mut parts.uri), std::mem::take(&mut parts.headers));
        let hop = Hop::of(&headers);
        let mut fields = Vec::with_capacity(FIELDS_BYTES);
        // A proxy before us knows better what was asked for.
        let (mut has_proto, mut has_host) = (false, false);
        let (mut before, mut host, mut keys) = (Vec::new(), None, Vec::new());
        for (name, value) in headers.iter().filter(|&(name, _)| !hop.ends(name)) {
            match name.as_str() {
                // The wait for "100 Continue" is between the client and us, framing is the connection's to the
                // engine, host is the target's; id and key follow.
                "expect" | "content-length" | "x-request-id" => continue,
                "host" => {
                    host.get_or_insert(value.as_bytes());
                    continue;
                }
                "authorization" => {
                    keys.push(value.as_bytes());
                    continue;
                }
                "x-forwarded-for" => {
                    before.extend_from_slice(value.as_bytes());
                    before.extend_from_slice(b", ");
                    continue;
                }
                "x-forwarded-proto" => has_proto = true,
                "x-forwarded-host" => has_host = true,
                _ => {}
            }
            write_field(&mut fields, name, &[value.as_bytes()]);
        }
        for (name, value) in upgrade.iter().flat_map(|upgrade| upgrade.announcement()) {
            write_field(&mut fields, &name, &[value.as_bytes()]);
        }
        write_field(&mut fields, &X_REQUEST_ID, &[id.as_bytes()]);
        write_field(&mut fields, &X_FORWARDED_FOR, &[&before, client.ip.as_bytes()]);
        if !has_proto {
            write_field(&mut fields, &X_FORWARDED_PROTO, &[b"http"]);
        }
        if let (false, Some(host)) = (has_host, host_of(&uri).or(host)) {
            write_field(&mut fields, &X_FORWARDED_HOST, &[host]);
        }
        let key_at = fields.len();
        for key in keys {
            write_field(&mut fields, &header::AUTHORIZATION, &[key]);
        }
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str).into();
        Self { method: parts.method.clone(), id, path, fields, key_at }
    }

    /// The request's id; always text, as others are replaced.
    pub(super) fn id(&self) -> &str {
        self.id.to_str().unwrap_or_default()
    }

    pub(super) const fn method(&self) -> &Method {
        &self.method
    }
}

/// A request to one target.
pub(super) struct ToTarget<'a> {
    pub(super) outgoing: &'a Outgoing<'a>,
    pub(super) target: &'a Target,
    pub(super) payload: &'a mut Payload,
}

impl forward::Outgoing for ToTarget<'_> {
    fn method(&self) -> &Method {
        &self.outgoing.method
    }

    fn write_head(&self, to: &mut Vec<u8>) {
        let Outgoing { method, path, fields, key_at, .. } = self.outgoing;
        for part in [method.as_str(), " ", &self.target.base_path, path, " HTTP/1.1\r\n"] {
            to.extend_from_slice(part.as_bytes());
        }
        write_field(to, &header::HOST, &[self.target.authority.as_bytes()]);
        match &self.target.authorization {
            None => to.extend_from_slice(fields),
            Some(own) => {
                to.extend_from_slice(&fields[..*key_at]);
                write_field(to, &header::AUTHORIZATION, &[own.as_bytes()]);
            }
        }
    }

    fn body(&mut self) -> RequestBody {
        self.payload.body()
    }
}

/// A header, its value in pieces.
fn write_field(to: &mut Vec<u8>, name: &HeaderName, value: &[&[u8]]) {
    to.extend_from_slice(name.as_str().as_bytes());
    to.extend_from_slice(b": ");
    for piece in value {
        to.extend_from_slice(piece);
    }
    to.extend_from_slice(b"\r\n");
}

/// The host that an absolute target names; it counts before `Host` (RFC 9112, 3.2.2).
fn host_of(uri: &Uri) -> Option<&[u8]> {
    uri.authority()?.as_str().rsplit('@').next().map(str::as_bytes)
}

#[cfg(test)]
mod tests {
    use super::{RequestIds, X_REQUEST_ID, hex};
    use hyper::HeaderMap;
    use hyper::header::HeaderValue;

    #[test]
    fn an_id_is_honoured_only_if_short_and_visible() {
        let ids = RequestIds::new(1);
        for (given, honoured) in [
            ("abc-1", true),
            (&*"x".repeat(128), true),
            (&*"x".repeat(129), false),
            ("with space", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(X_REQUEST_ID, HeaderValue::from_str(given).unwrap())]);
            assert_eq!(ids.of(&headers) == given, honoured, "{given}");
        }
        let latin = HeaderMap::from_iter([(X_REQUEST_ID, HeaderValue::from_bytes(b"\xe9").unwrap())]);
        assert_eq!(ids.of(&latin).len(), 32);
    }

    #[test]
    fn hex_digits_are_those_of_format() {
        for number in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978] {
            assert_eq!(hex(number), format!("{number:032x}").as_bytes());
        }
    }

    #[test]
    fn made_ids_are_hex_and_differ() {
        let ids = RequestIds::new(1);
        let (a, b) = (ids.of(&HeaderMap::new()), ids.of(&HeaderMap::new()));
        assert_ne!(a, b);
        assert!(a.as_bytes().iter().all(u8::is_ascii_hexdigit) && a.len() == 32);
    }
}
