//! Engines that fall silent: minutes before the first byte are normal, silence after it has a limit.

use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::router::{config, metric, start, wait_idle};

#[test]
fn an_answer_that_stops_coming_is_broken_off_and_never_looks_whole() {
    let engine = Backend::start(|_, exchange| {
        exchange.start_stream();
        exchange.chunk("data: 1\n\n");
        exchange.wait_closed()
    });
    let mut config = config(&[engine.addr()]);
    config.limits.stream_idle_timeout = Some(Duration::from_millis(200));
    let router = start(config);
    let answer = ask(router.addr(), chat());
    assert!(!answer.is_complete && answer.text() == "data: 1\n\n", "{answer:?}");
    engine.wait_closed(1);
    wait_idle(&router);
}

#[test]
fn before_the_first_byte_silence_has_no_limit() {
    let engine = Backend::start(|_, exchange| {
        std::thread::sleep(Duration::from_millis(400));
        exchange.start_stream();
        std::thread::sleep(Duration::from_millis(400));
        exchange.chunk("data: 1\n\n");
        exchange.end_stream()
    });
    let mut config = config(&[engine.addr()]);
    config.limits.stream_idle_timeout = Some(Duration::from_millis(200));
    let router = start(config);
    let answer = ask(router.addr(), chat());
    assert!(answer.is_complete && answer.text() == "data: 1\n\n", "{answer:?}");
}

#[test]
fn comments_keep_a_silent_stream_of_events_alive_between_events_only() {
    let engine = Backend::start(|request, exchange| {
        let kind = if request.line().contains("chat") { "text/event-stream" } else { "text/plain" };
        exchange
            .send(format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"));
        std::thread::sleep(Duration::from_millis(350));
        exchange.chunk("data: 1\n");
        std::thread::sleep(Duration::from_millis(350));
        exchange.chunk("\n");
        exchange.end_stream();
        Then::KeepAlive
    });
    let mut config = config(&[engine.addr()]);
    config.limits.sse_keepalive = Some(Duration::from_millis(100));
    let router = start(config);
    let text = ask(router.addr(), chat()).text();
    let events = text.trim_start_matches(": keep-alive\n\n");
    assert!((1..=4).contains(&((text.len() - events.len()) / 14)), "{text:?}");
    assert_eq!(events, "data: 1\n\n", "nothing is put within an event");
    let plain = ask(router.addr(), "GET /v1/other HTTP/1.1\r\nhost: h\r\n\r\n");
    assert_eq!(plain.text(), "data: 1\n\n", "what is no stream of events is left alone");
}

/// The engine's socket is closed within milliseconds of the client's, in every phase.
#[test]
fn a_client_that_leaves_is_told_to_the_engine_at_once() {
    let engine = Backend::start(|request, exchange| {
        if request.body.windows(6).any(|w| w == b"stream") {
            exchange.start_stream();
            exchange.chunk("data: 1\n\n");
        }
        exchange.wait_closed()
    });
    let router = start(config(&[engine.addr()]));
    let stream = chat().replace(r#"{"model""#, r#"{"stream":1,"model""#);
    let stream = stream.replace("content-length: 60", "content-length: 71");
    let mut took = Vec::new();
    for i in 0..100 {
        let mut client = Client::connect(router.addr());
        if i % 2 == 0 {
            client.send(chat());
            engine.wait_received(i + 1);
        } else {
            client.send(&stream);
            client.head();
            client.chunk();
        }
        let left = Instant::now();
        drop(client);
        engine.wait_closed(i + 1);
        took.push(left.elapsed());
    }
    took.sort();
    println!("p50 {:?}, p99 {:?}", took[50], took[99]);
    // Other tests run beside this one: the last quarter is theirs.
    assert!(took[75] < Duration::from_millis(20), "{:?} to {:?}", took[50], &took[75..]);
    wait_idle(&router);
    assert_eq!(metric(&router, "unlatch_cancel_seconds_count", ""), 100.0);
}
