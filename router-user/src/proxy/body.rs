//! The request's body, read whole and within two bounds: one for each body, one for all of them together.
//!
//! The bytes are kept as they came, to be forwarded unchanged. Invariant: what a body holds of the budget goes back
//! when it is dropped.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use parking_lot::Mutex;

use crate::error::ProxyError;
use crate::forward::pace::Pace;

/// Bytes that all bodies together may still take.
#[derive(Debug)]
pub struct Budget(AtomicU64);

impl Budget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(bytes)))
    }

    /// Bytes left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        let left = |left: u64| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }
}

/// A whole body.
#[derive(Debug)]
pub struct HeldBody {
    /// Its bytes.
    pub bytes: Bytes,
    buffers: Arc<Buffers>,
    _held: Held,
}

impl Drop for HeldBody {
    /// The buffer is used again if nobody else has it: the engine's connection lets go of it before it answers.
    fn drop(&mut self) {
        if self.bytes.len() >= BUFFER_BYTES_MIN
            && let Ok(buffer) = std::mem::take(&mut self.bytes).try_into_mut()
        {
            self.buffers.put(buffer);
        }
    }
}

/// Smaller bodies come in one piece, which is the socket's.
const BUFFER_BYTES_MIN: usize = 256 << 10;

/// A body in one piece is copied below this: half of the smallest buffer that the piece can be a part of.
const COPIED_BYTES: usize = 4 << 10;

/// What a worker keeps of buffers, in all.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Buffers of one worker for large bodies: fresh memory of a megabyte costs more than filling it.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<BytesMut>>);

impl Buffers {
    /// One of at least `bytes`.
    fn take(&self, bytes: usize) -> BytesMut {
        let mut kept = self.0.lock();
        let found = kept.iter().rposition(|buffer| buffer.capacity() >= bytes);
        found.map_or_else(|| BytesMut::with_capacity(bytes), |at| kept.swap_remove(at))
    }

    fn put(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut kept = self.0.lock();
        let bytes: usize = kept.iter().map(BytesMut::capacity).sum();
        if bytes + buffer.capacity() <= KEPT_BYTES_MAX {
            kept.push(buffer);
        }
    }
}

/// A part of the budget.
#[derive(Debug)]
struct Held {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Held {
    fn grow(&mut self, bytes: u64) -> Result<(), ProxyError> {
        if bytes > 0 && !self.budget.take(bytes) {
            return Err(ProxyError::BodyBudget);
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Bounds of one body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Bytes.
    pub bytes_max: u64,
    /// The longest time without a byte; see [`Pace`] for many short ones.
    pub pause_max: Duration,
    /// So much is read before the rest is left to be passed on.
    pub hold_max: u64,
}

/// A body as far as it was read.
#[derive(Debug)]
pub struct Begun {
    /// What was read.
    pub body: HeldBody,
    /// Whether that is all.
    pub is_whole: bool,
}

/// Reads a body whole, or until more than `hold_max` bytes of it are here. A `Content-Length` is checked and taken from the budget before the first byte is read; a
/// body without one is counted as it comes. No copy if it came in one piece, unless it is small.
///
/// # Errors
/// [`ProxyError::BodyTooLarge`], [`ProxyError::BodyBudget`], [`ProxyError::BodyStalled`], or
/// [`ProxyError::ClientGone`] if the client broke off.
pub async fn read(
    body: &mut Incoming,
    limits: BodyLimits,
    budget: &Arc<Budget>,
    buffers: &Arc<Buffers>,
) -> Result<Begun, ProxyError> {
    let announced = body.size_hint().exact();
    let mut held = Held { budget: Arc::clone(budget), bytes: 0 };
    let too_large = ProxyError::BodyTooLarge { limit_bytes: limits.bytes_max };
    if let Some(bytes) = announced {
        if bytes > limits.bytes_max {
            return Err(too_large);
        }
        held.grow(bytes.min(limits.hold_max))?;
    }
    let mut pieces = Pieces::new(announced.map(|bytes| bytes.min(limits.hold_max)), buffers);
    let mut is_whole = true;
    let mut pace = Pace::new(limits.pause_max);
    loop {
        let (frame, waited) = next(body, pace.patience()).await?;
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|_broken_off| ProxyError::ClientGone)?.into_data() else { continue };
        pace.came(waited, data.len() as u64);
        let length = pieces.len() + data.len() as u64;
        if length > limits.bytes_max {
            return Err(too_large);
        }
        if length > held.bytes {
            held.grow(length - held.bytes)?;
        }
        pieces.push(data);
        if body.is_end_stream() {
            break;
        }
        if pieces.len() >= limits.hold_max {
            is_whole = false;
            break;
        }
    }
    let bytes = pieces.join();
    Ok(Begun { body: HeldBody { bytes, buffers: Arc::clone(buffers), _held: held }, is_whole })
}

/// The next frame, and how long it was waited for.
async fn next(
    body: &mut Incoming,
    patience: Duration,
) -> Result<(Option<Result<Frame<Bytes>, hyper::Error>>, Duration), ProxyError> {
    // One that is there, as that of a small body is, costs neither a timer nor a look at the clock.
    if let Poll::Ready(frame) = poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await {
        return Ok((frame, Duration::ZERO));
    }
    let asked = Instant::now();
    let frame = tokio::time::timeout(patience, body.frame()).await;
    Ok((frame.map_err(|_elapsed| ProxyError::BodyStalled)?, asked.elapsed()))
}

/// Pieces of a body: the first as it is, joined only if there is a second.
struct Pieces<'b> {
    announced: Option<u64>,
    buffers: &'b Buffers,
    first: Bytes,
    joined: BytesMut,
}

impl<'b> Pieces<'b> {
    fn new(announced: Option<u64>, buffers: &'b Buffers) -> Self {
        Self { announced, buffers, first: Bytes::new(), joined: BytesMut::new() }
    }

