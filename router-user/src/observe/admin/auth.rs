//! Who may change something: whoever comes over the Unix socket, or has the token.
//!
//! Against pages of other sites in an operator's browser: the token is no cookie, so that no browser adds it by itself;
//! whatever a browser says of another site is refused all the same, and at a loopback address so is a `Host` that is
//! no name of it (a name that was rebound). Reading is open to whoever reaches the listener.

use std::hint::black_box;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use parking_lot::RwLock;

use crate::config::Secret;

/// Characters of a token: fewer can be guessed, more is another file.
const TOKEN_CHARS: std::ops::RangeInclusive<usize> = 16..=4096;

/// The token, and where it was read.
#[derive(Debug)]
pub struct AdminToken {
    file: Option<PathBuf>,
    token: RwLock<Option<Secret>>,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It holds none.
    #[error("{} holds no token of 16 to 4096 printable characters in one line", .0.display())]
    NoToken(PathBuf),
}

impl AdminToken {
    /// Reads the token; without a file there is none.
    ///
    /// # Errors
    /// The file holds none.
    pub fn open(file: Option<&Path>) -> Result<Self, TokenError> {
        let token = file.map(read).transpose()?;
        Ok(Self { file: file.map(Path::to_owned), token: RwLock::new(token) })
    }

    /// Reads the file again. If that fails the token is what it was.
    ///
    /// # Errors
    /// The file holds none.
    pub fn reload(&self) -> Result<(), TokenError> {
        let Some(file) = &self.file else { return Ok(()) };
        let token = read(file)?;
        *self.token.write() = Some(token);
        Ok(())
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.token.read().is_some()
    }

    fn is(&self, given: &str) -> bool {
        self.token.read().as_ref().is_some_and(|token| equal(token.reveal().as_bytes(), given.as_bytes()))
    }
}

fn read(path: &Path) -> Result<Secret, TokenError> {
    let failed = |source| TokenError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    let mut text = String::new();
    file.take(*TOKEN_CHARS.end() as u64 + 2).read_to_string(&mut text).map_err(failed)?;
    let token = text.trim();
    if !TOKEN_CHARS.contains(&token.len()) || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(TokenError::NoToken(path.to_owned()));
    }
    if mode & 0o007 != 0 {
        let mode = format!("{:o}", mode & 0o7777);
        tracing::warn!(file = %path.display(), mode, "everybody on this host may read the admin token");
    }
    Ok(Secret::new(token.to_owned()))
}

/// Takes as long wherever two texts of one length differ.
fn equal(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
    a.len() == b.len() && differ == 0
}

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::observe) enum Via {
    /// A Unix socket, which only its owner may open.
    Unix,
    /// A TCP listener at a loopback address.
    Loopback,
    /// A TCP listener at another address.
    Network,
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// There is no token with which it could be allowed.
    NoToken,
    /// It has none, or a wrong one.
    WrongToken,
    /// It comes from a page of another site.
    OtherSite,
}

/// Whether a call may change something.
pub(super) fn allow(headers: &HeaderMap, via: Via, token: &AdminToken) -> Result<(), Denied> {
    if is_of_other_site(headers, via) {
        return Err(Denied::OtherSite);
    }
    if via == Via::Unix {
        return Ok(());
    }
    if !token.is_some() {
        return Err(Denied::NoToken);
    }
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = given
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match bearer {
        Some((_, given)) if token.is(given.trim()) => Ok(()),
        _ => Err(Denied::WrongToken),
    }
}

fn is_of_other_site(headers: &HeaderMap, via: Via) -> bool {
    let get = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = get(HOST.as_str()).unwrap_or_default();
    let site = get("sec-fetch-site").unwrap_or("none");
    let origin = get(ORIGIN.as_str());
    let is_own = |origin: &str| {
        origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
    };
    !["same-origin", "none"].contains(&site)
        || origin.is_some_and(|origin| !is_own(origin))
        || (via == Via::Loopback && !is_local_name(host))
}

