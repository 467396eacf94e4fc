//! A socket to an engine that notes what becomes of a request on it: whether anything was heard, and how much of
//! what was written the engine's kernel acknowledged.
//!
//! The kernel is asked when the connection ends (`TCP_INFO`), never while it serves. Invariants: "nothing was
//! acknowledged" is said only where the kernel said so; dropping it closes the socket at once.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connect::Cancelled;
use super::open::Listed;

/// The socket, and what is known of the request on it.
pub(super) struct Socket {
    // `None` while it is dropped only.
    stream: Option<TcpStream>,
    /// A request is on it whose answer has not ended.
    is_busy: bool,
    /// A byte arrived since the request began.
    pub(super) heard: bool,
    /// Bytes written so far, by all requests.
    pub(super) written: u64,
    /// Bytes acknowledged before anything was written (the handshake counts as one), if the kernel said so.
    acked_at_start: Option<u64>,
    /// Bytes acknowledged when the connection ended.
    acked_at_end: Option<u64>,
    /// The engine broke the connection off instead of closing it.
    was_reset: bool,
    cancelled: Option<Cancelled>,
    listed: Option<Listed>,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket")
            .field("stream", &self.stream)
            .field("heard", &self.heard)
            .finish_non_exhaustive()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let is_cancelled = self.is_busy && self.acked_at_end.is_none();
        let left = is_cancelled.then(Instant::now);
        drop(self.listed.take());
        drop(self.stream.take());
        if let (Some(left), Some(tell)) = (left, &self.cancelled) {
            tell(left.elapsed());
        }
    }
}

impl Socket {
    /// A connected socket on which nothing was written.
    pub(super) fn new(stream: TcpStream, cancelled: Option<Cancelled>, listed: Option<Listed>) -> Self {
        let acked_at_start = bytes_acked(stream.as_fd());
        Self {
            stream: Some(stream),
            is_busy: false,
            heard: false,
            written: 0,
            acked_at_start,
            acked_at_end: None,
            was_reset: false,
            cancelled,
            listed,
        }
    }

    /// A request begins: forgets what was heard, and returns what was written before it.
    pub(super) const fn begin(&mut self) -> u64 {
        self.heard = false;
        self.is_busy = true;
        self.written
    }

    /// The answer has ended.
    pub(super) const fn rest(&mut self) {
        self.is_busy = false;
    }

    /// Nobody ends it from outside any more.
    pub(super) fn unlist(&mut self) {
        self.listed = None;
    }

    /// The socket itself, for what is no HTTP.
    pub(super) const fn stream(&mut self) -> &mut TcpStream {
        self.stream.as_mut().expect("invariant: it is there until the drop")
    }

    /// Whether an idle connection is open and nothing was said on it unasked. Makes no system call unless the
    /// engine did something.
    pub(super) fn is_quiet(&self) -> bool {
        let read = self.stream.as_ref().map(|stream| stream.try_read(&mut [0]));
        matches!(read, Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether the kernel says that nothing beyond the first `before` bytes was acknowledged.
    pub(super) fn nothing_acked_beyond(&self, before: u64) -> bool {
        match (self.acked_at_start, self.acked_at_end) {
            (Some(start), Some(end)) if !self.was_reset => end.saturating_sub(start) <= before,
            _ => false,
        }
    }

    /// Reads what is there; 0 at the connection's end.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut to = ReadBuf::new(to);
        let read = std::task::ready!(Pin::new(self.stream()).poll_read(cx, &mut to));
        let bytes = to.filled().len();
        match read {
            Ok(()) if bytes > 0 => self.heard = true,
            Ok(()) => self.ended(None),
            Err(ref error) => self.ended(Some(error)),
        }
        Poll::Ready(read.map(|()| bytes))
    }

    /// Writes some of it.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = std::task::ready!(Pin::new(self.stream()).poll_write_vectored(cx, from));
        match wrote {
            Ok(bytes) => self.written += bytes as u64,
            Err(ref error) => self.ended(Some(error)),
        }
        Poll::Ready(wrote)
    }

