//! Requests: hyper cuts what the router lets through into the same messages as the router does.
#![no_main]

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use hyper::body::{Body, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use libfuzzer_sys::fuzz_target;
use router_fuzz::{cut, stops_at};

fuzz_target!(|bytes: &[u8]| {
    let ours = cut(bytes);
    // An offence is found wherever reads end, and never before the line that it is in was passed on in part.
    assert_eq!(stops_at(bytes).is_some(), ours.stopped.is_some());
    let mut passed = bytes[..stops_at(bytes).unwrap_or(bytes.len())].to_vec();
    if ours.stopped.is_some() {
        // What the router puts in the offence's place.
        passed.push(0);
    }
    let theirs = by_hyper(passed);
    // hyper stops earlier where it refuses more, or where a message closes the connection.
    assert!(ours.bodies.starts_with(&theirs), "we: {ours:?}, hyper: {theirs:?}");
});

/// Bodies of the requests that hyper takes for whole.
fn by_hyper(bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let bodies = RefCell::new(Vec::new());
    let service = service_fn(async |request: Request<Incoming>| {
        if let Some(body) = whole(request.into_body()).await {
            bodies.borrow_mut().push(body);
        }
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    {
        let mut conn = pin!(http1::Builder::new().serve_connection(Wire { bytes, at: 0 }, service));
        let mut cx = Context::from_waker(Waker::noop());
        // The socket never waits: hyper only yields.
        let ended = (0..10_000).any(|_| conn.as_mut().poll(&mut cx).is_ready());
        assert!(ended, "hyper must come to an end");
    }
    bodies.into_inner()
}

async fn whole(mut body: Incoming) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        // The other frames are trailers.
        all.extend_from_slice(frame.ok()?.data_ref().map_or(&[][..], |data| data));
    }
    Some(all)
}

/// A client that sends all at once and then no more.
struct Wire {
    bytes: Vec<u8>,
    at: usize,
}

impl Read for Wire {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let n = buf.remaining().min(self.bytes.len() - self.at);
        buf.put_slice(&self.bytes[self.at..self.at + n]);
        self.at += n;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
