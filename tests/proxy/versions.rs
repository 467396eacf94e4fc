//! HTTP/1.0, interim answers, HEAD and OPTIONS, trailers: what is seldom used and often wrong.

use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Exchange, Received, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::fixture;
use router_tests::router::{config, metric, start, wait_idle};

/// Answers in chunks where `x-chunked` is sent, else with a length.
fn either(request: &Received, exchange: &mut Exchange) -> Then {
    if request.header("x-chunked").is_none() {
        return exchange.answer("200 OK", "sized");
    }
    exchange.start_stream();
    exchange.chunk("data: a\n\n");
    exchange.chunk("data: [DONE]\n\n");
    exchange.end_stream()
}

/// P08.
#[test]
fn p08_an_http_1_0_client_gets_no_chunks_and_no_keep_alive_that_it_did_not_ask_for() {
    let engine = Backend::start(either);
    let router = start(config(&[engine.addr()]));
    for (file, is_chunked, is_kept) in [
        ("http10_close.http", false, false),
        ("http10_close.http", true, false),
        ("http10_keepalive.http", false, true),
        ("http10_keepalive.http", true, false),
    ] {
        let extra = if is_chunked { "\r\nx-chunked: 1\r\n\r\n" } else { "\r\n\r\n" };
        let request = fixture::http(file).replacen("\r\n\r\n", extra, 1);
        let mut client = Client::connect(router.addr());
        client.send(&request);
        let answer = client.answer();
        assert_eq!(answer.header("transfer-encoding"), None, "{file}: {answer:?}");
        let text = if is_chunked { "data: a\n\ndata: [DONE]\n\n" } else { "sized" };
        assert_eq!((answer.status, &*answer.text(), answer.is_complete), (200, text, true), "{file}");
        let says_kept = answer.header("connection").is_some_and(|v| v.eq_ignore_ascii_case("keep-alive"));
        assert_eq!(says_kept, is_kept, "{file}: {answer:?}");
        if is_kept {
            client.send(&request);
            assert_eq!(client.answer().text(), "sized");
        } else {
            assert!(client.is_closed(), "{file}");
        }
    }
    for received in engine.received() {
        assert_eq!(received.line(), "POST /v1/chat/completions HTTP/1.1");
    }
    wait_idle(&router);
}

/// P08: a broken stream to a client that knows its end by the connection's must not look whole either.
#[test]
fn p08_a_stream_that_breaks_towards_an_http_1_0_client_is_reset() {
    let engine = Backend::start(|_, exchange| {
        exchange.start_stream();
        exchange.chunk("data: a\n\n");
        Then::Close
    });
    let router = start(config(&[engine.addr()]));
    let answer = ask(router.addr(), fixture::http("http10_close.http"));
    assert!(!answer.is_complete, "{answer:?}");
    wait_idle(&router);
}

const MIB: usize = 1 << 20;