    /// Notes what the kernel knows, once the connection has ended. A reset that no FIN preceded (`ECONNRESET`; after
    /// one it is `EPIPE`) proves nothing: Linux does not look at what it acknowledges.
    fn ended(&mut self, error: Option<&io::Error>) {
        self.was_reset |= error.is_some_and(|e| e.kind() == io::ErrorKind::ConnectionReset);
        self.acked_at_end = bytes_acked(self.stream().as_fd()).or(self.acked_at_end);
    }
}

/// Where `tcpi_bytes_acked` lies in Linux's `struct tcp_info` (linux/tcp.h, since 4.1); libc's ends before it.
const BYTES_ACKED_AT: usize = 120;

/// Bytes that the peer's kernel acknowledged, the handshake among them.
fn bytes_acked(socket: BorrowedFd<'_>) -> Option<u64> {
    let info = tcp_info::<{ BYTES_ACKED_AT + size_of::<u64>() }>(socket)?;
    info.last_chunk().copied().map(u64::from_ne_bytes)
}

/// The first bytes of Linux's `struct tcp_info`, if the kernel tells so many.
#[expect(unsafe_code, reason = "TCP_INFO has no safe wrapper that reaches so far")]
pub(super) fn tcp_info<const N: usize>(socket: BorrowedFd<'_>) -> Option<[u8; N]> {
    let mut info = [0_u8; N];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `info`.
    let result = unsafe {
        let info = info.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, &raw mut length)
    };
    (result == 0 && length as usize >= N).then_some(info)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{IoSlice, Read, Write};
    use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};

    use tokio::net::TcpStream;

    use super::Socket;
    use crate::forward::test_engine::until;

    fn pair() -> (Socket, StdStream) {
        let listener = StdListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let ours = StdStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        (Socket::new(TcpStream::from_std(ours).unwrap(), None, None), listener.accept().unwrap().0)
    }

    async fn write(socket: &mut Socket, bytes: &[u8]) {
        let wrote = poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(bytes)])).await;
        assert_eq!(wrote.unwrap(), bytes.len());
    }

    /// Reads once; 0 also for an error.
    async fn read(socket: &mut Socket) -> usize {
        poll_fn(|cx| socket.poll_read(cx, &mut [0; 64])).await.unwrap_or(0)
    }

    /// A request that is answered.
    async fn first(socket: &mut Socket, theirs: &mut StdStream) {
        write(socket, b"request").await;
        theirs.read_exact(&mut [0; 7]).unwrap();
        theirs.write_all(b"answer").unwrap();
        assert_eq!(read(socket).await, 6);
    }

    #[tokio::test]
    async fn a_request_to_a_socket_that_was_closed_is_not_acknowledged() {
        let (mut socket, mut theirs) = pair();
        first(&mut socket, &mut theirs).await;
        drop(theirs);
        let before = socket.begin();
        assert_eq!(before, 7);
        write(&mut socket, b"too late").await;
        // The end of the stream was there before; what follows it says more.
        for _ in 0..2 {
            assert_eq!(read(&mut socket).await, 0);
        }
        assert!(!socket.heard);
        assert!(socket.nothing_acked_beyond(before));
    }

    #[tokio::test]
    async fn a_request_that_was_read_before_the_end_is_acknowledged() {
        let (mut socket, mut theirs) = pair();
        first(&mut socket, &mut theirs).await;
        let before = socket.begin();
        write(&mut socket, b"request").await;
        theirs.read_exact(&mut [0; 7]).unwrap();
        drop(theirs);
        assert_eq!(read(&mut socket).await, 0);
        assert!(!socket.heard);
        assert!(!socket.nothing_acked_beyond(before));
    }

    #[tokio::test]
    async fn before_its_end_nothing_is_said_of_a_connection() {
        let (mut socket, mut theirs) = pair();
        let before = socket.begin();
        assert!(!socket.nothing_acked_beyond(before));
        first(&mut socket, &mut theirs).await;
        assert!(socket.heard && !socket.nothing_acked_beyond(before));
    }

    #[tokio::test]
    async fn an_idle_connection_is_quiet_until_the_engine_closes_it_or_speaks() {
        for ends in
            [|theirs: StdStream| drop(theirs), |mut theirs: StdStream| theirs.write_all(b"x").unwrap()]
        {
            let (mut socket, mut theirs) = pair();
            first(&mut socket, &mut theirs).await;
            assert!(socket.is_quiet());
            ends(theirs);
            until(|| !socket.is_quiet()).await;
        }
    }
}
