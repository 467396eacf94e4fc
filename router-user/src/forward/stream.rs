//! The answer's body on its way to the client: frames go on as they come, and its [`Progress`] hears of it.
//!
//! Owns the engine's connection while the body runs. Invariant: exactly one end is told, at the moment the last
//! frame is *seen*, not when the client has it: the next request of the same client finds the count given back.
//! Dropping the body before its end closes the connection; the engine stops.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header;
use router_policy::Outcome;

use super::Upstream;
use super::conn::{AnswerError, Conn};
use super::events::{Boundary, COMMENT};
use super::pool::{After, Pool};
use super::silence::{Due, Silence, SilenceLimits};

/// Who is told how an answer goes. Dropped without [`Progress::ended`]: the client left.
pub trait Progress {
    /// A piece of the body passes.
    fn data(&mut self, data: &Bytes);
    /// The first byte of the body came, SSE comments aside. Called at most once.
    fn first_byte(&mut self);
    /// The body ended.
    fn ended(self, outcome: Outcome);
    /// The clock, for the connection's age.
    fn now(&self) -> router_policy::Nanos;
}

/// An engine's answer. Its errors break the client's connection off, so that a cut answer never looks whole.
#[derive(Debug)]
pub struct StreamBody<P> {
    /// `None` once the end was told.
    live: Option<Live<P>>,
    /// Told at the next poll: what came before it, the head above all, is to be written first.
    broken: Option<AnswerError>,
}

#[derive(Debug)]
struct Live<P> {
    progress: P,
    conn: Conn,
    pool: Arc<Pool>,
    after: After,
    first: First,
    silence: Silence,
    events: Option<Boundary>,
}

/// Why an answer broke off.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The engine's side broke.
    #[error(transparent)]
    Broken(#[from] AnswerError),
    /// The engine was silent for too long.
    #[error("the engine was silent for too long")]
    Silent,
}

/// What the body's first byte is waited for with.
#[derive(Debug, PartialEq, Eq)]
enum First {
    /// Any byte counts.
    Any,
    /// Server-sent events: comment lines do not count.
    Event(LineState),
    /// It came.
    Seen,
}

/// Where in a line of server-sent events the last frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    Start,
    Comment,
}

impl<P: Progress> StreamBody<P> {
    /// A body that comes on `conn`, which goes back to the pool after it. A body that is empty ends at once. Boxed where
    /// it is made, since a response is moved several times before it is written.
    #[must_use]
    pub fn new(headers: &HeaderMap, conn: Conn, upstream: &Upstream, progress: P) -> Box<Self> {
        let first = if is_event_stream(headers) { First::Event(LineState::Start) } else { First::Any };
        let after = if conn.size_hint().exact().is_some() { After::Sized } else { After::Streamed };
        let (pool, limits) = (Arc::clone(upstream.pool()), upstream.silence());
        let is_open = after == After::Streamed && !headers.contains_key(header::CONTENT_ENCODING);
        let has_comments = limits.comment.is_some() && is_open && is_event_stream(headers);
        let silence =
            Silence::new(SilenceLimits { comment: limits.comment.filter(|_| has_comments), ..limits });
        let events = has_comments.then_some(Boundary::START);
        let live = Some(Live { progress, conn, pool, after, first, silence, events });
        let mut body = Box::new(Self { live, broken: None });
        body.complete_if_ended();
        body
    }

    /// The body ended as it should: the count goes back, then the connection.
    fn complete_if_ended(&mut self) {
        if let Some(Live { progress, conn, pool, after, .. }) = self.live.take_if(|live| live.conn.is_ended())
        {
            let now = progress.now();
            progress.ended(Outcome::Completed);
            pool.put(conn, after, now);
        }
    }
}

