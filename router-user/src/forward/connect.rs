//! New connections to engines.
//!
//! Invariant: a socket is marked for the kernel's count before it connects.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use router_policy::BackendId;
use tokio::net::{TcpSocket, TcpStream};

use super::Peer;
use super::conn::{AnswerError, Conn};
use super::open::Open;
use super::socket::Socket;
use crate::error::is_local;

/// Called with a socket before it connects, and the row it is for.
pub type Mark = Arc<dyn Fn(BorrowedFd<'_>, BackendId) + Send + Sync>;

/// A silent connection is probed after this long: prefill takes minutes, and a middlebox must not forget it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Why a connection did not come about.
#[derive(Debug, thiserror::Error)]
#[error("{addr}: {source}")]
pub struct ConnectError {
    addr: SocketAddr,
    #[source]
    source: io::Error,
}

impl ConnectError {
    /// Nobody listens: the engine is down, and what it cached is gone.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.source.kind() == io::ErrorKind::ConnectionRefused
    }

    /// This process lacks descriptors, ports or memory: no fault of the engine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        is_local(&self.source)
    }

    /// The engine accepted and closed before the request was written.
    pub(super) fn closed_at_once(addr: SocketAddr, error: AnswerError) -> Self {
        Self { addr, source: io::Error::new(io::ErrorKind::ConnectionAborted, error) }
    }
}

/// Called when a socket was closed under a request that nobody waits for any more, with the time that took.
pub type Cancelled = Arc<dyn Fn(Duration) + Send + Sync>;

/// Who is told of connections.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Before a socket connects.
    pub mark: Option<Mark>,
    /// After a request was cancelled.
    pub cancelled: Option<Cancelled>,
}

/// Makes connections.
#[derive(Clone)]
pub struct Connector {
    timeout: Duration,
    hooks: Hooks,
    open: Arc<Open>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Connector {
    /// Connections that must be there within `timeout`.
    #[must_use]
    pub fn new(timeout: Duration, hooks: Hooks) -> Self {
        Self { timeout, hooks, open: Arc::default() }
    }

    /// A new connection. Dropping the future closes the socket.
    ///
    /// # Errors
    /// [`ConnectError`]: refused, unreachable, timed out, or no socket to be had.
    pub async fn connect(&self, peer: Peer) -> Result<Conn, ConnectError> {
        let stream = match tokio::time::timeout(self.timeout, self.open(peer)).await {
            Ok(opened) => opened,
            Err(_elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, "connecting timed out")),
        };
        let stream = stream.map_err(|source| ConnectError { addr: peer.addr, source })?;
        let listed = self.open.list(&stream, peer.id);
        Ok(Conn::new(peer, Socket::new(stream, self.hooks.cancelled.clone(), Some(listed))))
    }

    /// The connections that are open.
    pub(super) fn open_conns(&self) -> &Open {
        &self.open
    }

    async fn open(&self, peer: Peer) -> io::Result<TcpStream> {
        let socket = if peer.addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_nodelay(true)?;
        socket.set_keepalive(true)?;
        rustix::net::sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
        if let Some(mark) = &self.hooks.mark {
            mark(socket.as_fd(), peer.id);
        }
        socket.connect(peer.addr).await
    }
}
