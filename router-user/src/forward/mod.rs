//! The way to the engines, the fourth step: connections ([`connect`], [`conn`]), their reuse ([`pool`]), when a request
//! may be sent again ([`retry`]), which are open (`open`), what of the headers goes on ([`hop_headers`]), and the answer's body ([`stream`]).
//!
//! HTTP/1 towards engines is our own, since it is where streams cost most: `sending` writes requests, `head` and
//! `chunks` read answers, `socket` knows what became of both.
//!
//! Knows addresses and rows, not accounting, policy or back-off: the caller hands in a [`stream::Progress`] that
//! hears how the answer goes. Invariant: a connection is given back for reuse only after its answer's body
//! ended; in every other case it is closed, which is what tells the engine to stop.

mod chunks;
pub mod conn;
pub mod connect;
mod events;
mod head;
pub mod hop_headers;
mod open;
pub mod pace;
pub mod pool;
pub mod retry;
mod sending;
pub mod silence;
mod socket;
pub mod stream;
#[cfg(test)]
mod test_engine;
pub mod upload;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::{HeaderMap, StatusCode};
use router_policy::{BackendId, Nanos};

use conn::{AnswerError, Conn};
use connect::{ConnectError, Connector, Hooks};
use pool::{After, Pool};
use retry::Verdict;
pub use sending::Outgoing;
use silence::SilenceLimits;

/// Of an answer that nobody wants so much is read.
const DISCARDED_BYTES_MAX: usize = 64 << 10;
/// And for so long.
const DISCARD_TIME_MAX: Duration = Duration::from_millis(100);

/// Where to send: a row and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The row, for the pool and the mark.
    pub id: BackendId,
    /// The address.
    pub addr: SocketAddr,
}

/// Bounds of the upstream side; see `config::Limits`.
#[derive(Clone, Debug)]
pub struct UpstreamLimits {
    /// Connecting.
    pub connect_timeout: Duration,
    /// Idle connections kept per backend.
    pub idle_conns_max: usize,
    /// Age from which an idle connection is not reused.
    pub idle_conn_age_max: Duration,
    /// Silence within an answer.
    pub silence: SilenceLimits,
}

/// Why no answer's head came.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection, so nothing was sent: another backend may be asked.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It was sent, perhaps in part, and may have been executed: no other backend may be asked.
    #[error("{0}")]
    NoAnswer(AnswerError),
}

/// The head of an answer and the connection it comes on.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body comes on it; dropping it closes it.
    pub conn: Conn,
    /// How often the request was sent again on a fresh connection (0 or 1).
    pub resent: u32,
    /// Whether a connection was made for it.
    pub connected: bool,
}

/// One worker's way to the engines.
#[derive(Debug)]
pub struct Upstream {
    pool: Arc<Pool>,
    connector: Connector,
    silence: SilenceLimits,
}

impl Upstream {
    /// For one worker; `hooks` are called for every connection.
    #[must_use]
    pub fn new(limits: &UpstreamLimits, hooks: Hooks) -> Self {
        let pool = Arc::new(Pool::new(limits.idle_conns_max, limits.idle_conn_age_max));
        let connector = Connector::new(limits.connect_timeout, hooks);
        Self { pool, connector, silence: limits.silence }
    }

    /// Bounds of silence within an answer.
    #[must_use]
    pub const fn silence(&self) -> SilenceLimits {
        self.silence
    }

    /// Reads the rest of an answer that nobody wants, so that its connection can be used again: while it is short
    /// and comes at once. Otherwise the connection is closed.
    pub fn discard(&self, answer: Answer, now: Nanos) {
        let pool = Arc::clone(&self.pool);
        let mut conn = answer.conn;
        tokio::spawn(async move {
            if let Ok(true) = tokio::time::timeout(DISCARD_TIME_MAX, read_off(&mut conn)).await {
                pool.put(conn, After::Sized, now);
            }
        });
    }

    /// Ends connections to a backend on which nothing passed for so long; how many. What waits on one sees the engine
    /// close it.
    pub fn end_silent(&self, id: BackendId, silence: Duration) -> usize {
        self.connector.open_conns().end_silent(id, silence)
    }

    /// The idle connections.
    #[must_use]
    pub const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Sends a request on an idle or else a new connection and waits for the answer's head: once, or twice if an
    /// idle connection turns out to be closed. One that can be sent `once` only goes on a new connection, which no
    /// engine is about to close.
    ///
    /// Dropping the future closes the connection, which tells the engine that nobody waits any more.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send(
        &self,
        peer: Peer,
        now: Nanos,
        once: bool,
        mut request: impl Outgoing,
    ) -> Result<Answer, SendError> {
        // Connecting is rare, and would make every request's future larger: boxed.
        let idle = if once { None } else { self.pool.take(peer, now) };
        let (mut conn, mut connected) = match idle {
            Some(idle) => (idle, false),
            None => (Box::pin(self.connector.connect(peer)).await?, true),
        };
        let mut resent = 0;
        loop {
            let failure = match conn.send(&mut request).await {
                Ok((status, headers)) => return Ok(Answer { status, headers, conn, resent, connected }),
                Err(failure) => failure,
            };
            if once {
                return Err(SendError::NoAnswer(failure.error));
            }
            match retry::verdict(failure.facts) {
                Verdict::FreshConnection => {
                    resent += 1;
                    connected = true;
                    conn = Box::pin(self.connector.connect(peer)).await?;
                }
                Verdict::AnotherBackend => {
                    return Err(ConnectError::closed_at_once(peer.addr, failure.error).into());
                }
                Verdict::GiveUp => return Err(SendError::NoAnswer(failure.error)),
            }
        }
    }
}

/// Reads an answer to its end, unless it is long.
async fn read_off(conn: &mut Conn) -> bool {
    let mut bytes = 0;
    while bytes <= DISCARDED_BYTES_MAX {
        match poll_fn(|cx| conn.poll_data(cx)).await {
            Some(Ok(data)) => bytes += data.len(),
            Some(Err(_broken)) => return false,
            None => return true,
        }
    }
    false
}
