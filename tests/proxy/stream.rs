//! Streams: every chunk at once, every byte as it was, and a broken one never looks whole.

use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Exchange, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::fixture;
use router_tests::router::{config, metric, start, wait_idle};
use router_tests::wait::Gate;

/// P11: the head before any event, each event before the next.
#[test]
fn p11_each_chunk_reaches_the_client_before_the_next_is_made() {
    let gates: [Gate; 3] = Default::default();
    let at_engine = gates.clone();
    let engine = Backend::start(move |_, exchange| {
        exchange.start_stream();
        for (i, gate) in at_engine.iter().enumerate() {
            gate.wait();
            exchange.chunk(&format!("data: {i}\n\n"));
        }
        exchange.end_stream()
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(chat());
    assert!(client.head().contains("text/event-stream"), "the head comes before the first event is made");
    for (i, gate) in gates.iter().enumerate() {
        gate.open();
        assert_eq!(client.chunk(), Some(format!("data: {i}\n\n")));
    }
    assert_eq!(client.chunk(), None);
    wait_idle(&router);
}

/// P11: nothing is held, compressed or taken away.
#[test]
fn p11_events_pass_within_milliseconds_and_an_engines_own_compression_untouched() {
    const EVENTS: usize = 50;
    for encoding in ["", "content-encoding: gzip\r\n"] {
        let (told, sent) = mpsc::channel();
        let told = Mutex::new(told);
        let engine = Backend::start(move |request, exchange| {
            assert_eq!(request.header("accept-encoding"), Some("gzip, br"));
            exchange.send(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n\
                 x-accel-buffering: no\r\n{encoding}transfer-encoding: chunked\r\n\r\n"
            ));
            for i in 0..EVENTS {
                std::thread::sleep(Duration::from_millis(10));
                told.lock().unwrap().send(Instant::now()).unwrap();
                exchange.chunk(&format!("data: {i:>12}\n\n"));
            }
            exchange.end_stream()
        });
        let router = start(config(&[engine.addr()]));
        let mut client = Client::connect(router.addr());
        client.send(chat().replacen("\r\n\r\n", "\r\naccept-encoding: gzip, br\r\n\r\n", 1));
        let head = client.head();
        for line in ["cache-control: no-cache", "x-accel-buffering: no", encoding.trim_end()] {
            assert!(head.contains(line), "{line} in {head}");
        }
        assert_eq!(head.contains("content-encoding"), !encoding.is_empty(), "{head}");
        let mut came = String::new();
        let mut took: Vec<_> = (0..EVENTS)
            .map(|i| {
                // What came to the router together may leave it together.
                while came.is_empty() {
                    came = client.chunk().expect("the stream goes on");
                }
                let rest = came.strip_prefix(&format!("data: {i:>12}\n\n"));
                came = rest.unwrap_or_else(|| panic!("event {i} is next, not {came:?}")).to_owned();
                sent.recv().unwrap().elapsed()
            })
            .collect();
        took.sort();
        // Other tests run beside this one: the last quarter is theirs.
        assert!(took[EVENTS * 3 / 4] < Duration::from_millis(20), "{took:?}");
    }
}

/// P03.
#[test]
fn p03_bytes_are_not_touched_wherever_the_chunks_end() {
    let split: serde_json::Value =
        serde_json::from_str(&fixture::http("upstream_sse_split_bytes.json")).unwrap();
    let chunks = split["chunks_hex"].as_array().unwrap().iter();
    let chunks: Vec<_> = chunks.map(|hex| fixture::unhex(hex.as_str().unwrap())).collect();
    assert_eq!(chunks.concat(), fixture::unhex(split["joined_hex"].as_str().unwrap()));
    let large = format!("data: {}\n\n", "é🦀".repeat(350_000));
    let odd: [&[u8]; 10] = [
        b"data: \xf0\x9f",
        b"\x98\x80\r\n\r\n",
        b": comment\n",
        b"event: nothing\n\n",
        b"data:[DONE]",
        b"\n\n\xff\xfe",
        b"data: 1\n\ndata: 2\n\n",
        large.as_bytes(),
        b"\r\r\n\n\r",
        b"data: no final blank",
    ];
    let odd: Vec<Vec<u8>> = odd.iter().map(|piece| piece.to_vec()).collect();
    for (pieces, comments) in [(chunks, None), (odd.clone(), None), (odd, Some(Duration::from_secs(60)))] {
        let whole = pieces.concat();
        let engine = Backend::start(move |_, exchange| {
            exchange.start_stream();
            for piece in &pieces {
                let head = format!("{:x}\r\n", piece.len());
                exchange.send([head.as_bytes(), piece, b"\r\n"].concat());
                std::thread::sleep(Duration::from_millis(5));
            }
            exchange.end_stream()
        });
        let mut config = config(&[engine.addr()]);
        config.limits.sse_keepalive = comments;
        let router = start(config);
        let answer = ask(router.addr(), chat());
        assert!(answer.body == whole, "{} bytes of {}", answer.body.len(), whole.len());
        assert!(answer.is_complete);
    }
}

/// P02 (a), (b).
#[test]
fn p02_a_chunked_stream_that_breaks_does_not_look_whole() {
    for then in [Then::Close, Then::Reset] {
        let sent = Gate::default();
        let script = |seen: Gate| {
            move |_: &_, exchange: &mut Exchange| {
                exchange.start_stream();
                for i in 0..3 {
                    exchange.chunk(&format!("data: {i}\n\n"));
                }
                // A reset would discard what the client has not read.
                seen.wait();
                then
            }
        };
        let engines = [(); 2].map(|()| Backend::start(script(sent.clone())));
        let router = start(config(&engines.each_ref().map(Backend::addr)));
        let mut client = Client::connect(router.addr());
        client.send(chat());
        let head = client.head();
        let mut first = String::new();
        while !first.ends_with("data: 2\n\n") {
            // What came together may leave as one chunk.
            first += &client.chunk().expect("there is more");
        }
        assert_eq!(first, "data: 0\n\ndata: 1\n\ndata: 2\n\n", "{then:?}");
        sent.open();
        let rest = client.body(head);
        assert!(
            !rest.is_complete && rest.body.is_empty(),
            "{then:?}: no last chunk, no second answer: {rest:?}"
        );
        wait_idle(&router);
        let asked: usize = engines.iter().map(|e| e.received().len()).sum();
        assert_eq!(asked, 1, "{then:?}: it is not sent again");
        assert_eq!(broken_upstream(&router), 1.0, "{then:?}");
    }
}

/// Requests whose engine broke off.
fn broken_upstream(router: &router_user::app::RunningRouter) -> f64 {
    metric(router, "unlatch_request_seconds_count", "outcome=\"upstream_failed\"")
}

/// P02 (c).
#[test]
fn p02_an_answer_with_a_length_that_breaks_does_not_look_whole() {
    let engine = Backend::start(|_, exchange| {
        exchange.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf.");
        Then::Close
    });
    let router = start(config(&[engine.addr()]));
    let answer = ask(router.addr(), chat());
    assert_eq!((answer.status, &*answer.text(), answer.is_complete), (200, "half.", false));
    wait_idle(&router);
    assert_eq!(engine.received().len(), 1);
    assert_eq!(broken_upstream(&router), 1.0);
}

#[test]
fn an_engine_that_closes_after_a_stream_with_keep_alive_announced_makes_no_failure() {
    let engine = Backend::start(|_, exchange| {
        exchange.send(
            "HTTP/1.1 200 OK\r\nkeep-alive: timeout=5, max=100\r\ncontent-type: text/event-stream\r\n\
             transfer-encoding: chunked\r\n\r\n",
        );
        exchange.chunk("data: a\n\n");
        exchange.end_stream();
        Then::Close
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    for i in 0..20 {
        client.send(chat());
        let answer = client.answer();
        assert!(answer.status == 200 && answer.is_complete, "request {i}: {answer:?}");
    }
    assert_eq!(engine.received().len(), 20, "each was executed once");
    wait_idle(&router);
}
