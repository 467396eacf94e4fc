//! Answers: where both the router and hyper read one to its end, they read the same.
#![no_main]

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Method, Request};
use libfuzzer_sys::fuzz_target;
use router_fuzz::answered;

fuzz_target!(|input: (&[u8], u8, bool)| {
    let (bytes, piece, is_head) = input;
    let method = if is_head { Method::HEAD } else { Method::GET };
    let ours = answered(bytes, &method, usize::from(piece));
    assert_eq!(ours, answered(bytes, &method, usize::MAX), "where reads end changes nothing");
    // Each refuses some that the other takes.
    if let (Some(ours), Some(theirs)) = (ours, by_hyper(bytes, method)) {
        assert_eq!(ours, theirs);
    }
});

/// Status and body of an answer that hyper takes for whole.
fn by_hyper(bytes: &[u8], method: Method) -> Option<(u16, Vec<u8>)> {
    let wire = Wire { bytes: bytes.to_vec(), at: 0, is_asked: false };
    let exchange = async {
        let (mut sender, conn) = http1::handshake(wire).await.ok()?;
        let request = Request::builder().method(method).uri("/").body(Empty).ok()?;
        let answer = async {
            let response = sender.send_request(request).await.ok()?;
            let (head, mut body) = response.into_parts();
            let mut all = Vec::new();
            while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                // The other frames are trailers.
                all.extend_from_slice(frame.ok()?.data_ref().map_or(&[][..], |data| data));
            }
            (head.status.as_u16() != 101).then(|| (head.status.as_u16(), all))
        };
        let (mut conn, mut answer) = (pin!(conn), pin!(answer));
        let mut is_over = false;
        std::future::poll_fn(|cx| {
            is_over = is_over || conn.as_mut().poll(cx).is_ready();
            match answer.as_mut().poll(cx) {
                // Nothing is left that could wake it.
                Poll::Pending if is_over => Poll::Ready(None),
                polled => polled,
            }
        })
        .await
    };
    let mut exchange = pin!(exchange);
    let mut cx = Context::from_waker(Waker::noop());
    // The socket never waits: hyper only yields.
    (0..10_000).find_map(|_| match exchange.as_mut().poll(&mut cx) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    })?
}

struct Empty;

impl Body for Empty {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, io::Error>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

/// An engine that answers all at once when it was asked, and closes.
struct Wire {
    bytes: Vec<u8>,
    at: usize,
    is_asked: bool,
}

impl Read for Wire {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if !self.is_asked {
            return Poll::Pending;
        }
        let n = buf.remaining().min(self.bytes.len() - self.at);
        buf.put_slice(&self.bytes[self.at..self.at + n]);
        self.at += n;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_asked = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
