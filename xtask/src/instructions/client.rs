//! A client for counting: closed loops over a few kept connections, each answer read to its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Connections that requests are spread over.
pub(super) const CONNECTIONS: u32 = 8;
/// Tokens of a stream.
const TOKENS: u32 = 64;
/// A router under valgrind on a busy machine is slow, but not so slow.
const WITHIN: Duration = Duration::from_secs(60);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A body of 150 bytes, and one of about 400 back.
    Small,
    /// 64 tokens, each an event.
    Stream,
    /// A small request behind one of four system prompts of so many bytes.
    Prompt(usize),
}

/// System prompts that long requests share: with 1 MB more than an engine is thought to hold, so that blocks come and go.
const PROMPTS: u32 = 4;

impl Kind {
    /// A request whose prompt is its own.
    fn request(self, number: u32) -> String {
        let more = match self {
            Self::Small | Self::Prompt(_) => "\"max_tokens\":1".to_owned(),
            Self::Stream => format!("\"max_tokens\":{TOKENS},\"stream\":true"),
        };
        let system = match self {
            Self::Small | Self::Stream => String::new(),
            Self::Prompt(bytes) => {
                let text = format!("p{:02}-3f2a91c0 ", number % PROMPTS);
                let text = text.repeat(bytes / text.len());
                format!("{{\"role\":\"system\",\"content\":\"{text}\"}},")
            }
        };
        let body = format!(
            "{{\"model\":\"sim\",\"messages\":[{system}{{\"role\":\"user\",\"content\":\"q{number} {}\"}}],{more}}}",
            "3f2a91c0 ".repeat(7)
        );
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n\
             authorization: Bearer none\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Sends so many requests, on every connection the same number, and reads their answers.
///
/// # Errors
/// A socket fails, or an answer is not 200 and whole.
pub(super) fn send(addr: SocketAddr, kind: Kind, requests: u32) -> Result<()> {
    let each = requests / CONNECTIONS;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|n| scope.spawn(move || client(addr, kind, n * each..(n + 1) * each)))
            .collect();
        clients.into_iter().try_for_each(|client| match client.join() {
            Ok(result) => result,
            Err(_) => bail!("a client panicked"),
        })
    })
}

fn client(addr: SocketAddr, kind: Kind, numbers: std::ops::Range<u32>) -> Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WITHIN))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    for number in numbers {
        stream.write_all(kind.request(number).as_bytes())?;
        let chunks = answer(&mut answers)?;
        // One for each token, and the end of the events. What a busy machine lets come together leaves together: a few.
        if kind == Kind::Stream && chunks * 10 < u64::from(TOKENS) * 9 {
            bail!("a stream of {TOKENS} tokens came in {chunks} chunks");
        }
    }
    Ok(())
}

/// Reads one answer; returns in how many chunks its body came, 0 for one with a length.
fn answer(from: &mut impl BufRead) -> Result<u64> {
    let status = line(from)?;
    if !status.starts_with("HTTP/1.1 200") {
        bail!("answered `{status}`");
    }
    let mut length = None;
    loop {
        let field = line(from)?.to_ascii_lowercase();
        if field.is_empty() {
            break;
        }
        if let Some(value) = field.strip_prefix("content-length:") {
            length = Some(value.trim().parse::<u64>()?);
        }
    }
    if let Some(length) = length {
        skip(from, length)?;
        return Ok(0);
    }
    let mut chunks = 0;
    loop {
        let size = u64::from_str_radix(&line(from)?, 16).context("a chunk without a size")?;
        skip(from, size + 2)?;
        if size == 0 {
            return Ok(chunks);
        }
        chunks += 1;
    }
}

fn line(from: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.strip_suffix("\r\n").context("the router closed the connection")?;
    Ok(line.to_owned())
}

fn skip(from: &mut impl BufRead, bytes: u64) -> Result<()> {
    let read = std::io::copy(&mut from.take(bytes), &mut std::io::sink())?;
    if read < bytes {
        bail!("the router closed the connection");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_end_and_its_chunks_are_counted() {
        let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP";
        let mut rest = &plain[..];
        assert_eq!(answer(&mut rest).unwrap(), 0);
        assert_eq!(rest, b"HTTP");
        let chunked = b"HTTP/1.1 200 OK\r\n\r\n2\r\nab\r\nc\r\n0123456789ab\r\n0\r\n\r\n";
        assert_eq!(answer(&mut &chunked[..]).unwrap(), 2);
        assert!(answer(&mut &chunked[..chunked.len() - 3]).is_err(), "cut");
        assert!(answer(&mut &b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"[..]).is_err());
    }

    #[test]
    fn a_small_request_has_the_size_that_its_name_says() {
        let request = Kind::Small.request(123);
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        assert!((130..170).contains(&body.len()), "{}", body.len());
        let long = Kind::Prompt(1_000_000).request(123);
        assert!((1_000_000..1_000_500).contains(&long.len()), "{}", long.len());
    }
}
