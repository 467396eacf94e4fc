//! WebSockets: tunnelled after the engine's 101 only, and counted for as long as they live.

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::router::{config, in_flight, start, wait_idle};
use router_tests::wait::Gate;

const UPGRADE: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: h\r\nconnection: keep-alive, Upgrade\r\n\
    upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-accept: abc\r\n\r\n";

#[test]
fn after_the_engines_101_bytes_pass_both_ways_and_count_until_the_end() {
    let gate = Gate::default();
    let opened = gate.clone();
    let engine = Backend::start(move |_, exchange| {
        exchange.send(SWITCHED);
        // No HTTP, and what would be an offence there.
        exchange.send("greeting\n\0");
        assert_eq!(exchange.read(10), b"\x81\x05hello\n\r\n");
        exchange.send("reply");
        opened.wait();
        Then::Close
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(UPGRADE);
    let head = client.head().to_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    for line in ["connection: upgrade", "upgrade: websocket", "sec-websocket-accept: abc"] {
        assert!(head.lines().any(|l| l == line), "{line} in {head}");
    }
    assert_eq!(client.read(10), b"greeting\n\0");
    client.send(b"\x81\x05hello\n\r\n");
    assert_eq!(client.read(5), b"reply");
    assert_eq!(in_flight(&router, 0), 1, "a tunnel is in flight");
    gate.open();
    assert!(client.is_closed(), "the engine's end is the client's");
    drop(client);
    wait_idle(&router);
    let request = engine.only();
    assert_eq!(request.header("upgrade"), Some("websocket"));
    assert_eq!(request.header("connection").map(str::to_lowercase).as_deref(), Some("upgrade"));
    assert_eq!(request.header("sec-websocket-key"), Some("AAAAAAAAAAAAAAAAAAAAAA=="));
}

#[test]
fn a_client_that_leaves_a_tunnel_closes_it_at_the_engine() {
    let engine = Backend::start(|_, exchange| {
        exchange.send(SWITCHED);
        exchange.wait_closed()
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(UPGRADE);
    client.head();
    assert_eq!(in_flight(&router, 0), 1);
    drop(client);
    engine.wait_closed(1);
    wait_idle(&router);
}

#[test]
fn an_engine_that_does_not_switch_is_answered_like_any_other() {
    let engine = Backend::start(|_, exchange| exchange.answer("426 Upgrade Required", "{}"));
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(UPGRADE);
    assert_eq!(client.answer().status, 426);
    client.send(chat());
    assert_eq!(client.answer().status, 426, "the connection is still HTTP");
    wait_idle(&router);
}

#[test]
fn what_asks_for_no_websocket_is_not_switched() {
    let engine = Backend::start(|request, exchange| {
        assert_eq!(request.header("upgrade"), None);
        exchange.answer("200 OK", "{}")
    });
    let router = start(config(&[engine.addr()]));
    for (version, headers) in [
        ("1.1", "connection: upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"),
        ("1.1", "upgrade: websocket\r\n"),
        ("1.0", "connection: upgrade\r\nupgrade: websocket\r\n"),
    ] {
        let request = format!("GET /v1/realtime HTTP/{version}\r\nhost: h\r\n{headers}\r\n");
        assert_eq!(ask(router.addr(), request).status, 200, "{headers}");
    }
}

#[test]
fn an_engine_that_switches_unasked_is_a_502() {
    let engine = Backend::start(|_, exchange| {
        exchange.send(SWITCHED);
        exchange.wait_closed()
    });
    let router = start(config(&[engine.addr()]));
    assert_eq!(ask(router.addr(), chat()).status, 502);
    wait_idle(&router);
}
