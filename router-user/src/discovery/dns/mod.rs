//! Names to addresses, with the time for which that holds.
//!
//! [`Lookup`] is the seam: [`Stub`] asks `/etc/hosts` and name servers, tests answer by themselves. It keeps nothing;
//! what becomes of an answer, and when it is asked for again, is [`super::names`]'s.

mod exchange;
mod stub;
mod system;
mod wire;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

pub(super) use stub::Stub;

use crate::config;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Query {
    /// Addresses or services.
    pub kind: config::Lookup,
    /// The name, in lower case; with a dot at its end it is complete.
    pub name: String,
}

impl Query {
    pub(super) fn new(kind: config::Lookup, name: &str) -> Self {
        Self { kind, name: name.to_ascii_lowercase() }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            config::Lookup::Address => "dns",
            config::Lookup::Service => "srv",
        };
        write!(f, "{kind}:{}", self.name)
    }
}

/// An answer that names at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// What was found.
    pub found: Found,
    /// For how long that holds, as the server says.
    pub ttl: Duration,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Addresses, of one family.
    Addresses(Vec<IpAddr>),
    /// Services, all of the best priority.
    Services(Vec<Service>),
}

/// One SRV record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Service {
    /// Where it runs, without the last dot.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its share among the records.
    pub weight: u16,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// NXDOMAIN, of every name that was tried.
    #[error("there is no such name")]
    NoName,
    /// The name is there, but nothing of the kind.
    #[error("the name has no such record")]
    NoRecord,
    /// It is no name.
    #[error("it is no name for the DNS")]
    NotAName,
    /// The servers refuse or failed.
    #[error("the server says {0}")]
    Refused(String),
    /// No server answers in time.
    #[error("no server answers in time")]
    Timeout,
    /// No server can be reached.
    #[error("no server can be reached: {0}")]
    Unreachable(std::io::ErrorKind),
    /// The answer cannot be read.
    #[error("the answer cannot be read")]
    Unreadable,
}

/// An answer to come.
pub(super) type Asked = Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send>>;

/// Whoever knows names.
pub(super) trait Lookup: Send + Sync {
    /// Asks. Dropping the future gives up.
    fn ask(&self, query: &Query) -> Asked;
}
