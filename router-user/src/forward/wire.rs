//! A socket to an engine that notes what becomes of a request on it: whether anything was heard, and how much of
//! what was written the engine's kernel acknowledged.
//!
//! The kernel is asked when the connection ends (`TCP_INFO`), never while it serves. Invariant: "nothing was
//! acknowledged" is said only where the kernel said so.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connect::Cancelled;

/// The kernel gave no number.
const UNKNOWN: u64 = u64::MAX;

/// What is known of one connection; shared by its socket and by who waits for the answer.
#[derive(Debug)]
pub(super) struct Traffic {
    heard: AtomicBool,
    /// Bytes written so far.
    written: AtomicU64,
    /// Bytes acknowledged before anything was written: the handshake counts as one.
    acked_at_start: u64,
    /// Bytes acknowledged when the connection ended; [`UNKNOWN`] before.
    acked_at_end: AtomicU64,
    /// The engine broke the connection off instead of closing it.
    was_reset: AtomicBool,
    /// When nobody waited any more for an answer on it.
    left: OnceLock<Instant>,
}

impl Traffic {
    fn new(stream: &TcpStream) -> Self {
        Self {
            heard: AtomicBool::new(false),
            written: AtomicU64::new(0),
            acked_at_start: bytes_acked(stream.as_fd()).unwrap_or(UNKNOWN),
            acked_at_end: AtomicU64::new(UNKNOWN),
            was_reset: AtomicBool::new(false),
            left: OnceLock::new(),
        }
    }

    /// Nobody waits for the answer any more.
    pub(super) fn leave(&self) {
        let _first = self.left.set(Instant::now());
    }

    /// A request begins: forgets what was heard, and returns what was written before it.
    pub(super) fn begin(&self) -> u64 {
        self.heard.store(false, Ordering::Relaxed);
        self.written.load(Ordering::Relaxed)
    }

    /// Whether a byte arrived since the request began.
    pub(super) fn heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Whether the kernel says that nothing beyond the first `before` bytes was acknowledged.
    pub(super) fn nothing_acked_beyond(&self, before: u64) -> bool {
        let at_end = self.acked_at_end.load(Ordering::Relaxed);
        if self.acked_at_start == UNKNOWN || at_end == UNKNOWN || self.was_reset.load(Ordering::Relaxed) {
            return false;
        }
        at_end.saturating_sub(self.acked_at_start) <= before
    }
}

/// The socket.
pub(super) struct Wire {
    stream: TcpStream,
    traffic: Arc<Traffic>,
    cancelled: Option<Cancelled>,
    writing: Writing,
}

/// An engine may refuse a body it has not read: it answers and closes, and writing on fails before its answer was
/// read. So a write that failed stays pending until reading has ended too.
#[derive(Debug)]
enum Writing {
    Open,
    /// It failed; to be woken when reading ends.
    Failed(Waker),
    Ended,
}

impl Drop for Wire {
    /// The socket closes right after.
    fn drop(&mut self) {
        let is_open = self.traffic.acked_at_end.load(Ordering::Relaxed) == UNKNOWN;
        if let (true, Some(left), Some(tell)) = (is_open, self.traffic.left.get(), &self.cancelled) {
            tell(left.elapsed());
        }
    }
}

impl Wire {
    /// A connected socket on which nothing was written.
    pub(super) fn new(stream: TcpStream, cancelled: Option<Cancelled>) -> Self {
        let traffic = Arc::new(Traffic::new(&stream));
        Self { stream, traffic, cancelled, writing: Writing::Open }
    }

