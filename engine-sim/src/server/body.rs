//! Response bodies, and how a fault makes them late or break off.
//!
//! Invariant: without a fault a body passes through as it is.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::time::Sleep;

use super::answer::{DONE_EVENT, TokenStream};
use super::socket::Link;
use crate::faults::CutEnd;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The body broke off because a fault wanted it so.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a fault cut the answer")]
pub(super) struct CutOff;

/// Any body sent.
#[derive(Debug)]
pub(super) struct Body {
    /// `None` once it is cut.
    inner: Option<Either<Full<Bytes>, TokenStream>>,
    /// Before each frame but the first.
    pause: Duration,
    pausing: Option<Pin<Box<Sleep>>>,
    cut: Option<Cut>,
}

/// Where and how a body breaks off.
#[derive(Debug)]
struct Cut {
    frames_left: u32,
    end: CutEnd,
    link: Arc<Link>,
    /// The frames before have had a chance to leave.
    is_flushed: bool,
}

impl Body {
    pub(super) fn full(bytes: impl Into<Bytes>) -> Self {
        Self::of(Either::Left(Full::new(bytes.into())))
    }

    pub(super) fn stream(tokens: TokenStream) -> Self {
        Self::of(Either::Right(tokens))
    }

    fn of(inner: Either<Full<Bytes>, TokenStream>) -> Self {
        Self { inner: Some(inner), pause: Duration::ZERO, pausing: None, cut: None }
    }

    /// Waits so long before each frame but the first.
    pub(super) fn paused(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Breaks off after so many frames.
    pub(super) fn cut(mut self, frames: u32, end: CutEnd, link: Arc<Link>) -> Self {
        self.cut = Some(Cut { frames_left: frames, end, link, is_flushed: false });
        self
    }

    fn poll_cut(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let Some(cut) = &mut self.cut else { return Poll::Ready(None) };
        if cut.end == CutEnd::Stall {
            return Poll::Pending;
        }
        // The seat is free from here on, as when an engine drops a request.
        let is_first = self.inner.take().is_some();
        match cut.end {
            CutEnd::Done if is_first => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(DONE_EVENT))))),
            CutEnd::Done | CutEnd::End => Poll::Ready(None),
            CutEnd::Close | CutEnd::Reset | CutEnd::Stall => {
                if !std::mem::replace(&mut cut.is_flushed, true) {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                if cut.end == CutEnd::Reset {
                    cut.link.reset();
                }
                Poll::Ready(Some(Err(CutOff)))
            }
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if this.cut.as_ref().is_some_and(|cut| cut.frames_left == 0) {
            return this.poll_cut(cx).map_err(Into::into);
        }
        if let Some(pausing) = &mut this.pausing {
            ready!(pausing.as_mut().poll(cx));
            this.pausing = None;
        }
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(inner).poll_frame(cx));
        if let Some(cut) = &mut this.cut {
            cut.frames_left -= 1;
        }
        if !this.pause.is_zero() {
            this.pausing = Some(Box::pin(tokio::time::sleep(this.pause)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.cut.is_none() && self.inner.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.cut, &self.inner) {
            (None, Some(inner)) => inner.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

pub(super) fn json_response(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
