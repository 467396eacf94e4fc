//! A request's body that goes on as the client sends it: an upload is not held in memory.
//!
//! It can be sent once only. Its bounds are those of every body: bytes in all, and the time without a byte, counted
//! only while the engine wants more. Invariant: a body that broke its bounds ends in an error, so an engine never
//! takes it for whole; [`Fault`] tells the client why.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::Sleep;

use super::pace::Pace;

/// A request's body.
#[derive(Debug)]
pub enum RequestBody {
    /// Held whole.
    Held(Bytes),
    /// Passed on.
    Passed(Box<Upload>),
}

/// Why an upload did not reach its end; none of it is the engine's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// More bytes than a body may have.
    #[error("the body is over its limit")]
    TooLarge,
    /// The client stopped sending.
    #[error("the body stopped coming")]
    Stalled,
    /// The client broke off.
    #[error("the client broke off")]
    ClientGone,
}

/// The fault of an upload, once there is one.
#[derive(Clone, Debug, Default)]
pub struct FaultSeen(Arc<OnceLock<Fault>>);

impl FaultSeen {
    /// The fault, if there was one.
    #[must_use]
    pub fn get(&self) -> Option<Fault> {
        self.0.get().copied()
    }
}

/// What was read already, then the rest.
#[derive(Debug)]
pub struct Upload {
    begun: Bytes,
    rest: Incoming,
    // Bytes that may still come.
    left: u64,
    pace: Pace,
    // Runs while the client is waited for, since then.
    pause: Option<(Instant, Pin<Box<Sleep>>)>,
    fault: FaultSeen,
}

impl Upload {
    /// `begun` was read from `rest`'s body before; of the rest `left` bytes may come, with pauses of at most
    /// `pause_max`; see [`Pace`].
    #[must_use]
    pub fn new(begun: Bytes, rest: Incoming, left: u64, pause_max: Duration) -> Self {
        Self { begun, rest, left, pace: Pace::new(pause_max), pause: None, fault: FaultSeen::default() }
    }

    /// Where its fault will be seen.
    #[must_use]
    pub fn fault(&self) -> FaultSeen {
        self.fault.clone()
    }

    fn broke(&self, fault: Fault) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        // The first is the one that counts.
        let _told = self.fault.0.set(fault);
        Poll::Ready(Some(Err(fault)))
    }

    fn came(&mut self, frame: Frame<Bytes>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        let waited = self.pause.take().map_or(Duration::ZERO, |(since, _)| since.elapsed());
        self.pace.came(waited, bytes);
        match self.left.checked_sub(bytes) {
            None => self.broke(Fault::TooLarge),
            Some(left) => {
                self.left = left;
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let patience = self.pace.patience();
        let sleep = || (Instant::now(), Box::pin(tokio::time::sleep(patience)));
        let (_since, pause) = self.pause.get_or_insert_with(sleep);
        match pause.as_mut().poll(cx) {
            Poll::Ready(()) => self.broke(Fault::Stalled),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let this = self.get_mut();
        if !this.begun.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.begun)))));
        }
        match Pin::new(&mut this.rest).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => this.came(frame),
            Poll::Ready(Some(Err(_broken_off))) => this.broke(Fault::ClientGone),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => this.wait(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.size_hint();
        let begun = self.begun.len() as u64;
        rest.exact().map_or_else(SizeHint::new, |rest| SizeHint::with_exact(begun + rest))
    }
}
