//! One connection to an engine, for one request at a time: driven by whoever waits for the answer.
//!
//! There is no task for it and no buffer of its own: a worker reads all its answers through one, and of what was read
//! an exact copy goes on, so a silent stream holds nothing and a slow client no more than its bytes. Invariants:
//! dropping a `Conn` closes the socket, whatever state the request on it is in; it is used again only after a whole
//! request and a whole answer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::SizeHint;
use hyper::{HeaderMap, Method, StatusCode};
use tokio::net::TcpStream;

use super::Peer;
use super::chunks::{BadChunks, Chunks};
use super::head::{self, BadHead, Framing, Head};
use super::retry::Facts;
use super::sending::{Outgoing, Sending};
use super::socket::Socket;
use super::upload::Fault;

/// What one read takes at most.
const READ_BYTES: usize = 64 << 10;

/// Interim answers before the one that counts.
const INTERIM_MAX: u32 = 64;

thread_local! {
    /// Where a worker reads answers to.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Why an answer did not come, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The socket broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The engine closed before its answer ended.
    #[error("the engine closed before its answer ended")]
    Closed,
    /// Its head is none.
    #[error(transparent)]
    Head(#[from] BadHead),
    /// Its chunks are none.
    #[error(transparent)]
    Chunks(#[from] BadChunks),
    /// It answers "wait" for ever.
    #[error("the engine sent too many interim answers")]
    Interim,
    /// Not the engine's doing: the request's body broke off.
    #[error(transparent)]
    Upload(#[from] Fault),
}

/// No answer's head came.
#[derive(Debug)]
pub(super) struct Failure {
    /// What is known of it.
    pub(super) facts: Facts,
    /// Why.
    pub(super) error: AnswerError,
}

/// One connection to an engine.
#[derive(Debug)]
pub struct Conn {
    peer: Peer,
    socket: Socket,
    reused: bool,
    sending: Sending,
    /// Read, but not yet looked at.
    unread: Bytes,
    framing: Framing,
    keeps: bool,
}

impl Conn {
    /// Over a socket on which nothing was written.
    pub(super) fn new(peer: Peer, socket: Socket) -> Self {
        let (unread, framing) = (Bytes::new(), Framing::Sized(0));
        Self { peer, socket, reused: false, sending: Sending::Done, unread, framing, keeps: true }
    }

    /// Whom it leads to.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether an idle connection cannot carry another request. One that cannot is to be dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.keeps || !self.unread.is_empty() || !self.sending.is_done() || !self.socket.is_quiet()
    }

    /// The answer has ended.
    pub const fn rest(&mut self) {
        self.socket.rest();
    }

    /// Sends a request and waits for the answer's head.
    pub(super) async fn send(
        &mut self,
        request: &mut impl Outgoing,
    ) -> Result<(StatusCode, HeaderMap), Failure> {
        let before = self.socket.begin();
        let reused = std::mem::replace(&mut self.reused, true);
        // Accepted and closed before a byte was sent, as engines that die do.
        if !reused && !self.socket.is_quiet() {
            let facts = Facts { reused, unsent: true, heard: false, unacked: false };
            return Err(Failure { facts, error: AnswerError::Closed });
        }
        let (mut has_begun, mut interim) = (false, 0);
        let head = poll_fn(|cx| {
            if !std::mem::replace(&mut has_begun, true) {
                self.sending = Sending::begin(request, cx, &mut self.socket)?;
            }
            self.poll_head(cx, request.method(), &mut interim)
        });
        head.await.map_err(|error| {
            let facts = Facts {
                reused,
                unsent: self.socket.written == before,
                heard: self.socket.heard,
                unacked: self.socket.nothing_acked_beyond(before),
            };
            Failure { facts, error }
        })
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: &Method,
        interim: &mut u32,
    ) -> Poll<Result<(StatusCode, HeaderMap), AnswerError>> {
        if let Poll::Ready(Err(fault)) = self.sending.poll(cx, &mut self.socket) {
            return Poll::Ready(Err(fault.into()));
        }
        loop {
            let head = ready!(self.poll_read(cx, |conn, read| conn.take_head(read, method, interim)))?;
            if let Some(Head { status, headers, framing, keeps }) = head? {
                (self.framing, self.keeps) = (framing, keeps);
                return Poll::Ready(Ok((status, headers)));
            }
        }
    }

    /// Reads, and gives what was read.
    fn poll_read<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut Self, &[u8]) -> T,
    ) -> Poll<Result<T, AnswerError>> {
        READ.with_borrow_mut(|buffer| match ready!(self.socket.poll_read(cx, buffer))? {
            0 => Poll::Ready(Err(AnswerError::Closed)),
            bytes => Poll::Ready(Ok(take(self, &buffer[..bytes]))),
        })
    }

    /// The head that counts, if `read` completes it. What follows it is kept.
    fn take_head(
        &mut self,
        read: &[u8],
        method: &Method,
        interim: &mut u32,
    ) -> Result<Option<Head>, AnswerError> {
        let joined;
        let mut rest = read;
        if !self.unread.is_empty() {
            joined = [&std::mem::take(&mut self.unread)[..], read].concat();
            rest = &joined;
        }
        while let Some((head, len)) = head::parse(rest, method)? {
            rest = &rest[len..];
            if !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS {
                self.unread = Bytes::copy_from_slice(rest);
                return Ok(Some(head));
            }
            *interim += 1;
            if *interim > INTERIM_MAX {
                return Err(AnswerError::Interim);
            }
        }
        self.unread = Bytes::copy_from_slice(rest);
        Ok(None)
    }

    /// The next bytes of the answer's body as they come, never empty; `None` at its end. What is left of the request
    /// is written meanwhile: an engine may answer before it has read everything.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, AnswerError>>> {
        if let Poll::Ready(Err(fault)) = self.sending.poll(cx, &mut self.socket) {
            return Poll::Ready(Some(Err(fault.into())));
        }
        while !self.is_ended() {
            let data = if self.unread.is_empty() {
                match ready!(self.poll_read(cx, |conn, read| conn.cut(Bytes::copy_from_slice, read))) {
                    Ok(data) => data,
                    Err(AnswerError::Closed) if matches!(self.framing, Framing::ToClose) => {
                        (self.framing, self.keeps) = (Framing::Sized(0), false);
                        return Poll::Ready(None);
                    }
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
            } else {
                let unread = std::mem::take(&mut self.unread);
                self.cut(|data| unread.slice_ref(data), &unread)
            };
            match data {
                Ok(data) if data.is_empty() => {}
                data => return Poll::Ready(Some(data.map_err(AnswerError::from))),
            }
        }
        Poll::Ready(None)
    }

    /// What of bytes is the body's; they are used up. `own` makes bytes of a piece.
    fn cut(&mut self, own: impl Fn(&[u8]) -> Bytes, mut input: &[u8]) -> Result<Bytes, BadChunks> {
        match &mut self.framing {
            Framing::ToClose => Ok(own(input)),
            Framing::Sized(left) => {
                let here = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= here as u64;
                self.keeps &= here == input.len();
                Ok(own(&input[..here]))
            }
            Framing::Chunked(chunks) => {
                let data = join(chunks, own, &mut input)?;
                self.keeps &= input.is_empty();
                Ok(data)
            }
        }
    }

    /// Whether the answer's body has ended.
    pub(super) fn is_ended(&self) -> bool {
        match &self.framing {
            Framing::Sized(left) => *left == 0,
            Framing::Chunked(chunks) => chunks.is_ended(),
            Framing::ToClose => false,
        }
    }

    /// How much is still to come.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self.framing {
            Framing::Sized(left) => SizeHint::with_exact(left),
            Framing::Chunked(_) | Framing::ToClose => SizeHint::default(),
        }
    }

    /// The socket and what was read of it already, after the engine agreed to switch protocols.
    pub fn tunnel(&mut self) -> (&mut TcpStream, Bytes) {
        // Silence is no fault of a tunnel.
        self.socket.unlist();
        (self.socket.stream(), std::mem::take(&mut self.unread))
    }
}

