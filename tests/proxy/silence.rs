//! Engines that fall silent: minutes before the first byte are normal, silence after it has a limit.

use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::router::{config, metric, start, wait_idle};
use router_tests::wait::{self, DEADLINE, is_long};

/// P02 (e).
#[test]
fn p02_an_answer_that_stops_coming_is_broken_off_and_never_looks_whole() {
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
    assert_eq!(engine.received().len(), 1);
    assert_eq!(metric(&router, "unlatch_request_seconds_count", "outcome=\"upstream_failed\""), 1.0);
}

/// P05: before the first byte silence has no limit, and within an answer it is a separate one. With the limits of a
/// default configuration and seven minutes where there is time.
#[test]
fn p05_minutes_without_a_byte_are_normal() {
    let pause = if is_long() { Duration::from_secs(7 * 60) } else { Duration::from_millis(400) };
    let engine = Backend::start(move |request, exchange| {
        match request.header("x-case") {
            Some("whole") => {
                std::thread::sleep(pause);
                return exchange.answer("200 OK", "data: 1\n\n");
            }
            Some("first") => {
                exchange.start_stream();
                std::thread::sleep(pause);
            }
            _ => {
                exchange.start_stream();
                exchange.chunk("data: 0\n\n");
                // Below the limit.
                std::thread::sleep(if is_long() { pause } else { pause / 4 });
            }
        }
        exchange.chunk("data: 1\n\n");
        exchange.end_stream()
    });
    let mut config = config(&[engine.addr()]);
    assert_eq!(config.limits.stream_idle_timeout, Some(Duration::from_secs(600)), "by default");
    assert_eq!(config.limits.sse_keepalive, None, "by default");
    if !is_long() {
        config.limits.stream_idle_timeout = Some(pause / 2);
    }
    let router = start(config);
    std::thread::scope(|scope| {
        for (case, text) in
            [("whole", "data: 1\n\n"), ("first", "data: 1\n\n"), ("between", "data: 0\n\ndata: 1\n\n")]
        {
            let router = router.addr();
            scope.spawn(move || {
                let mut client = Client::connect(router).patient(2 * pause + DEADLINE);
                client.send(chat().replacen("\r\n\r\n", &format!("\r\nx-case: {case}\r\n\r\n"), 1));
                let answer = client.answer();
                assert!(answer.is_complete && answer.text() == text, "{case}: {answer:?}");
            });
        }
    });
    wait_idle(&router);
}

/// P05: the kernel probes a silent peer, on both sides.
#[test]
fn p05_tcp_keep_alive_is_on_towards_both_sides() {
    let engine = Backend::start(|_, exchange| exchange.wait_closed());
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(chat());
    engine.wait_received(1);
    let has_timer = |local: &str, remote: &str| {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
        let is_ours =
            |row: &&Vec<&str>| row[1].ends_with(local) && row[2].ends_with(remote) && row[3] == "01";
        // Column 5 is the running timer, of which 02 is the keep-alive's. Probes have sockets of their own.
        rows.iter().filter(is_ours).any(|row| row[5].starts_with("02:"))
    };
    let port = |addr: std::net::SocketAddr| format!(":{:04X}", addr.port());
    let (ours, theirs) = (port(router.addr()), port(engine.addr()));
    wait::until("towards the client", || has_timer(&ours, ""));
    wait::until("towards the engine", || has_timer("", &theirs));
}

/// P05: comments begin after the answer has, and only in streams of events.
#[test]
fn p05_comments_keep_a_silent_stream_of_events_alive_between_events_only() {
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
    // Other tests run beside this one: the last quarter is theirs.
    assert!(took[75] < Duration::from_millis(20), "{:?} to {:?}", took[50], &took[75..]);
    wait_idle(&router);
    assert_eq!(metric(&router, "unlatch_cancel_seconds_count", ""), 100.0);
}
