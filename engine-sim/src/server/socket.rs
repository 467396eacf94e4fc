//! A client's connection, which a handler can make end in a reset.
//!
//! Not here: when to. Invariant: once a reset is asked for, no FIN goes out before it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What the handlers of one connection say to it.
#[derive(Debug, Default)]
pub(super) struct Link {
    resets: AtomicBool,
    survives: AtomicBool,
    is_admin: bool,
}

impl Link {
    /// Of a connection that came by the other port.
    pub(super) fn admin() -> Self {
        Self { resets: AtomicBool::new(false), survives: AtomicBool::new(true), is_admin: true }
    }

    pub(super) fn is_admin(&self) -> bool {
        self.is_admin
    }

    /// The connection, when it ends, ends by RST.
    pub(super) fn reset(&self) {
        self.resets.store(true, Ordering::Relaxed);
    }

    /// A restart does not cut this connection, since it carries the answer to the one who asked for it.
    pub(super) fn survive(&self) {
        self.survives.store(true, Ordering::Relaxed);
    }

    pub(super) fn survives(&self) -> bool {
        self.survives.load(Ordering::Relaxed)
    }
}

/// The stream itself.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    link: Arc<Link>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, link: Arc<Link>) -> Self {
        Self { stream, link }
    }

    fn resets(&self) -> bool {
        self.link.resets.load(Ordering::Relaxed)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.resets()
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::warn!(%error, "a connection ends by FIN where RST was asked for");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.resets() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }
}