impl<P: Progress + Unpin> Body for StreamBody<P> {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        if let Some(error) = this.broken.take() {
            return Poll::Ready(Some(Err(error.into())));
        }
        let Some(live) = &mut this.live else { return Poll::Ready(None) };
        match live.conn.poll_data(cx) {
            Poll::Ready(Some(Ok(data))) => {
                live.saw(&data);
                this.complete_if_ended();
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(live) = this.live.take() {
                    // What the client did not send on is not the engine's fault.
                    let is_upload = matches!(error, AnswerError::Upload(_));
                    let outcome = if is_upload { Outcome::ClientGone } else { Outcome::UpstreamFailed };
                    live.progress.ended(outcome);
                }
                this.broken = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(None) => {
                this.complete_if_ended();
                Poll::Ready(None)
            }
            Poll::Pending => silent(&mut this.live, cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.live.is_none() && self.broken.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.live.as_ref().map_or_else(|| SizeHint::with_exact(0), |live| live.conn.size_hint())
    }
}

impl<P: Progress> Live<P> {
    fn saw(&mut self, data: &Bytes) {
        self.progress.data(data);
        self.silence.broken();
        if let Some(events) = &mut self.events {
            events.saw(data);
        }
        let counts = match &mut self.first {
            First::Seen => return,
            First::Any => !data.is_empty(),
            First::Event(line) => {
                let (state, counts) = skip_comments(*line, data);
                *line = state;
                counts
            }
        };
        if counts {
            self.first = First::Seen;
            self.progress.first_byte();
        }
    }
}

/// Nothing is there: maybe something is to be said to the client, or the engine is given up.
fn silent<P: Progress>(
    live: &mut Option<Live<P>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
    let Some(Live { first, silence, events, .. }) = live else { return Poll::Pending };
    loop {
        match ready!(silence.poll(cx, *first == First::Seen)) {
            Due::Comment if events.as_ref().is_some_and(Boundary::is_here) => {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
            }
            Due::Comment => {}
            Due::End => {
                if let Some(live) = live.take() {
                    live.progress.ended(Outcome::UpstreamFailed);
                }
                return Poll::Ready(Some(Err(StreamError::Silent)));
            }
        }
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).map_or(&[][..], |v| v.as_bytes());
    const NAME: &[u8] = b"text/event-stream";
    value.len() >= NAME.len() && value[..NAME.len()].eq_ignore_ascii_case(NAME)
}

/// Reads on through comment lines and empty lines; says where it ended, and whether anything else was met.
fn skip_comments(mut state: LineState, data: &[u8]) -> (LineState, bool) {
    for &byte in data {
        state = match (state, byte) {
            (_, b'\n' | b'\r') => LineState::Start,
            (LineState::Comment, _) | (LineState::Start, b':') => LineState::Comment,
            (LineState::Start, _) => return (LineState::Start, true),
        };
    }
    (state, false)
}

#[cfg(test)]
mod tests {
    use super::{LineState, is_event_stream, skip_comments};
    use hyper::HeaderMap;
    use hyper::header::{CONTENT_TYPE, HeaderValue};

    #[test]
    fn comments_and_empty_lines_are_no_first_byte_wherever_frames_end() {
        for (frames, first_at) in [
            (&[&b": ping\n\n"[..], b"data: x\n\n"][..], Some(1)),
            (&[b": pi", b"ng: data: x\n", b"\n", b"data"], Some(3)),
            (&[b":\r\n\r\n:\r\nevent: x\r\n"], Some(0)),
            (&[b"", b":", b"", b"\n"], None),
            (&[b"data: x"], Some(0)),
            (&[b"\xef\xbb\xbf: with a byte order mark\n"], Some(0)),
        ] {
            let mut state = LineState::Start;
            let found = frames.iter().position(|frame| {
                let (next, counts) = skip_comments(state, frame);
                state = next;
                counts
            });
            assert_eq!(found, first_at, "{frames:?}");
        }
    }

    #[test]
    fn event_streams_are_known_by_their_type() {
        for (value, is) in [
            ("text/event-stream", true),
            ("Text/Event-Stream; charset=utf-8", true),
            ("application/json", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            assert_eq!(is_event_stream(&headers), is, "{value}");
        }
    }
}
