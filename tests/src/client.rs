//! A client of raw sockets: it sends what a test writes and sees how the answer ends.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::backend::{header_values, read_chunk};
use crate::wait::DEADLINE;

/// One connection to the router.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    /// Its body, chunks joined.
    pub body: Vec<u8>,
    /// Whether the body ended as its framing says.
    pub is_complete: bool,
}

impl Answer {
    /// A header's first value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        header_values(&self.head, name).first().copied()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A POST of JSON, as text.
#[must_use]
pub fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A chat request for model `m`.
#[must_use]
pub fn chat() -> String {
    post("/v1/chat/completions", r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#)
}

/// Sends one request on a connection of its own and reads the answer.
#[must_use]
#[track_caller]
pub fn ask(router: SocketAddr, request: impl AsRef<[u8]>) -> Answer {
    let mut client = Client::connect(router);
    client.send(request);
    client.answer()
}

impl Client {
    /// Connects.
    #[must_use]
    #[track_caller]
    pub fn connect(router: SocketAddr) -> Self {
        let stream = TcpStream::connect(router).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Self { stream }
    }

    /// Sends bytes as they are; a router that closed already is no error.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _closed = self.stream.write_all(bytes.as_ref());
    }

    /// Waits so long for each byte.
    #[must_use]
    pub fn patient(self, each: Duration) -> Self {
        self.stream.set_read_timeout(Some(each)).unwrap();
        self
    }

    /// The same connection, to write from another thread.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap() }
    }

    /// Sends no more, and reads on.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Leaves by a reset.
    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    /// Reads an answer's head.
    #[track_caller]
    pub fn head(&mut self) -> String {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match self.stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                other => panic!("no whole head: {other:?} after {:?}", String::from_utf8_lossy(&head)),
            }
        }
        String::from_utf8(head).unwrap()
    }

    /// Reads an answer and throws it away; false if the router is gone before its end.
    pub fn is_answered(&mut self) -> bool {
        let mut seen = Vec::new();
        let mut bytes = [0; 4096];
        // Bodies of these answers are `{}` or end with the last chunk.
        while !seen.ends_with(b"\r\n\r\n{}") && !seen.ends_with(b"\r\n0\r\n\r\n") {
            match self.stream.read(&mut bytes) {
                Ok(read @ 1..) => seen.extend(&bytes[..read]),
                _ => return false,
            }
        }
        true
    }

    /// Reads one chunk; `None` at the last or when the connection ends without one.
    pub fn chunk(&mut self) -> Option<String> {
        let data = read_chunk(&mut self.stream)??;
        Some(String::from_utf8(data).unwrap())
    }

    /// Reads a whole answer, framed by length, chunks or the connection's end.
    #[track_caller]
    pub fn answer(&mut self) -> Answer {
        let head = self.head();
        self.body(head)
    }

    /// Reads the rest of an answer whose head was read.
    #[track_caller]
    pub fn body(&mut self, head: String) -> Answer {
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap();
        let mut body = Vec::new();
        let is_complete = if let [length] = header_values(&head, "content-length")[..] {
            let length: u64 = length.parse().unwrap();
            let _reset = Read::by_ref(&mut self.stream).take(length).read_to_end(&mut body);
            body.len() as u64 == length
        } else if header_values(&head, "transfer-encoding") == ["chunked"] {
            loop {
                match read_chunk(&mut self.stream) {
                    Some(Some(chunk)) => body.extend(chunk),
                    Some(None) => break true,
                    None => break false,
                }
            }
        } else {
            self.stream.read_to_end(&mut body).is_ok()
        };
        Answer { status, head, body, is_complete }
    }

    /// Reads so many bytes of a connection that is no longer HTTP.
    #[must_use]
    #[track_caller]
    pub fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the router closes the connection without sending anything more.
    #[track_caller]
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}