    /// What becomes of requests on it.
    pub(super) fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.traffic)
    }

    /// Notes what the kernel knows, once the connection has ended. A reset that no FIN preceded (`ECONNRESET`; after
    /// one it is `EPIPE`) proves nothing: Linux does not look at what it acknowledges.
    fn ended(&self, error: Option<&io::Error>) {
        if error.is_some_and(|e| e.kind() == io::ErrorKind::ConnectionReset) {
            self.traffic.was_reset.store(true, Ordering::Relaxed);
        }
        if let Some(acked) = bytes_acked(self.stream.as_fd()) {
            self.traffic.acked_at_end.store(acked, Ordering::Relaxed);
        }
    }

    /// Writes, and notes what became of it.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match self.writing {
            Writing::Open => {}
            Writing::Failed(ref mut waker) => {
                waker.clone_from(cx.waker());
                return Poll::Pending;
            }
            Writing::Ended => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
        match write(Pin::new(&mut self.stream), cx) {
            Poll::Ready(Ok(bytes)) => {
                // One task writes.
                let written = self.traffic.written.load(Ordering::Relaxed);
                self.traffic.written.store(written + bytes as u64, Ordering::Relaxed);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => {
                self.ended(Some(&error));
                self.writing = Writing::Failed(cx.waker().clone());
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Nothing more can be read; a write that failed may say so now.
    fn read_ended(&mut self, error: Option<&io::Error>) {
        self.ended(error);
        if let Writing::Failed(waker) = &self.writing {
            waker.wake_by_ref();
            self.writing = Writing::Ended;
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.traffic.heard.store(true, Ordering::Relaxed);
        } else if let Poll::Ready(read) = &polled {
            self.read_ended(read.as_ref().err());
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

/// Where `tcpi_bytes_acked` lies in Linux's `struct tcp_info` (linux/tcp.h, since 4.1); libc's ends before it.
const BYTES_ACKED_AT: usize = 120;

/// Bytes that the peer's kernel acknowledged, the handshake among them.
#[expect(unsafe_code, reason = "TCP_INFO has no safe wrapper that reaches so far")]
fn bytes_acked(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut info = [0_u8; BYTES_ACKED_AT + size_of::<u64>()];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `info`.
    let result = unsafe {
        let info = info.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, &raw mut length)
    };
    if result != 0 || (length as usize) < info.len() {
        return None;
    }
    info.last_chunk().copied().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::{Traffic, Wire};

    fn pair() -> (Wire, Arc<Traffic>, StdStream) {
        let listener = StdListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let ours = StdStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        let wire = Wire::new(TcpStream::from_std(ours).unwrap(), None);
        let traffic = wire.traffic();
        (wire, traffic, listener.accept().unwrap().0)
    }

    /// A request that is answered.
    async fn first(wire: &mut Wire, theirs: &mut StdStream) {
        wire.write_all(b"request").await.unwrap();
        theirs.read_exact(&mut [0; 7]).unwrap();
        theirs.write_all(b"answer").unwrap();
        wire.read_exact(&mut [0; 6]).await.unwrap();
    }

    /// Reads to the connection's end.
    async fn end(wire: &mut Wire) {
        let _reset = wire.read(&mut [0; 64]).await;
    }

    #[tokio::test]
    async fn a_request_to_a_socket_that_was_closed_is_not_acknowledged() {
        let (mut wire, traffic, mut theirs) = pair();
        first(&mut wire, &mut theirs).await;
        drop(theirs);
        let before = traffic.begin();
        assert_eq!(before, 7);
        wire.write_all(b"too late").await.unwrap();
        // The end of the stream was there before; what follows it says more.
        for _ in 0..2 {
            end(&mut wire).await;
        }
        assert!(!traffic.heard());
        assert!(traffic.nothing_acked_beyond(before), "{traffic:?}");
    }

    #[tokio::test]
    async fn a_request_that_was_read_before_the_end_is_acknowledged() {
        let (mut wire, traffic, mut theirs) = pair();
        first(&mut wire, &mut theirs).await;
        let before = traffic.begin();
        wire.write_all(b"request").await.unwrap();
        theirs.read_exact(&mut [0; 7]).unwrap();
        drop(theirs);
        end(&mut wire).await;
        assert!(!traffic.heard());
        assert!(!traffic.nothing_acked_beyond(before), "{traffic:?}");
    }

    #[tokio::test]
    async fn before_its_end_nothing_is_said_of_a_connection() {
        let (mut wire, traffic, mut theirs) = pair();
        let before = traffic.begin();
        assert!(!traffic.nothing_acked_beyond(before));
        first(&mut wire, &mut theirs).await;
        assert!(traffic.heard() && !traffic.nothing_acked_beyond(before));
    }
}