fn mebibyte() -> String {
    format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(MIB - r#"{"model":"m","prompt":""}"#.len()))
}

/// P10.
#[test]
fn p10_a_client_that_waits_for_100_continue_gets_it_once_and_soon() {
    let engine = Backend::start(|_, exchange| {
        // An engine's own interim answers end at the router.
        exchange.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n");
        exchange.answer("200 OK", "{}")
    });
    let router = start(config(&[engine.addr()]));
    let head = fixture::http("expect_100.http");
    for (head, path) in [(head.clone(), "chat"), (head.replace("chat/completions", "files"), "files")] {
        let mut client = Client::connect(router.addr());
        let mut took = Vec::new();
        for _ in 0..5 {
            let sent = Instant::now();
            client.send(&head);
            assert!(client.head().starts_with("HTTP/1.1 100 "), "{path}");
            took.push(sent.elapsed());
            client.send(mebibyte());
            let answer = client.answer();
            assert_eq!((answer.status, &*answer.text()), (200, "{}"), "{path}: one 100, then the answer");
        }
        took.sort();
        assert!(took[2] < Duration::from_millis(100), "{path}: {took:?}");
    }
    for received in engine.received() {
        assert_eq!(received.header("expect"), None, "the wait is between the client and the router");
        assert_eq!(received.body.len(), MIB);
    }
}

/// P10.
#[test]
fn p10_what_is_refused_by_its_head_gets_no_100() {
    let engine = Backend::start(|_, exchange| exchange.answer("401 No", "{}"));
    let mut limited = config(&[engine.addr()]);
    limited.limits.body_bytes_max = 1000;
    let router = start(limited);
    let head = fixture::http("expect_100.http");
    assert_eq!(ask(router.addr(), &head).status, 413, "the limit");
    assert_eq!(ask(router.addr(), head.replace("/v1/chat/completions", "/sleep")).status, 404, "the path");
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(&head);
    assert!(client.head().starts_with("HTTP/1.1 100 "));
    client.send(mebibyte());
    assert_eq!(client.answer().status, 401, "an engine's refusal, after the body that places the request");
    client.send(chat());
    assert_eq!(client.answer().status, 401, "the connection is as good as before");
    wait_idle(&router);
}

/// P10: HTTP/1.0 knows no interim answers; other expectations are ignored.
#[test]
fn p10_other_expectations_are_ignored() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let expecting = |what: &str| chat().replacen("\r\n\r\n", &format!("\r\nexpect: {what}\r\n\r\n"), 1);
    for request in [expecting("100-continue").replace("HTTP/1.1", "HTTP/1.0"), expecting("something-else")] {
        let answer = ask(router.addr(), request);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert!(engine.received().iter().all(|r| r.header("expect").is_none()));
}

/// P14.
#[test]
fn p14_an_answer_to_head_has_no_body_and_gives_its_count_back() {
    let engine = Backend::start(|request, exchange| {
        assert!(request.line().starts_with("HEAD "));
        exchange.send("HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n");
        Then::KeepAlive
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    for _ in 0..2 {
        client.send("HEAD /v1/thing HTTP/1.1\r\nhost: h\r\n\r\n");
        assert!(client.head().contains("content-length: 1234"));
    }
    assert_eq!(router.in_flight(), 0);
    assert!(engine.received().iter().all(|r| r.connection == 0), "its connection is used again");
}

/// P14: a browser's question goes to an engine, has no tokens, and is not asked twice.
#[test]
fn p14_a_preflight_is_forwarded_once() {
    let script = |_: &_, exchange: &mut Exchange| {
        exchange.send(
            "HTTP/1.1 503 Busy\r\naccess-control-allow-origin: https://app.example\r\ncontent-length: 0\r\n\r\n",
        );
        Then::KeepAlive
    };
    let engines = [Backend::start(script), Backend::start(script)];
    let mut config = config(&engines.each_ref().map(Backend::addr));
    config.backends.iter_mut().for_each(|b| b.api_key = None);
    let router = start(config);
    let mut client = Client::connect(router.addr());
    client.send(fixture::http("cors_preflight.http"));
    let answer = client.answer();
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(answer.status, 503, "the engine's word, not 401");
    assert!(client.is_closed(), "it asked for that");
    let received: Vec<_> = engines.iter().flat_map(Backend::received).collect();
    assert_eq!(received.len(), 1, "it is not tried elsewhere");
    assert_eq!(received[0].line(), "OPTIONS /v1/chat/completions HTTP/1.1");
    assert_eq!(received[0].header("access-control-request-method"), Some("POST"));
    assert_eq!(metric(&router, "unlatch_prompt_tokens_total", ""), 0.0, "it is no inference");
    wait_idle(&router);
}

#[test]
fn trailers_end_here_both_ways() {
    let engine = Backend::start(|_, exchange| {
        exchange.send(
            "HTTP/1.1 200 OK\r\ntrailer: x-late\r\ntransfer-encoding: chunked\r\n\r\n\
             2\r\n{}\r\n0\r\nx-late: 1\r\n\r\n",
        );
        Then::KeepAlive
    });
    let router = start(config(&[engine.addr()]));
    for path in ["/v1/completions", "/v1/files"] {
        let mut client = Client::connect(router.addr());
        client.send(format!(
            "POST {path} HTTP/1.1\r\nhost: h\r\nte: trailers\r\ntrailer: x-end\r\n\
             transfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\nx-end: 1\r\n\r\n"
        ));
        let answer = client.answer();
        assert!(answer.status == 200 && answer.text() == "{}" && answer.is_complete, "{answer:?}");
        assert_eq!(answer.header("trailer"), None);
        // What follows the last chunk is its empty line, and then the next answer.
        client.send(chat());
        assert_eq!(client.answer().status, 200);
    }
    assert!(engine.received().iter().all(|r| r.header("trailer").is_none()));
    wait_idle(&router);
}