/// Whether this names a loopback listener: by an address, or as localhost. An empty one comes from no browser.
fn is_local_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let name = name.trim_end_matches('.');
    name.is_empty()
        || name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use hyper::HeaderMap;
    use hyper::header::{HeaderName, HeaderValue};

    use super::{AdminToken, Denied, Via, allow, equal};

    const TOKEN: &str = "0123456789abcdef";

    fn token(text: &str) -> (tempfile::TempDir, Result<AdminToken, super::TokenError>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, text).unwrap();
        let token = AdminToken::open(Some(&file));
        (dir, token)
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn changing_needs_the_token_or_the_socket() {
        let (_dir, token) = token(&format!("{TOKEN}\n"));
        let (token, none) = (token.unwrap(), AdminToken::open(None).unwrap());
        let bearer = format!("Bearer {TOKEN}");
        let right = headers(&[("authorization", &bearer)]);
        assert_eq!(allow(&right, Via::Network, &token), Ok(()));
        assert_eq!(allow(&right, Via::Loopback, &token), Ok(()));
        assert_eq!(allow(&headers(&[]), Via::Unix, &token), Ok(()));
        assert_eq!(allow(&headers(&[]), Via::Unix, &none), Ok(()));
        assert_eq!(allow(&right, Via::Loopback, &none), Err(Denied::NoToken));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            TOKEN,
            "Basic 0123456789abcdef",
        ] {
            let given = headers(&[("authorization", wrong)]);
            assert_eq!(allow(&given, Via::Loopback, &token), Err(Denied::WrongToken), "{wrong}");
        }
        let lower = headers(&[("authorization", &format!("bearer {TOKEN}"))]);
        assert_eq!(allow(&lower, Via::Network, &token), Ok(()), "the scheme's case does not matter");
    }

    #[test]
    fn pages_of_other_sites_are_refused_even_with_the_token() {
        let (_dir, token) = token(TOKEN);
        let token = token.unwrap();
        let bearer = format!("Bearer {TOKEN}");
        let asks = |via, more: &[(&'static str, &str)]| {
            let lines: Vec<_> =
                [("authorization", bearer.as_str())].into_iter().chain(more.iter().copied()).collect();
            allow(&headers(&lines), via, &token)
        };
        for (via, more) in [
            (
                Via::Loopback,
                vec![
                    ("host", "127.0.0.1:8002"),
                    ("origin", "http://127.0.0.1:8002"),
                    ("sec-fetch-site", "same-origin"),
                ],
            ),
            (Via::Loopback, vec![("host", "localhost:8002")]),
            (Via::Loopback, vec![("host", "[::1]:8002"), ("origin", "http://[::1]:8002")]),
            (
                Via::Network,
                vec![
                    ("host", "router-1:8002"),
                    ("origin", "https://Router-1:8002"),
                    ("sec-fetch-site", "none"),
                ],
            ),
        ] {
            assert_eq!(asks(via, &more), Ok(()), "{more:?}");
        }
        for (via, more) in [
            (Via::Network, vec![("host", "router-1:8002"), ("sec-fetch-site", "cross-site")]),
            (Via::Network, vec![("host", "router-1:8002"), ("sec-fetch-site", "same-site")]),
            (Via::Network, vec![("host", "router-1:8002"), ("origin", "http://evil.example")]),
            (Via::Network, vec![("host", "router-1:8002"), ("origin", "http://router-1:80")]),
            (Via::Network, vec![("host", "router-1:8002"), ("origin", "null")]),
            (Via::Loopback, vec![("host", "evil.example:8002"), ("origin", "http://evil.example:8002")]),
            (Via::Loopback, vec![("host", "127.0.0.1.evil.example")]),
            (Via::Unix, vec![("origin", "http://evil.example")]),
        ] {
            assert_eq!(asks(via, &more), Err(Denied::OtherSite), "{more:?}");
        }
    }

    #[test]
    fn a_token_is_one_line_of_enough_printable_characters() {
        for bad in
            ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdef\nx", &"x".repeat(5000)]
        {
            assert!(token(bad).1.is_err(), "{} characters", bad.len());
        }
        assert!(AdminToken::open(Some("/nowhere/token".as_ref())).is_err());
        let shown = format!("{:?}", token(TOKEN).1.unwrap());
        assert!(!shown.contains(TOKEN), "{shown}");
    }

    #[test]
    fn a_reload_takes_the_new_token_and_keeps_the_old_one_if_there_is_none() {
        let (dir, token) = token(TOKEN);
        let (token, file) = (token.unwrap(), dir.path().join("token"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&file, "fedcba9876543210").unwrap();
        token.reload().unwrap();
        assert!(token.is("fedcba9876543210") && !token.is(TOKEN));
        std::fs::write(&file, "").unwrap();
        assert!(token.reload().is_err());
        assert!(token.is("fedcba9876543210"));
    }

    #[test]
    fn texts_are_equal_if_every_byte_is() {
        assert!(equal(b"", b"") && equal(b"abc", b"abc"));
        assert!(!equal(b"abc", b"abd") && !equal(b"abc", b"ab") && !equal(b"", b"a"));
    }
}
