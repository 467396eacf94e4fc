//! The engine's side of one request, as a script plays it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[cfg(doc)]
use crate::wait::DEADLINE;

/// What becomes of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It takes another request.
    KeepAlive,
    /// It is closed (FIN).
    Close,
    /// It is reset (RST).
    Reset,
}

/// The engine's side of one request.
#[derive(Debug)]
pub struct Exchange {
    pub(crate) stream: TcpStream,
    pub(crate) closed: Arc<AtomicUsize>,
}

impl Exchange {
    /// Sends bytes as they are. A client that is gone is no error.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _gone = self.stream.write_all(bytes.as_ref());
    }

    /// Sends bytes as they are; false if the router is gone.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Waits so long for each byte.
    ///
    /// # Panics
    /// No time is none.
    pub fn patient(&mut self, each: Duration) {
        self.stream.set_read_timeout(Some(each)).unwrap();
    }

    /// Reads so many bytes of a connection that is no longer HTTP.
    ///
    /// # Panics
    /// They do not come.
    #[must_use]
    pub fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Sends an answer with a length.
    pub fn answer(&mut self, status: &str, body: &str) -> Then {
        let length = body.len();
        self.send(format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        Then::KeepAlive
    }

    /// Sends the head of a stream of events.
    pub fn start_stream(&mut self) {
        self.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    }

    /// Sends one chunk.
    pub fn chunk(&mut self, data: &str) {
        self.send(format!("{:x}\r\n{data}\r\n", data.len()));
    }

    /// Ends a chunked body.
    pub fn end_stream(&mut self) -> Then {
        self.send("0\r\n\r\n");
        Then::KeepAlive
    }

    /// Waits until the router closes the connection, and counts that.
    ///
    /// # Panics
    /// It does not within [`DEADLINE`].
    pub fn wait_closed(&mut self) -> Then {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(0) => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("the router must close the connection, but: {other:?}"),
        }
        self.closed.fetch_add(1, Ordering::SeqCst);
        Then::Close
    }
}
