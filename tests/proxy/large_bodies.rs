//! P07: bodies with pictures in them, up to the limit and beyond, many at a time, and engines that are slow to read
//! them or refuse them early.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use router_tests::backend::{Backend, header_values};
use router_tests::client::{Answer, Client};
use router_tests::process::{self, Process};
use router_tests::router::{config, metric, start, wait_idle};
use router_tests::wait::is_long;

/// A debug build scans some 20 MB a second, and others build beside it.
fn patience() -> Duration {
    Duration::from_secs(if is_long() { 300 } else { 60 })
}

const CHAT: &str = "/v1/chat/completions";

fn hash(body: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    hasher.finish().to_string()
}

/// A chat of so many bytes with one picture, which differs by `seed`.
fn chat_of(bytes: usize, seed: usize) -> Vec<u8> {
    let before = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,"#;
    let after = r#""}}]}]}"#;
    let picture =
        (0..bytes - before.len() - after.len()).map(|i| b"ABCDwxyz0189+/ab"[(i / 7 + i * seed) % 16]);
    before.bytes().chain(picture).chain(after.bytes()).collect()
}

fn send(router: SocketAddr, path: &str, body: &[u8], is_chunked: bool) -> Answer {
    let mut client = Client::connect(router).patient(patience());
    let head = format!("POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n");
    if !is_chunked {
        client.send(format!("{head}content-length: {}\r\n\r\n", body.len()));
        client.send(body);
        return client.answer();
    }
    client.send(format!("{head}transfer-encoding: chunked\r\n\r\n"));
    for piece in body.chunks(300_000) {
        client.send(format!("{:x}\r\n", piece.len()));
        client.send(piece);
        client.send("\r\n");
    }
    client.send("0\r\n\r\n");
    client.answer()
}

/// An engine that answers with the hash of what it got.
fn hashing() -> Backend {
    Backend::start(|request, exchange| exchange.answer("200 OK", &hash(&request.body)))
}

#[test]
fn p07_bodies_up_to_the_limit_arrive_as_they_were_and_one_byte_more_is_413() {
    let engine = hashing();
    let mut config = config(&[engine.addr()]);
    let limit = config.limits.body_bytes_max as usize;
    assert_eq!(limit, 64 << 20, "by default");
    // A scan of 64 MB takes seconds in a debug build.
    let limit = if is_long() { limit } else { 8 << 20 };
    config.limits.body_bytes_max = limit as u64;
    let router = start(config);
    let mut sizes = vec![1_900_000, 2_100_000, limit];
    if is_long() {
        sizes.push(20_000_000);
    }
    for is_chunked in [false, true] {
        for &bytes in &sizes {
            let body = chat_of(bytes, bytes);
            let answer = send(router.addr(), CHAT, &body, is_chunked);
            assert_eq!((answer.status, answer.text()), (200, hash(&body)), "{bytes}, chunked: {is_chunked}");
        }
        let answer = send(router.addr(), CHAT, &chat_of(limit + 1, 1), is_chunked);
        assert_eq!(answer.status, 413, "chunked: {is_chunked}");
        assert!(answer.text().contains(r#""code":"body_too_large""#), "{answer:?}");
    }
    assert_eq!(metric(&router, "unlatch_refused_total", "body_too_large"), 2.0);
    wait_idle(&router);
}

/// Twice, with room for exactly so many: nothing is held twice, and all of it comes back.
#[test]
fn p07_twenty_at_a_time_take_their_size_and_give_it_back() {
    const CLIENTS: usize = 20;
    let engine = hashing();
    let mut config = config(&[engine.addr()]);
    let bytes = if is_long() { 20_000_000 } else { 2_100_000 };
    config.limits.bodies_total_bytes_max = (CLIENTS * bytes) as u64;
    let router = start(config);
    for round in 0..2 {
        std::thread::scope(|scope| {
            for i in 0..CLIENTS {
                let router = router.addr();
                scope.spawn(move || {
                    let body = chat_of(bytes, i);
                    let answer = send(router, CHAT, &body, false);
                    assert_eq!((answer.status, answer.text()), (200, hash(&body)), "{i}, round {round}");
                });
            }
        });
        wait_idle(&router);
    }
    assert_eq!(metric(&router, "unlatch_refused_total", ""), 0.0);
}

/// By what the kernel says that the program holds.
#[test]
fn p07_twenty_at_a_time_are_held_once() {
    const CLIENTS: usize = 20;
    const BUFFERS_KIB: u64 = 8 << 10;
    let program = match process::program() {
        Ok(program) => program,
        Err(reason) => {
            println!("SKIP p07_twenty_at_a_time_are_held_once: {reason}");
            return;
        }
    };
    let bytes = if is_long() { 20_000_000 } else { 2_100_000 };
    for (is_chunked, ip) in [(false, "127.79.0.2"), (true, "127.79.0.3")] {
        let engine = hashing();
        let router = Process::start(program.clone(), ip, &[engine.addr()], &[]);
        let base = router.resident_kib();
        std::thread::scope(|scope| {
            for i in 0..CLIENTS {
                let router = router.addr();
                scope.spawn(move || {
                    let body = chat_of(bytes, i);
                    let answer = send(router, CHAT, &body, is_chunked);
                    assert_eq!((answer.status, answer.text()), (200, hash(&body)), "{i}");
                });
            }
        });
        router.wait_idle();
        let bodies = (CLIENTS * bytes) as u64 >> 10;
        let most = router.resident_kib_max() - base;
        println!(
            "chunked {is_chunked}: {base} KiB without bodies, {most} more at most for {bodies} KiB of them"
        );
        // Half as much is room for what grows as it comes.
        assert!(most < bodies + bodies / 2 + BUFFERS_KIB, "{most} KiB for {bodies} KiB of bodies");
    }
}

/// An engine that does `script` with the socket once a POST's head was read, and answers whatever else comes.
pub(crate) fn raw_engine(script: impl Fn(TcpStream, usize) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let script = script.clone();
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                stream.set_read_timeout(Some(patience())).unwrap();
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                if head.starts_with("POST") {
                    let length = header_values(&head, "content-length")[0].parse().unwrap();
                    return script(stream, length);
                }
                let answer = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
                let _gone = stream.write_all(answer);
            });
        }
    });
    addr
}

