//! P10: engines that refuse a request by its head, while its client waits for `100 Continue`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use router_tests::client::{Client, chat};
use router_tests::fixture;
use router_tests::router::{config, start, wait_idle};

use crate::large_bodies::raw_engine;

const BODY_BYTES: usize = 1 << 20;

/// What it does with the body that it does not want.
#[derive(Clone, Copy, Debug)]
enum How {
    /// It closes its side, and reads what still comes.
    Polite,
    /// It closes at once: a reset for what still comes.
    Rude,
    /// It reads it and keeps the connection.
    Patient,
}

/// An engine that answers a POST so before it has read its body, and how many heads of POSTs it has read.
fn refusing(status: &'static str, how: How) -> (SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let engine = raw_engine(move |mut stream: TcpStream, length| {
        counted.fetch_add(1, Ordering::Relaxed);
        let close = if matches!(how, How::Patient) { "" } else { "connection: close\r\n" };
        let answer =
            format!("HTTP/1.1 {status}\r\n{close}www-authenticate: Bearer\r\ncontent-length: 4\r\n\r\nmine");
        // In one piece: what is still to be sent is lost when it closes with something unread.
        stream.write_all(answer.as_bytes()).unwrap();
        match how {
            How::Polite => {
                stream.shutdown(Shutdown::Write).unwrap();
                let _all = std::io::copy(&mut stream, &mut std::io::sink());
            }
            How::Rude => {}
            How::Patient => {
                let mut body = Read::by_ref(&mut stream).take(length as u64);
                let _cut = std::io::copy(&mut body, &mut std::io::sink());
                let _closed = stream.read(&mut [0]);
            }
        }
    });
    (engine, asked)
}

/// The router needs the body to place the request, so the client gets its 100 first; the refusal is its answer then.
#[test]
fn p10_an_engines_early_refusal_is_the_answer_after_the_100() {
    let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(BODY_BYTES - 25));
    assert_eq!(body.len(), BODY_BYTES);
    let head = fixture::http("expect_100.http");
    for status in ["401 Unauthorized", "413 Content Too Large", "417 Expectation Failed"] {
        for how in [How::Polite, How::Rude, How::Patient] {
            let (engine, asked) = refusing(status, how);
            let router = start(config(&[engine]));
            for head in [head.clone(), head.replace("chat/completions", "files")] {
                let what = format!("{status}, {how:?}, {}", head.lines().next().unwrap());
                let before = asked.load(Ordering::Relaxed);
                let mut client = Client::connect(router.addr());
                client.send(&head);
                assert!(client.head().starts_with("HTTP/1.1 100 "), "{what}");
                assert_eq!(asked.load(Ordering::Relaxed), before, "the engine is not asked before: {what}");
                client.send(&body);
                let answer = client.answer();
                assert_eq!(
                    (answer.status.to_string().as_str(), &*answer.text(), answer.is_complete),
                    (&status[..3], "mine", true),
                    "{what}"
                );
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{what}");
                wait_idle(&router);
                assert_eq!(asked.load(Ordering::Relaxed), before + 1, "it is asked once: {what}");
                // On the other path the client may not have been read to its end, and then it is not kept.
                if head.contains("/chat/") && !matches!(how, How::Patient) {
                    client.send(chat());
                    assert_eq!(
                        client.answer().status,
                        answer.status,
                        "the client's connection is kept: {what}"
                    );
                }
            }
        }
    }
}
