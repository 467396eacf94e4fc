//! The request as the engine gets it, made from the client's; and the request's id.
//!
//! Invariant: where it goes is the target's alone. Nothing in a client's request names an address.

use http_body_util::Either;
use hyper::body::Body;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Method, Request};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::tunnel::Wanted;
use crate::accept::Client;
use crate::backends::Target;
use crate::forward::hop_headers;
use crate::forward::upload::RequestBody;

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
        HeaderValue::try_from(format!("{high:016x}{low:016x}"))
            .expect("invariant: hex digits are visible ASCII")
    }
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
        // hyper writes the body's length, or chunks where it is not known.
        headers.remove(header::CONTENT_LENGTH);
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

    /// The request to one target.
    #[must_use]
    pub(super) fn to(&self, target: &Target, body: RequestBody) -> Request<RequestBody> {
        let is_empty = matches!(&body, Either::Left(held) if held.is_end_stream());
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from(self.path_at(target));
        let mut headers = self.headers.clone();
        headers.insert(header::HOST, target.authority.clone());
        if let Some(own) = &target.authorization {
            headers.insert(header::AUTHORIZATION, own.clone());
        }
        if is_empty && [Method::POST, Method::PUT, Method::PATCH].contains(&self.method) {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        *request.headers_mut() = headers;
        request
    }

    fn path_at(&self, target: &Target) -> PathAndQuery {
        if target.base_path.is_empty() {
            return self.path.clone();
        }
        let joined = format!("{}{}", target.base_path, self.path);
        PathAndQuery::try_from(joined).expect("invariant: a checked base path before a parsed path is a path")
    }
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
    use super::{RequestIds, X_REQUEST_ID};
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
    fn made_ids_are_hex_and_differ() {
        let ids = RequestIds::new(1);
        let (a, b) = (ids.of(&HeaderMap::new()), ids.of(&HeaderMap::new()));
        assert_ne!(a, b);
        assert!(a.as_bytes().iter().all(u8::is_ascii_hexdigit) && a.len() == 32);
    }
}