#[test]
fn p07_an_engine_that_reads_slowly_gets_all_of_it_and_holds_nobody_up() {
    const BYTES: usize = 10_000_000;
    let slow = raw_engine(|mut stream, length| {
        let mut body = vec![0; length];
        // Beyond what the sockets buffer.
        for piece in body.chunks_mut(1 << 20) {
            std::thread::sleep(Duration::from_millis(if is_long() { 1000 } else { 50 }));
            stream.read_exact(piece).unwrap();
        }
        let hash = hash(&body);
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{hash}", hash.len()).unwrap();
    });
    let quick = Backend::ok();
    let mut config = config(&[slow, quick.addr()]);
    config.backends[0].spec.model = Some("slow".into());
    let router = start(config);
    let body = String::from_utf8(chat_of(BYTES, 3)).unwrap().replace(r#""model":"m""#, r#""model":"slow""#);
    std::thread::scope(|scope| {
        let (addr, body) = (router.addr(), body.as_bytes());
        let sent = scope.spawn(move || send(addr, CHAT, body, false));
        let mut answered = 0;
        while !sent.is_finished() {
            assert_eq!(router_tests::client::ask(router.addr(), router_tests::client::chat()).status, 200);
            answered += 1;
        }
        assert!(answered > 10, "{answered}");
        let answer = sent.join().unwrap();
        assert_eq!((answer.status, answer.text()), (200, hash(body)));
    });
    wait_idle(&router);
}

#[test]
fn p07_an_engines_early_413_reaches_the_client() {
    const REFUSED: &[u8] = b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 4\r\n\r\nmine";
    // One closes with a FIN after its answer, one with what it has not read: a reset.
    let polite = raw_engine(|mut stream, _| {
        stream.write_all(REFUSED).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let _all = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let rude = raw_engine(|mut stream, _| stream.write_all(REFUSED).unwrap());
    let body = chat_of(5_000_000, 1);
    for (engine, name) in [(polite, "polite"), (rude, "rude")] {
        let router = start(config(&[engine]));
        for path in [CHAT, "/v1/files"] {
            for _ in 0..5 {
                let answer = send(router.addr(), path, &body, false);
                assert_eq!((answer.status, &*answer.text()), (413, "mine"), "{name}, {path}: {answer:?}");
            }
        }
        wait_idle(&router);
    }
}
