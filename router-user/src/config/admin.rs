//! Where operators connect.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Bytes that a Unix socket's path has at most, its end not counted.
const PATH_BYTES_MAX: usize = 107;

/// Where the admin plane listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminListen {
    /// An address and port.
    Tcp(SocketAddr),
    /// A Unix socket, `unix:PATH`.
    Unix(PathBuf),
}

impl From<SocketAddr> for AdminListen {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for AdminListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if (1..=PATH_BYTES_MAX).contains(&path.len()) && !path.contains('\0') => {
                Ok(Self::Unix(PathBuf::from(path)))
            }
            Some(_) => Err(format!("`{text}`: a socket's path has 1 to {PATH_BYTES_MAX} bytes")),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                format!(
                    "`{text}` is no address like 127.0.0.1:8002, [::1]:8002 or unix:/run/unlatch/admin.sock"
                )
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AdminListen;

    #[test]
    fn addresses_and_sockets_are_read_and_written_the_same() {
        for text in ["127.0.0.1:8002", "[::1]:1", "unix:/run/a.sock", "unix:a"] {
            assert_eq!(text.parse::<AdminListen>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "localhost:1", "127.0.0.1", &format!("unix:/{}", "x".repeat(107))] {
            assert!(text.parse::<AdminListen>().is_err(), "{text}");
        }
    }
}
