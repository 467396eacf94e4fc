//! The admin listener: a TCP port, or a Unix socket that only its owner may open; and the connections it takes.
//!
//! It runs beside the data plane and is bounded: connections, heads, time for a head, time for bytes to be taken.
//! Connections beyond the bound wait in the accept queue.

use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::answer::Answer;
use super::auth::Via;

/// Connections at once.
const CONNS_MAX: usize = 64;
/// Request line and headers.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Time for a head to arrive; an idle connection is closed then too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A peer that takes no byte for so long is gone, milliseconds.
const UNTAKEN_MS_MAX: u32 = 60_000;
/// Pause when the process has no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    /// TCP; does not block.
    Tcp(std::net::TcpListener),
    /// A Unix socket; does not block.
    Unix(UnixSocket),
}

/// A listening Unix socket. Dropping it removes its file, unless another took its place.
#[derive(Debug)]
pub struct UnixSocket {
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    file: (u64, u64),
}

impl UnixSocket {
    /// Binds a socket with a file of mode 0600. A file of a socket that nobody listens at is replaced.
    ///
    /// # Errors
    /// Something else is there, or somebody listens; or the file cannot be made.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let addr = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::bind(&socket, &addr) {
            Err(rustix::io::Errno::ADDRINUSE) => {
                remove_stale(path)?;
                rustix::net::bind(&socket, &addr)?;
            }
            bound => bound?,
        }
        // Before it listens: until then nobody can connect.
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        rustix::net::listen(&socket, CONNS_MAX as i32)?;
        let file = identity(path)?;
        Ok(Self { listener: socket.into(), path: path.to_owned(), file })
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.file) {
            // It is stale from here on, and the next one replaces it.
            let _left: io::Result<()> = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is there"));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// Serves for ever what `answer` says. Dropping the future closes the listener and all connections.
///
/// # Errors
/// The listener cannot be registered with this runtime.
pub(in crate::observe) async fn serve<F, Fut>(listener: Listener, answer: F) -> io::Result<()>
where
    F: Fn(Request<Incoming>, Via) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(CONNS_MAX));
    let mut connections = JoinSet::new();
    match listener {
        Listener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            let is_loopback = listener.local_addr()?.ip().to_canonical().is_loopback();
            let via = if is_loopback { Via::Loopback } else { Via::Network };
            loop {
                let permit = room(&permits, &mut connections).await;
                match listener.accept().await {
                    Ok((stream, _)) => {
                        // Without it a peer that vanished keeps its place for a quarter of an hour.
                        let _best_effort = sockopt::set_tcp_user_timeout(&stream, UNTAKEN_MS_MAX);
                        connections.spawn(connection(stream, via, answer.clone(), permit));
                    }
                    Err(error) => pause(&error).await,
                }
            }
        }
        Listener::Unix(socket) => {
            let listener = UnixListener::from_std(socket.listener.try_clone()?)?;
            loop {
                let permit = room(&permits, &mut connections).await;
                match listener.accept().await {
                    Ok((stream, _)) => {
                        connections.spawn(connection(stream, Via::Unix, answer.clone(), permit));
                    }
                    Err(error) => pause(&error).await,
                }
            }
        }
    }
}

/// Room for one more connection.
async fn room(permits: &Arc<Semaphore>, connections: &mut JoinSet<()>) -> tokio::sync::OwnedSemaphorePermit {
    let permit = Arc::clone(permits).acquire_owned().await.expect("invariant: nobody closes the semaphore");
    // Ended connections leave the set here; it holds at most the bound and those not yet collected.
    while connections.try_join_next().is_some() {}
    permit
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "the admin listener cannot accept");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

async fn connection<S, F, Fut>(stream: S, via: Via, answer: F, permit: tokio::sync::OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>, Via) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(request, via);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "an admin connection broke off");
    }
    drop(permit);
}

#[cfg(test)]
mod tests {
    use super::UnixSocket;
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_is_its_owners_alone_and_gone_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let socket = UnixSocket::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_socket_that_nobody_listens_at_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let first = UnixSocket::bind(&path).unwrap();
        assert_eq!(UnixSocket::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        UnixStream::connect(&path).expect("the first one is still there");
        // A process that was killed leaves its file behind.
        let stale = dir.path().join("stale.sock");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        let second = UnixSocket::bind(&stale).unwrap();
        UnixStream::connect(&stale).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        assert_eq!(UnixSocket::bind(&file).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        drop((first, second));
    }

    #[test]
    fn the_end_leaves_a_file_that_another_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let first = UnixSocket::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = UnixSocket::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).expect("the second one is still there");
        drop(second);
    }
}