    fn len(&self) -> u64 {
        self.first.len().max(self.joined.len()) as u64
    }

    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.joined.is_empty() {
            let announced = self.announced.and_then(|bytes| usize::try_from(bytes).ok());
            let bytes = announced.unwrap_or_default().max(self.first.len() + data.len());
            self.joined = self.buffers.take(bytes);
            self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.joined.extend_from_slice(&data);
    }

    fn join(self) -> Bytes {
        match (self.joined.is_empty(), self.first.len()) {
            // It holds the buffer that it was read into, which would be kept until the engine answers.
            (true, ..COPIED_BYTES) => Bytes::copy_from_slice(&self.first),
            (true, _) => self.first,
            (false, _) => self.joined.freeze(),
        }
    }
}

/// Reads on and throws away, so that a client that is still writing gets to read its error: at most `bytes_max`
/// bytes, and only while they keep coming.
pub async fn discard(mut body: Incoming, bytes_max: u64) {
    const PAUSE_MAX: Duration = Duration::from_millis(100);
    let mut read = 0;
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(PAUSE_MAX, body.frame()).await {
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
        if read > bytes_max {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BUFFER_BYTES_MIN, Budget, Buffers, COPIED_BYTES, Held, HeldBody, KEPT_BYTES_MAX, Pieces};
    use bytes::Bytes;
    use std::sync::Arc;

    #[test]
    fn the_budget_refuses_what_it_lacks_and_gets_everything_back() {
        let budget = Budget::new(10);
        let mut a = Held { budget: Arc::clone(&budget), bytes: 0 };
        let mut b = Held { budget: Arc::clone(&budget), bytes: 0 };
        a.grow(6).unwrap();
        assert!(b.grow(5).is_err());
        b.grow(4).unwrap();
        assert_eq!(budget.left(), 0);
        drop(a);
        assert_eq!(budget.left(), 6);
        drop(b);
        assert_eq!(budget.left(), 10);
    }

    #[test]
    fn pieces_join_in_order() {
        for announced in [None, Some(6)] {
            let buffers = Buffers::default();
            let mut pieces = Pieces::new(announced, &buffers);
            for piece in ["ab", "c", "def"] {
                pieces.push(Bytes::from_static(piece.as_bytes()));
            }
            assert_eq!(pieces.join(), "abcdef");
        }
    }

    #[test]
    fn one_piece_is_copied_only_if_it_is_small() {
        for (len, is_copied) in [(3, true), (COPIED_BYTES - 1, true), (COPIED_BYTES, false)] {
            let only = Bytes::from(vec![b'x'; len]);
            let at = only.as_ptr();
            let buffers = Buffers::default();
            let mut pieces = Pieces::new(None, &buffers);
            pieces.push(only.clone());
            let joined = pieces.join();
            assert_eq!((joined.as_ptr() != at, &joined), (is_copied, &only), "{len}");
        }
    }

    fn large(buffers: &Arc<Buffers>) -> HeldBody {
        let mut pieces = Pieces::new(None, buffers);
        let half = Bytes::from(vec![b'x'; BUFFER_BYTES_MIN]);
        [half.clone(), half].into_iter().for_each(|half| pieces.push(half));
        let held = Held { budget: Budget::new(0), bytes: 0 };
        HeldBody { bytes: pieces.join(), buffers: Arc::clone(buffers), _held: held }
    }

    #[test]
    fn the_buffer_of_a_large_body_is_used_again_once_nobody_has_it() {
        let buffers = Arc::new(Buffers::default());
        let (first, second) = (large(&buffers), large(&buffers));
        let (at, still_sent) = (first.bytes.as_ptr(), second.bytes.clone());
        drop((first, second));
        assert_eq!(large(&buffers).bytes.as_ptr(), at);
        assert_ne!(large(&buffers).bytes.as_ptr(), still_sent.as_ptr(), "somebody has it");
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let buffers = Arc::new(Buffers::default());
        let all: Vec<_> = (0..2 * KEPT_BYTES_MAX / BUFFER_BYTES_MIN).map(|_| large(&buffers)).collect();
        drop(all);
        let kept: usize = buffers.0.lock().iter().map(|b| b.capacity()).sum();
        assert!((KEPT_BYTES_MAX / 2..=KEPT_BYTES_MAX).contains(&kept), "{kept}");
    }
}
