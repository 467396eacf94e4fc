//! A request on its way to an engine: head and body in one write, then what did not fit.
//!
//! Invariants: a held body is not copied; a body that broke off never ends, so an engine does not take it for whole.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::Method;
use hyper::body::Body;

use super::socket::Socket;
use super::upload::{Fault, RequestBody, Upload};

/// A request as one engine gets it.
pub trait Outgoing {
    /// Its method.
    fn method(&self) -> &Method;
    /// Appends request line and headers, each with its line's end; framing and the empty line are added.
    fn write_head(&self, to: &mut Vec<u8>);
    /// The body, for one sending.
    fn body(&mut self) -> RequestBody;
}

/// Bytes of a usual head.
const HEAD_BYTES: usize = 768;

/// What of a request is still to be written.
#[derive(Debug)]
pub(super) enum Sending {
    /// Nothing.
    Done,
    /// It could not be written on. The engine may have answered before it closed, so its answer is still waited for.
    Failed,
    /// This.
    Rest(Box<Rest>),
}

#[derive(Debug)]
pub(super) struct Rest {
    piece: Piece,
    upload: Option<Box<Upload>>,
    is_chunked: bool,
}

/// What one write takes: a head, a body, an end.
#[derive(Debug, Default)]
struct Piece {
    head: Vec<u8>,
    body: Bytes,
    end: &'static [u8],
    /// So much of it was written.
    at: usize,
}

impl Piece {
    fn is_written(&self) -> bool {
        self.at == self.head.len() + self.body.len() + self.end.len()
    }

    /// A chunk of a body.
    fn chunk(body: Bytes) -> Self {
        Self { head: format!("{:x}\r\n", body.len()).into_bytes(), body, end: b"\r\n", at: 0 }
    }

    fn poll(&mut self, cx: &mut Context<'_>, socket: &mut Socket) -> Poll<io::Result<()>> {
        while !self.is_written() {
            let mut left = [IoSlice::new(&self.head), IoSlice::new(&self.body), IoSlice::new(self.end)];
            let mut left = &mut left[..];
            IoSlice::advance_slices(&mut left, self.at);
            self.at += ready!(socket.poll_write(cx, left))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Sending {
    /// Begins to write a request.
    ///
    /// # Errors
    /// As [`Sending::poll`].
    pub(super) fn begin(
        request: &mut impl Outgoing,
        cx: &mut Context<'_>,
        socket: &mut Socket,
    ) -> Result<Self, Fault> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        request.write_head(&mut head);
        let (body, upload) = match request.body() {
            RequestBody::Held(body) => (body, None),
            RequestBody::Passed(upload) => (Bytes::new(), Some(upload)),
        };
        let length = upload.as_ref().map_or(Some(body.len() as u64), |upload| upload.size_hint().exact());
        let wants_length = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
        match length {
            None => head.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n"),
            Some(0) if !wants_length => head.extend_from_slice(b"\r\n"),
            Some(length) => write_length(&mut head, length),
        }
        let piece = Piece { head, body, ..Piece::default() };
        let mut rest = Rest { piece, upload, is_chunked: length.is_none() };
        // All of a usual request goes at once, and what is left is boxed.
        match rest.poll(cx, socket) {
            Poll::Ready(Ok(true)) => Ok(Self::Done),
            Poll::Ready(Ok(false)) => Ok(Self::Failed),
            Poll::Ready(Err(fault)) => Err(fault),
            Poll::Pending => Ok(Self::Rest(Box::new(rest))),
        }
    }

    /// Whether all of it was written.
    pub(super) const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Writes on. Pending while the engine or the client is waited for.
    ///
    /// # Errors
    /// The client's fault; what an engine does wrong is [`Sending::Failed`].
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, socket: &mut Socket) -> Poll<Result<(), Fault>> {
        let Self::Rest(rest) = self else { return Poll::Ready(Ok(())) };
        let sent = ready!(rest.poll(cx, socket));
        *self = if matches!(sent, Ok(true)) { Self::Done } else { Self::Failed };
        Poll::Ready(sent.map(|_| ()))
    }
}

/// Without the formatter, which takes more instructions than the rest of a head.
fn write_length(head: &mut Vec<u8>, mut length: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (length % 10) as u8;
        length /= 10;
        if length == 0 {
            break;
        }
    }
    head.extend_from_slice(b"content-length: ");
    head.extend_from_slice(&digits[at..]);
    head.extend_from_slice(b"\r\n\r\n");
}

impl Rest {
    /// Whether it was written whole.
    fn poll(&mut self, cx: &mut Context<'_>, socket: &mut Socket) -> Poll<Result<bool, Fault>> {
        loop {
            if ready!(self.piece.poll(cx, socket)).is_err() {
                return Poll::Ready(Ok(false));
            }
            let Some(upload) = &mut self.upload else { return Poll::Ready(Ok(true)) };
            match ready!(Pin::new(&mut **upload).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers end here.
                    let data = frame.into_data().unwrap_or_default();
                    let is_chunk = self.is_chunked && !data.is_empty();
                    self.piece =
                        if is_chunk { Piece::chunk(data) } else { Piece { body: data, ..Piece::default() } };
                }
                Some(Err(fault)) => return Poll::Ready(Err(fault)),
                None => {
                    self.upload = None;
                    let end: &[u8] = if self.is_chunked { b"0\r\n\r\n" } else { b"" };
                    self.piece = Piece { end, ..Piece::default() };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::write_length;

    #[test]
    fn lengths_are_written_in_full() {
        for length in [0, 7, 10, 1_048_576, u64::MAX] {
            let mut head = Vec::new();
            write_length(&mut head, length);
            assert_eq!(head, format!("content-length: {length}\r\n\r\n").into_bytes());
        }
    }
}