/// The data of all chunks in `input` as one piece: tokens that came together leave together.
fn join(chunks: &mut Chunks, own: impl Fn(&[u8]) -> Bytes, input: &mut &[u8]) -> Result<Bytes, BadChunks> {
    let Some(first) = chunks.next(input)? else { return Ok(Bytes::new()) };
    let Some(second) = chunks.next(input)? else { return Ok(own(first)) };
    let mut data = BytesMut::with_capacity(first.len() + second.len() + input.len());
    data.extend_from_slice(first);
    data.extend_from_slice(second);
    while let Some(next) = chunks.next(input)? {
        data.extend_from_slice(next);
    }
    Ok(data.freeze())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::Method;
    use tokio::io::AsyncReadExt;

    use crate::forward::sending::Outgoing;
    use crate::forward::test_engine::{Engine, until};
    use crate::forward::upload::RequestBody;

    struct Get;

    impl Outgoing for Get {
        fn method(&self) -> &Method {
            &Method::GET
        }

        fn write_head(&self, to: &mut Vec<u8>) {
            to.extend_from_slice(b"GET / HTTP/1.1\r\n");
        }

        fn body(&mut self) -> RequestBody {
            RequestBody::Held(Bytes::new())
        }
    }

    #[tokio::test]
    async fn nothing_is_sent_on_a_new_connection_that_was_closed_meanwhile() {
        let (mut conn, mut theirs) = Engine::new().await.conn().await;
        // Its side only, so that it would see what is sent.
        tokio::io::AsyncWriteExt::shutdown(&mut theirs).await.unwrap();
        until(|| conn.is_closed()).await;
        let facts = conn.send(&mut Get).await.unwrap_err().facts;
        assert!(facts.unsent && !facts.reused && !facts.heard, "{facts:?}");
        drop(conn);
        assert_eq!(theirs.read(&mut [0]).await.unwrap(), 0, "it got nothing");
    }
}
