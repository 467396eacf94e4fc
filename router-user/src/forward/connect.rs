//! New connections to engines, and one request at a time on them.
//!
//! Owns the socket from before `connect` (so that it can be marked for the kernel's count) to its close. Each
//! connection has a task that drives it; [`Conn`] owns that task and ends it. Invariant: dropping a `Conn` closes
//! the socket, whatever state the request on it is in.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use router_policy::BackendId;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::AbortHandle;

use super::Peer;
use super::retry::Facts;
use super::upload::RequestBody;
use super::wire::{Traffic, Wire};

/// Called with a socket before it connects, and the row it is for.
pub type Mark = Arc<dyn Fn(BorrowedFd<'_>, BackendId) + Send + Sync>;

/// A silent connection is probed after this long: prefill takes minutes, and a middlebox must not forget it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Fields of an answer's head.
const HEAD_FIELDS_MAX: usize = 256;

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
        [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL, libc::EACCES]
            .iter()
            .any(|&e| self.source.raw_os_error() == Some(e))
    }

    /// The engine accepted and closed before the request was written.
    pub(super) fn closed_at_once(addr: SocketAddr, error: hyper::Error) -> Self {
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
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Connector {
    /// Connections that must be there within `timeout`.
    #[must_use]
    pub const fn new(timeout: Duration, hooks: Hooks) -> Self {
        Self { timeout, hooks }
    }

    /// A new connection, with its driver running. Dropping the future closes the socket.
    ///
    /// # Errors
    /// [`ConnectError`]: refused, unreachable, timed out, or no socket to be had.
    pub async fn connect(&self, peer: Peer) -> Result<Conn, ConnectError> {
        let stream = match tokio::time::timeout(self.timeout, self.open(peer)).await {
            Ok(opened) => opened,
            Err(_elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, "connecting timed out")),
        };
        let stream = stream.map_err(|source| ConnectError { addr: peer.addr, source })?;
        let wire = Wire::new(stream, self.hooks.cancelled.clone());
        let traffic = wire.traffic();
        // Both ends of hyper's handshake are local: nothing is waited for.
        let (sender, connection) = http()
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|e| ConnectError::closed_at_once(peer.addr, e))?;
        // The driver polls the socket in a task of its own: inside the request's task it costs half as much
        // again per streamed token.
        let driver = spawn_driver(peer.id, connection.with_upgrades());
        Ok(Conn { peer, sender, traffic, reused: false, is_busy: false, _driver: driver })
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

/// One connection to an engine, for one request at a time.
#[derive(Debug)]
pub struct Conn {
    peer: Peer,
    sender: SendRequest<RequestBody>,
    traffic: Arc<Traffic>,
    reused: bool,
    /// Between a request and the end of its answer.
    is_busy: bool,
    _driver: Driver,
}

impl Drop for Conn {
    fn drop(&mut self) {
        if self.is_busy {
            self.traffic.leave();
        }
    }
}

/// No answer's head came.
#[derive(Debug)]
pub struct Failure {
    /// What is known of it.
    pub facts: Facts,
    /// Why.
    pub error: hyper::Error,
}

impl Conn {
    /// Whom it leads to.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether another request may be sent on it now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// The answer has ended.
    pub(super) const fn rest(&mut self) {
        self.is_busy = false;
    }

    /// Sends a request and waits for the answer's head.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Failure> {
        self.is_busy = true;
        let before = self.traffic.begin();
        let reused = std::mem::replace(&mut self.reused, true);
        self.sender.try_send_request(request).await.map_err(|mut e| {
            let facts = Facts {
                reused,
                unsent: e.take_message().is_some(),
                heard: self.traffic.heard(),
                unacked: self.traffic.nothing_acked_beyond(before),
            };
            Failure { facts, error: e.into_error() }
        })
    }
}

/// The task that drives one connection; ends with its owner.
#[derive(Debug)]
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// hyper takes 100 fields by default; engines behind other proxies may send more.
fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.max_headers(HEAD_FIELDS_MAX);
    http
}

/// Runs a connection until it ends or its [`Conn`] is dropped.
fn spawn_driver(
    backend: BackendId,
    connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
) -> Driver {
    let task = tokio::spawn(async move {
        // The request on it hears of the error too, and tells the client.
        if let Err(error) = connection.await {
            tracing::trace!(backend = backend.index(), %error, "upstream connection ended");
        }
    });
    Driver(task.abort_handle())
}
