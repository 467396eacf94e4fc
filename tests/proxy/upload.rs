//! Forms with files pass through as they come: nothing is held, and their model decides who may get them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask};
use router_tests::router::{config, in_flight, metric, start, wait_idle};
use router_tests::wait::{self, DEADLINE};

const FORM: &str = "--xyz\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n\
    --xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";

fn head(length: usize) -> String {
    format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: h\r\n\
         content-type: multipart/form-data; boundary=xyz\r\ncontent-length: {length}\r\n\r\n"
    )
}

fn form(file_bytes: usize) -> Vec<u8> {
    let file = (0..file_bytes).map(|i| (i % 251) as u8);
    let file: Vec<u8> = file.collect();
    [FORM.as_bytes(), &file, b"\r\n--xyz--\r\n"].concat()
}

#[test]
fn the_engine_reads_an_upload_while_the_client_still_writes_it() {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let mut config = config(&[listener.local_addr().unwrap()]);
    config.limits.bodies_total_bytes_max = 1 << 20;
    let router = router_user::app::Router::start(config).unwrap();
    // Probes come first; the upload is the one POST.
    let engine = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            let mut first = [0; 4];
            if stream.read_exact(&mut first).is_ok() && &first == b"POST" {
                return stream;
            }
            let _gone = stream
                .write_all(b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}");
        }
        unreachable!("a listener does not end")
    });
    let is_ready = || {
        router.ledger().backends().into_iter().all(|id| router.ledger().snapshot(id).is_some_and(|s| s.ready))
    };
    wait::until("the backend becomes ready", is_ready);
    let body = form(8 << 20);
    let mut client = TcpStream::connect(router.addr()).unwrap();
    client.write_all(head(body.len()).as_bytes()).unwrap();
    client.write_all(&body[..4 << 20]).unwrap();
    let mut stream = engine.join().unwrap();
    let mut arrived = vec![0; 3 << 20];
    stream.read_exact(&mut arrived).expect("the engine reads though half is still to be written");
    let writer = std::thread::spawn(move || {
        client.write_all(&body[4 << 20..]).unwrap();
        (client, body)
    });
    while !arrived.ends_with(b"\r\n--xyz--\r\n") {
        let from = arrived.len();
        arrived.resize(from + 65_536, 0);
        let n = stream.read(&mut arrived[from..]).unwrap();
        assert!(n > 0, "the upload must not be cut");
        arrived.truncate(from + n);
    }
    let (_client, body) = writer.join().unwrap();
    assert!(arrived.ends_with(&body), "every byte as it came");
    assert_eq!(in_flight(&router, 0), 1);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
    wait_idle(&router);
}

#[test]
fn the_forms_model_decides_who_gets_it() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    for bytes in [100, 300_000] {
        let body = form(bytes);
        let mut request = head(body.len()).into_bytes();
        request.extend(&body);
        assert_eq!(ask(router.addr(), &request).status, 200);
        assert_eq!(engine.received().last().unwrap().body, body);
    }
    let other = String::from_utf8_lossy(&form(10)).replace("\r\nm\r\n", "\r\nother\r\n");
    let answer = ask(router.addr(), format!("{}{other}", head(other.len())));
    assert_eq!(answer.status, 404, "{answer:?}");
}

#[test]
fn a_chunked_upload_arrives_whole() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let body = form(200_000);
    let mut client = Client::connect(router.addr());
    client.send("POST /v1/files HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n");
    for piece in body.chunks(50_000) {
        client.send(format!("{:x}\r\n", piece.len()));
        client.send(piece);
        client.send("\r\n");
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    assert_eq!(engine.only().body, body);
}

#[test]
fn an_upload_over_the_limit_is_413_and_never_looks_whole() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.limits.body_bytes_max = 100_000;
    let router = start(config);
    assert_eq!(ask(router.addr(), head(100_001)).status, 413, "before a byte of it");
    let mut client = Client::connect(router.addr());
    client.send("POST /v1/files HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n");
    let piece = "x".repeat(40_000);
    for _ in 0..3 {
        client.send(format!("{:x}\r\n{piece}\r\n", piece.len()));
    }
    assert_eq!(client.answer().status, 413);
    assert!(engine.received().is_empty(), "the engine's connection broke within the body");
    wait_idle(&router);
}

#[test]
fn a_client_that_leaves_or_stalls_within_an_upload_frees_the_engine() {
    let engine = Backend::start(|_, _| Then::Close);
    let mut config = config(&[engine.addr()]);
    config.limits.head_timeout = std::time::Duration::from_millis(300);
    let router = start(config);
    let begun = &form(200_000)[..150_000];
    for leaves in [true, false] {
        let mut client = Client::connect(router.addr());
        client.send(head(300_000));
        client.send(begun);
        wait::until("the upload is in flight", || in_flight(&router, 0) == 1);
        if leaves {
            drop(client);
        } else {
            assert_eq!(client.answer().status, 408);
        }
        wait_idle(&router);
    }
    assert_eq!(metric(&router, "unlatch_refused_total", "bad_request"), 1.0);
    assert!(engine.received().is_empty());
}
