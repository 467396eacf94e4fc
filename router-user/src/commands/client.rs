//! The client that commands play: one request on a connection of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::config::AdminListen;

/// One answer, as the client saw it.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The engine that gave it, by its own word.
    pub(super) engine: String,
    /// From the request to the first byte of the body.
    pub(super) ttft: Duration,
    /// When that byte came.
    pub(super) first: Instant,
    /// When it ended.
    pub(super) ended: Instant,
    /// Prompt tokens by the engine's own usage.
    pub(super) prompt_tokens: u64,
    /// Of those, found in its cache.
    pub(super) cached_tokens: u64,
}

/// The body of a streamed chat with usage.
pub(super) fn chat_body(messages: &[Value], max_tokens: u32) -> Bytes {
    let body = json!({
        "model": "sim", "messages": messages, "max_tokens": max_tokens, "ignore_eos": true,
        "stream": true, "stream_options": {"include_usage": true},
    });
    Bytes::from(body.to_string())
}

/// The path of chats.
pub(super) const CHAT: &str = "/v1/chat/completions";
/// The path of plain prompts.
pub(super) const COMPLETION: &str = "/v1/completions";

/// Sends a streamed request with usage and reads its stream to `[DONE]`.
pub(super) async fn ask(to: SocketAddr, path: &str, body: Bytes) -> anyhow::Result<Answer> {
    ask_noting(to, path, body, || {}).await
}

/// Like [`ask`]; `first_byte` is called when the first byte of the body comes.
pub(super) async fn ask_noting(
    to: SocketAddr,
    path: &str,
    body: Bytes,
    first_byte: impl FnOnce(),
) -> anyhow::Result<Answer> {
    let mut first_byte = Some(first_byte);
    let sent = Instant::now();
    let stream = TcpStream::connect(to).await.context("cannot connect")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let request = Request::post(path)
        .header("host", to.to_string())
        .header("content-type", "application/json")
        .body(Full::new(body))?;
    let response = sender.send_request(request).await.context("no answer")?;
    let status = response.status();
    let engine =
        response.headers().get("x-engine-name").and_then(|v| v.to_str().ok()).unwrap_or("?").to_owned();
    let mut incoming = response.into_body();
    let (mut text, mut first) = (Vec::new(), None::<Instant>);
    while let Some(frame) = incoming.frame().await {
        if let Ok(data) = frame.context("the answer broke off")?.into_data() {
            if let Some(note) = first_byte.take() {
                first = Some(Instant::now());
                note();
            }
            text.extend_from_slice(&data);
        }
    }
    let ended = Instant::now();
    driver.abort();
    let text = String::from_utf8_lossy(&text);
    ensure!(status.is_success(), "status {status}: {text}");
    let Some(first) = first else { bail!("an empty answer") };
    ensure!(text.trim_end().ends_with("data: [DONE]"), "the stream did not end as it should");
    let (prompt_tokens, cached_tokens) = usage(&text).context("the stream has no usage")?;
    Ok(Answer { engine, ttft: first - sent, first, ended, prompt_tokens, cached_tokens })
}

/// Asks `GET path` once and gives the body, of so many bytes at most. Blocks.
///
/// # Errors
/// There is no answer in time, or none of status 200.
pub(super) fn get(
    to: &AdminListen,
    path: &str,
    timeout: Duration,
    bytes_max: usize,
) -> anyhow::Result<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = async {
        match to {
            AdminListen::Tcp(addr) => {
                let stream = TcpStream::connect(addr).await.context("cannot connect")?;
                get_over(stream, &addr.to_string(), path, bytes_max).await
            }
            AdminListen::Unix(socket) => {
                let stream = UnixStream::connect(socket).await.context("cannot connect")?;
                get_over(stream, "localhost", path, bytes_max).await
            }
        }
    };
    runtime.block_on(async { tokio::time::timeout(timeout, answer).await.context("no answer in time")? })
}

async fn get_over<S>(stream: S, host: &str, path: &str, bytes_max: usize) -> anyhow::Result<Bytes>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let request = Request::get(path).header("host", host).body(Full::new(Bytes::new()))?;
    let response = sender.send_request(request).await.context("no answer")?;
    ensure!(response.status().is_success(), "status {}", response.status());
    let body = Limited::new(response.into_body(), bytes_max).collect().await;
    driver.abort();
    Ok(body.map_err(|e| anyhow::anyhow!("the answer broke off: {e}"))?.to_bytes())
}

fn usage(stream: &str) -> Option<(u64, u64)> {
    let events = stream.lines().rev().filter_map(|line| line.strip_prefix("data: "));
    let usage = events
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .find_map(|event| event.get("usage").filter(|u| u.is_object()).cloned())?;
    let cached = usage.pointer("/prompt_tokens_details/cached_tokens").and_then(Value::as_u64).unwrap_or(0);
    Some((usage.get("prompt_tokens")?.as_u64()?, cached))
}

#[cfg(test)]
mod tests {
    use super::usage;

    #[test]
    fn usage_is_read_from_the_last_chunk_that_has_it() {
        let stream = "data: {\"usage\":null}\n\ndata: {\"usage\":{\"prompt_tokens\":9,\
                      \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";
        assert_eq!(usage(stream), Some((9, 4)));
        assert_eq!(usage("data: {\"choices\":[]}\n\n"), None);
    }
}
