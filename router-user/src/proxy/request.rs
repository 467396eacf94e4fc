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
use crate::forward::upload::RequestBody;
use crate::forward::{self, hop_headers};

/// Name of the request's id, both ways.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

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
        match headers.get(X_REQUEST_ID) {
            Some(id) if is_honoured(id.as_bytes()) => id.clone(),
            _ => self.make(),
        }
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
    std::array::from_fn(|at| b"0123456789abcdef"[(number >> (124 - 4 * at)) as usize & 0xf])
}

fn is_honoured(id: &[u8]) -> bool {
    !id.is_empty() && id.len() <= REQUEST_ID_BYTES_MAX && id.iter().all(u8::is_ascii_graphic)
}

/// The client's head, made ready for any target: hop-by-hop headers gone, id and `X-Forwarded-*` set.
#[derive(Debug)]
pub(super) struct Outgoing {
    method: Method,
    path: PathAndQuery,
    headers: HeaderMap,
}

impl Outgoing {
    /// From the client's head.
    #[must_use]
    pub(super) fn new(parts: Parts, id: HeaderValue, client: &Client, upgrade: Option<&Wanted>) -> Self {
        let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut headers = parts.headers;
        let host = host_asked(&parts.uri, &headers);
        hop_headers::strip(&mut headers);
        if let Some(upgrade) = upgrade {
            upgrade.announce(&mut headers);
        }
        // The wait for "100 Continue" is between the client and us.
        headers.remove(header::EXPECT);
        // Framing is the connection's, host and perhaps the key are the target's.
        headers.remove(header::CONTENT_LENGTH);
        headers.remove(header::HOST);
        headers.insert(X_REQUEST_ID, id);
        let forwarded = forwarded_for(&headers, client);
        headers.insert(X_FORWARDED_FOR, forwarded);
        // A proxy before us knows better.
        headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
        if let Some(host) = host {
            headers.entry(X_FORWARDED_HOST).or_insert(host);
        }
        Self { method: parts.method, path, headers }
    }

    /// The request's id; always text, as others are replaced.
    pub(super) fn id(&self) -> &str {
        self.headers.get(X_REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default()
    }

    pub(super) const fn method(&self) -> &Method {
        &self.method
    }
}

/// A request to one target.
pub(super) struct ToTarget<'a> {
    pub(super) outgoing: &'a Outgoing,
    pub(super) target: &'a Target,
    pub(super) payload: &'a mut Payload,
}

impl forward::Outgoing for ToTarget<'_> {
    fn method(&self) -> &Method {
        &self.outgoing.method
    }

    fn write_head(&self, to: &mut Vec<u8>) {
        let Outgoing { method, path, headers } = self.outgoing;
        let base = self.target.base_path.as_str();
        for part in [method.as_str(), " ", base, path.as_str(), " HTTP/1.1\r\nhost: "] {
            to.extend_from_slice(part.as_bytes());
        }
        to.extend_from_slice(self.target.authority.as_bytes());
        to.extend_from_slice(b"\r\n");
        let own = self.target.authorization.as_ref();
        for (name, value) in
            headers.iter().filter(|&(name, _)| own.is_none() || name != header::AUTHORIZATION)
        {
            write_field(to, name, value);
        }
        if let Some(own) = own {
            write_field(to, &header::AUTHORIZATION, own);
        }
    }

    fn body(&mut self) -> RequestBody {
        self.payload.body()
    }
}

fn write_field(to: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    to.extend_from_slice(name.as_str().as_bytes());
    to.extend_from_slice(b": ");
    to.extend_from_slice(value.as_bytes());
    to.extend_from_slice(b"\r\n");
}

/// The host that the client named: an absolute target counts before `Host` (RFC 9112, 3.2.2).
fn host_asked(uri: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
    match uri.authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str().rsplit('@').next()?).ok(),
        None => headers.get(header::HOST).cloned(),
    }
}

/// What was there, and the client's address after it.
fn forwarded_for(headers: &HeaderMap, client: &Client) -> HeaderValue {
    let before = headers.get_all(X_FORWARDED_FOR);
    let mut joined = Vec::new();
    for value in before {
        joined.extend_from_slice(value.as_bytes());
        joined.extend_from_slice(b", ");
    }
    if joined.is_empty() {
        return client.ip.clone();
    }
    joined.extend_from_slice(client.ip.as_bytes());
    HeaderValue::try_from(joined).unwrap_or_else(|_| client.ip.clone())
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
