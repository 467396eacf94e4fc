//! A client's socket whose bytes were checked by [`Framing`] before hyper sees them.
//!
//! From the first offence on hyper gets a byte that no message may hold there, answers 400 and closes. A tunnelled
//! connection is no longer HTTP and passes unchecked. Invariant: hyper sees every byte before the offence.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::framing::{Framing, Stop};

/// Whether the connection became a tunnel; shared with who answers on it.
#[derive(Clone, Debug, Default)]
pub struct Tunnel(Arc<AtomicBool>);

impl Tunnel {
    /// From now on the bytes are no HTTP.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether the connection is to end by a reset; shared with who drives it.
#[derive(Clone, Debug, Default)]
pub(super) struct Reset(Arc<AtomicBool>);

impl Reset {
    /// It ends so.
    pub(super) fn at_close(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The socket.
#[derive(Debug)]
pub(super) struct Checked {
    stream: TcpStream,
    framing: Framing,
    tunnel: Tunnel,
    reset: Reset,
    is_refused: bool,
}

impl Drop for Checked {
    fn drop(&mut self) {
        if self.reset.0.load(Ordering::Relaxed) {
            // Nothing is left to do for a socket that will not be reset.
            let _kept = self.stream.set_zero_linger();
        }
    }
}

impl Checked {
    pub(super) fn new(stream: TcpStream, tunnel: Tunnel, reset: Reset) -> Self {
        Self { stream, framing: Framing::default(), tunnel, reset, is_refused: false }
    }

    /// Cuts what was read at its first offence.
    fn check(&mut self, buf: &mut ReadBuf<'_>, before: usize) {
        let Err(Stop { at, offence }) = self.framing.pass(&buf.filled()[before..]) else { return };
        tracing::debug!(?offence, "a client's message is framed ambiguously: refused");
        self.is_refused = true;
        buf.set_filled(before + at);
        // There is room: the offending byte was here.
        buf.put_slice(b"\0");
    }
}

impl AsyncRead for Checked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_refused {
            // The end of the stream.
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if !self.tunnel.has_begun() {
            self.check(buf, before);
        }
        Poll::Ready(Ok(()))
    }
}

/// Not vectored, so that hyper copies an answer's pieces into the buffer that it has for heads: a token is small, and
/// a list of pieces costs more than to copy them.
impl AsyncWrite for Checked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
