//! Headers that end at a proxy (RFC 9110, 7.6.1). Pure.
//!
//! Invariant: framing and addressing are ours on both sides. A client that names `Content-Length`, `Host` or
//! `Authorization` in `Connection` does not get them removed.

use hyper::HeaderMap;
use hyper::header::{self, HeaderName};

/// Whether a header always ends here.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "http2-settings"
    )
}

/// Headers that `Connection` cannot take away.
const KEPT: [HeaderName; 4] =
    [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::HOST, header::AUTHORIZATION];

/// Which headers of one message end here.
#[derive(Debug)]
pub struct Hop {
    /// By its `Connection`.
    named: Vec<HeaderName>,
}

impl Hop {
    /// Of a message with these headers. No allocation without `Connection`.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let is_there = headers.contains_key(header::CONNECTION);
        Self { named: if is_there { named_by_connection(headers) } else { Vec::new() } }
    }

    /// Whether this one does.
    #[must_use]
    pub fn ends(&self, name: &HeaderName) -> bool {
        is_hop_by_hop(name) || self.named.contains(name)
    }
}

/// Removes hop-by-hop headers and what `Connection` names. O(headers); no allocation where there are none.
pub fn strip(headers: &mut HeaderMap) {
    // Few messages have any: one look at the names costs less than a search for each that may be there.
    let mut ending: Vec<HeaderName> = headers.keys().filter(|&name| is_hop_by_hop(name)).cloned().collect();
    if ending.contains(&header::CONNECTION) {
        ending.append(&mut named_by_connection(headers));
    }
    for name in ending {
        headers.remove(name);
    }
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).into_iter();
    let tokens = values.flat_map(|value| value.as_bytes().split(|&b| b == b','));
    let names = tokens.filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok());
    names.filter(|name| !KEPT.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;
    use hyper::header::{HeaderName, HeaderValue};

    fn left(lines: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        super::strip(&mut headers);
        let mut names: Vec<_> = headers.keys().map(|n| n.as_str().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn hop_by_hop_headers_end_here() {
        let hop = [
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
            "http2-settings",
        ];
        for name in hop {
            assert_eq!(left(&[(name, "x"), ("x-keep-me", "1")]), ["x-keep-me"], "{name}");
        }
    }

    #[test]
    fn connection_takes_what_it_names_but_not_framing_nor_credentials() {
        let lines = [
            ("connection", "close, X-Drop-Me , content-length"),
            ("connection", "host,x-drop-me-too,authorization,\u{7f}bad name"),
            ("x-drop-me", "1"),
            ("x-drop-me-too", "1"),
            ("x-keep-me", "1"),
            ("content-length", "3"),
            ("host", "h"),
            ("authorization", "Bearer k"),
        ];
        let lines: Vec<_> =
            lines.iter().map(|&(n, v)| (n, v.strip_suffix(",\u{7f}bad name").unwrap_or(v))).collect();
        assert_eq!(left(&lines), ["authorization", "content-length", "host", "x-keep-me"]);
    }
}
