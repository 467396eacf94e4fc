//! WebSockets: tunnelled after the engine's 101 only, and counted for as long as they live.

use std::net::TcpStream;
use std::time::Duration;

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::fixture;
use router_tests::router::{config, in_flight, start, wait_idle};
use router_tests::wait::{self, DEADLINE, Gate, is_long};

fn upgrade() -> String {
    fixture::http("ws_realtime.http")
}

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-accept: abc\r\nsec-websocket-protocol: realtime\r\n\r\n";

/// P12.
#[test]
fn p12_after_the_engines_101_bytes_pass_both_ways_and_count_until_the_end() {
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
    client.send(upgrade());
    let head = client.head().to_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    for line in [
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-accept: abc",
        "sec-websocket-protocol: realtime",
    ] {
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
    assert_eq!(request.header("sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));
    let protocols = "realtime, openai-insecure-api-key.client-key";
    assert_eq!(request.header("sec-websocket-protocol"), Some(protocols));
    assert_eq!(request.line(), "GET /v1/realtime?model=m HTTP/1.1");
}

/// A frame of a client: masked with zeros, so that its payload stays legible.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = match payload.len() {
        n @ 0..126 => vec![0x80 | n as u8],
        n @ 126..65_536 => [&[0xfe][..], &(n as u16).to_be_bytes()].concat(),
        n => [&[0xff][..], &(n as u64).to_be_bytes()].concat(),
    };
    [&[first], &*length, &[0; 4], payload].concat()
}

/// P12: the limits of HTTP do not cut a tunnel, frames pass unchanged both ways, and a close is passed on.
#[test]
fn p12_frames_of_any_size_pass_and_silence_does_not_end_a_tunnel() {
    const CLOSE: &[u8] = &[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8];
    let five_megabytes: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251) as u8).collect();
    let frames = [
        frame(0x81, b"x"),
        frame(0x82, &five_megabytes),
        frame(0x01, "ü".as_bytes()),
        frame(0x00, b"mid"),
        frame(0x80, b"end"),
        frame(0x89, b"ping"),
        frame(0x8a, b"pong"),
    ];
    let lengths: Vec<usize> = frames.iter().map(Vec::len).chain([CLOSE.len()]).collect();
    // Ten minutes, where there is time, with the limits of a default configuration.
    let idle = if is_long() { Duration::from_secs(600) } else { Duration::from_millis(500) };
    let engine = Backend::start(move |_, exchange| {
        exchange.patient(idle + DEADLINE);
        exchange.send(SWITCHED);
        for &length in &lengths {
            let bytes = exchange.read(length);
            exchange.send(bytes);
        }
        Then::Close
    });
    let mut config = config(&[engine.addr()]);
    if !is_long() {
        config.limits.head_timeout = Duration::from_millis(100);
        config.limits.stream_idle_timeout = Some(Duration::from_millis(100));
    }
    let router = start(config);
    let mut client = Client::connect(router.addr()).patient(idle + DEADLINE);
    client.send(upgrade());
    client.head();
    for frame in &frames {
        std::thread::scope(|scope| {
            let mut writer = client.another();
            scope.spawn(move || writer.send(frame));
            assert!(client.read(frame.len()) == *frame, "{} bytes", frame.len());
        });
        assert_eq!(in_flight(&router, 0), 1);
    }
    std::thread::sleep(idle);
    client.send(CLOSE);
    assert_eq!(client.read(CLOSE.len()), CLOSE);
    assert!(client.is_closed());
    drop(client);
    wait_idle(&router);
}

/// P12.
#[test]
fn p12_a_reset_from_either_side_ends_the_tunnel_for_the_other() {
    let gate = Gate::default();
    let opened = gate.clone();
    let engine = Backend::start(move |request, exchange| {
        exchange.send(SWITCHED);
        if request.header("x-engine-resets").is_none() {
            return exchange.wait_closed();
        }
        opened.wait();
        Then::Reset
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(upgrade());
    client.head();
    client.reset();
    engine.wait_closed(1);
    wait_idle(&router);
    let mut client = Client::connect(router.addr());
    client.send(upgrade().replacen("\r\n\r\n", "\r\nx-engine-resets: 1\r\n\r\n", 1));
    client.head();
    gate.open();
    assert!(client.is_closed());
    wait_idle(&router);
}

/// P12.
#[test]
fn p12_a_drain_waits_for_a_tunnel_up_to_its_deadline() {
    let engine = Backend::start(|_, exchange| {
        exchange.send(SWITCHED);
        exchange.wait_closed()
    });
    for leaves in [true, false] {
        let router = start(config(&[engine.addr()]));
        let mut client = Client::connect(router.addr());
        client.send(upgrade());
        client.head();
        let limit = if leaves { DEADLINE } else { Duration::from_millis(200) };
        let addr = router.addr();
        let drain = std::thread::spawn(move || router.shutdown(limit));
        wait::until("nobody listens any more", || TcpStream::connect(addr).is_err());
        if leaves {
            assert!(!drain.is_finished(), "it waits");
            drop(client);
            assert_eq!(drain.join().unwrap().cut, 0);
        } else {
            assert_eq!(drain.join().unwrap().cut, 1);
            assert!(client.is_closed());
        }
    }
    engine.wait_closed(2);
}

/// P12.
#[test]
fn p12_the_querys_model_decides_who_gets_it() {
    let engines = [(); 2].map(|()| {
        Backend::start(|_, exchange| {
            exchange.send(SWITCHED);
            exchange.wait_closed()
        })
    });
    let mut config = config(&engines.each_ref().map(Backend::addr));
    config.backends[1].spec.model = Some("org/big".into());
    let router = start(config);
    for i in 1..=3 {
        let mut client = Client::connect(router.addr());
        client.send(upgrade().replace("model=m", "x=1&model=org%2Fbig"));
        assert!(client.head().starts_with("HTTP/1.1 101 "));
        drop(client);
        engines[1].wait_closed(i);
    }
    assert!(engines[0].received().is_empty());
    let unknown = ask(router.addr(), upgrade().replace("model=m", "model=none"));
    assert_eq!(unknown.status, 404, "{unknown:?}");
}

#[test]
fn a_client_that_leaves_a_tunnel_closes_it_at_the_engine() {
    let engine = Backend::start(|_, exchange| {
        exchange.send(SWITCHED);
        exchange.wait_closed()
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(upgrade());
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
    client.send(upgrade());
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
