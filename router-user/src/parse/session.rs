//! The name of a session: a header, else a member of the body.

use hyper::HeaderMap;
use xxhash_rust::xxh3::xxh3_64;

use super::json::Scanner;

/// Hash of the session's name; `None` if the request has none. The same name gives the same hash in every router,
/// whether header or body tells it. O(body) when the header is absent.
#[must_use]
pub fn session(headers: &HeaderMap, body: &[u8], key: &str) -> Option<u64> {
    let header = headers.get(key).map(|value| value.as_bytes());
    header.or_else(|| member(body, key)).filter(|name| !name.is_empty()).map(xxh3_64)
}

/// The text of a member of the outermost object, as it is written; the last of several.
fn member<'b>(body: &'b [u8], key: &str) -> Option<&'b [u8]> {
    let mut found = None;
    let scan = Scanner::new(body).object(|s, name| {
        let value = s.skip()?;
        if name == key.as_bytes() {
            found = Scanner::new(value).string().ok();
        }
        Ok(())
    });
    scan.ok().and(found)
}

#[cfg(test)]
mod tests {
    use super::session;
    use hyper::HeaderMap;
    use hyper::header::HeaderValue;

    #[test]
    fn the_header_comes_first_and_the_body_says_the_same() {
        let none = HeaderMap::new();
        let mut headers = HeaderMap::new();
        headers.insert("x-session-id", HeaderValue::from_static("abc"));
        let by_header = session(&headers, br#"{"x-session-id":"other"}"#, "x-session-id");
        assert!(by_header.is_some());
        assert_eq!(session(&none, br#"{"model":"m","x-session-id":"abc"}"#, "x-session-id"), by_header);
        for body in
            [&br#"{"model":"m"}"#[..], br#"{"x-session-id":7}"#, br#"{"x-session-id":""}"#, b"", b"[1"]
        {
            assert_eq!(session(&none, body, "x-session-id"), None);
        }
    }
}
