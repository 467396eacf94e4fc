//! A connection without an HTTP library, to see how it ends.

use std::io;
use std::time::Duration;

use engine_sim::Handle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::DEADLINE;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By FIN.
    Closed,
    /// By RST.
    Reset,
    /// It has not, though nothing comes any more.
    Open,
}

/// How long nothing has to come before it counts as silence; a test that waits for it cannot fail for being slow.
const SILENCE: Duration = Duration::from_millis(150);

/// What a connection gave, and how it ended.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) text: String,
    pub(crate) end: End,
}

impl Heard {
    /// The events of a stream so far.
    pub(crate) fn events(&self) -> usize {
        events_of(&self.text)
    }

    /// True if the chunked body ended as HTTP wants it.
    pub(crate) fn has_last_chunk(&self) -> bool {
        has_last_chunk(&self.text)
    }
}

pub(crate) fn events_of(text: &str) -> usize {
    text.matches("data: ").count()
}

pub(crate) fn has_last_chunk(text: &str) -> bool {
    text.ends_with("\r\n0\r\n\r\n")
}

pub(crate) struct Wire(TcpStream);

impl Wire {
    pub(crate) async fn connect(engine: &Handle) -> Self {
        Self(TcpStream::connect(engine.addr()).await.expect("the engine listens"))
    }

    /// Sends a chat and leaves the connection open for what comes.
    pub(crate) async fn chat(engine: &Handle, max_tokens: u32, is_stream: bool) -> Self {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"hi"}}],"max_tokens":{max_tokens},"stream":{is_stream}}}"#
        );
        let mut wire = Self::connect(engine).await;
        let length = body.len();
        wire.send(&format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
        wire
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.expect("the connection is open");
    }

    /// Reads to the end.
    pub(crate) async fn hear(&mut self) -> Heard {
        self.hear_until(|_| false).await
    }

    /// Reads until the end, or until this is enough and nothing more comes for a while.
    pub(crate) async fn hear_until(&mut self, is_enough: impl Fn(&str) -> bool) -> Heard {
        let mut bytes = Vec::new();
        let end = loop {
            let is_enough = is_enough(str::from_utf8(&bytes).expect("UTF-8"));
            let patience = if is_enough { SILENCE } else { DEADLINE };
            match tokio::time::timeout(patience, self.0.read_buf(&mut bytes)).await {
                Err(_) => {
                    assert!(is_enough, "more should have come: {}", String::from_utf8_lossy(&bytes));
                    break End::Open;
                }
                Ok(Ok(0)) => break End::Closed,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                    break End::Reset;
                }
            }
        };
        Heard { text: String::from_utf8(bytes).expect("UTF-8"), end }
    }
}
