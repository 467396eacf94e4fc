//! Every end of a request gives its count back, exactly once; and the engine hears of it.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use router_policy::{Outcome, Usage};
use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat, post};
use router_tests::router::{config, in_flight, start, wait_idle};
use router_tests::wait::{self, Gate};

/// Leaves; what is returned may still read.
type Leave = fn(Client) -> Option<Client>;

/// The ways to leave. A client that closes its sending side only cannot be told from one that closed (docs/http.md):
/// the one point where we do otherwise than the case (g).
const WAYS: [(&str, Leave); 3] = [
    ("close", |client| {
        drop(client);
        None
    }),
    ("reset", |client| {
        client.reset();
        None
    }),
    ("half-close", |client| {
        client.half_close();
        Some(client)
    }),
];

const BODIES: [&str; 2] = [r#"{"model":"m","prompt":"x"}"#, r#"{"model":"m","prompt":"x","stream":true}"#];

/// P01 (a), (b), (d).
#[test]
fn p01_a_client_that_leaves_before_headers_cancels_the_request_at_the_engine() {
    for (way, leave) in WAYS {
        for body in BODIES {
            let engines = [(); 2].map(|()| Backend::start(|_, exchange| exchange.wait_closed()));
            let router = start(config(&engines.each_ref().map(Backend::addr)));
            let mut client = Client::connect(router.addr());
            client.send(post("/v1/completions", body));
            let received = || engines.iter().map(|e| e.received().len()).sum::<usize>();
            wait::until("the request arrives", || received() == 1);
            assert_eq!(router.in_flight(), 1);
            let left = Instant::now();
            let _half = leave(client);
            let asked = engines.iter().find(|e| !e.received().is_empty()).unwrap();
            asked.wait_closed(1);
            wait_idle(&router);
            assert!(left.elapsed() < Duration::from_secs(1), "{way}: {:?}", left.elapsed());
            assert_eq!(received(), 1, "{way}: nobody else is asked for a client that is gone");
        }
    }
}

/// P01 (c), (d).
#[test]
fn p01_a_client_that_leaves_in_mid_stream_cancels_the_request_at_the_engine() {
    for (way, leave) in WAYS {
        let engine = Backend::start(|_, exchange| {
            exchange.start_stream();
            exchange.chunk("data: 0\n\n");
            exchange.wait_closed()
        });
        let router = start(config(&[engine.addr()]));
        let mut client = Client::connect(router.addr());
        client.send(chat());
        client.head();
        assert_eq!(client.chunk().as_deref(), Some("data: 0\n\n"));
        assert_eq!(router.in_flight(), 1);
        let left = Instant::now();
        let _half = leave(client);
        engine.wait_closed(1);
        wait_idle(&router);
        assert!(left.elapsed() < Duration::from_secs(1), "{way}: {:?}", left.elapsed());
    }
}

/// P01 (f): what was not sent yet is never sent.
#[test]
fn p01_a_client_that_leaves_while_its_engine_is_connected_to_is_not_sent() {
    // Nobody accepts, and the queue is full: connecting hangs.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let addr = full.local_addr().unwrap();
    let mut config = config(&[addr]);
    config.limits.connect_timeout = wait::DEADLINE;
    let router = start(config);
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(200)) {
        held.push(stream);
        assert!(held.len() < 64, "the queue must fill");
    }
    let mut client = Client::connect(router.addr());
    client.send(chat());
    wait::until("it is placed", || router.in_flight() == 1);
    let left = Instant::now();
    drop(client);
    wait_idle(&router);
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    // What reached the queue before the router's: probes and ours. None of them holds the request.
    full.set_nonblocking(true).unwrap();
    while let Ok((mut stream, _)) = full.accept() {
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut text = [0; 4096];
        let read = stream.read(&mut text).unwrap_or(0);
        assert!(!text[..read].starts_with(b"POST"), "it was never sent");
    }
}

#[test]
fn an_engine_that_breaks_off_before_headers_is_a_502_and_is_not_asked_again() {
    for then in [Then::Close, Then::Reset] {
        let engine = Backend::start(move |_, _| then);
        let router = start(config(&[engine.addr()]));
        let answer = ask(router.addr(), chat());
        assert_eq!(answer.status, 502, "{then:?}: {answer:?}");
        assert!(answer.text().contains(r#""code":"backend_failed""#), "{then:?}: {answer:?}");
        assert_eq!(router.in_flight(), 0, "{then:?}");
        assert_eq!(engine.received().len(), 1, "{then:?}: it may have been executed");
    }
}

#[test]
fn the_first_byte_is_told_at_the_first_event_not_at_a_comment() {
    let (comment, event) = (Gate::default(), Gate::default());
    let (at_comment, at_event) = (comment.clone(), event.clone());
    let engine = Backend::start(move |_, exchange| {
        exchange.start_stream();
        exchange.chunk(": ping\n\n");
        at_comment.wait();
        exchange.chunk("data: 0\n\n");
        at_event.wait();
        exchange.end_stream()
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(post("/v1/completions", &format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(4000))));
    client.head();
    assert_eq!(client.chunk().as_deref(), Some(": ping\n\n"));
    let awaiting = || router.ledger().snapshot(router.ledger().backends()[0]).unwrap().own.q_tokens;
    assert!(awaiting() > 0, "a comment is no first byte");
    comment.open();
    assert_eq!(client.chunk().as_deref(), Some("data: 0\n\n"));
    assert_eq!(awaiting(), 0, "its prompt is read");
    assert_eq!(router.in_flight(), 1, "and it is still in flight");
    event.open();
    assert_eq!(client.chunk(), None);
    wait_idle(&router);
}

#[test]
fn counts_are_live_and_split_a_burst_evenly() {
    let gate = Gate::default();
    let script = |gate: Gate| {
        move |_: &_, exchange: &mut router_tests::backend::Exchange| {
            gate.wait();
            exchange.answer("200 OK", "{}")
        }
    };
    let (a, b) = (Backend::start(script(gate.clone())), Backend::start(script(gate.clone())));
    let router = start(config(&[a.addr(), b.addr()]));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = Client::connect(router.addr());
            client.send(chat());
            client
        })
        .collect();
    wait::until("all eight are counted", || router.in_flight() == 8);
    assert_eq!((in_flight(&router, 0), in_flight(&router, 1)), (4, 4));
    gate.open();
    for mut client in clients {
        assert_eq!(client.answer().status, 200);
    }
    wait_idle(&router);
    assert_eq!((a.received().len(), b.received().len()), (4, 4));
}

#[test]
fn a_forced_placement_is_counted_like_any_other() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let id = router.ledger().backends()[0];
    let shape = router_policy::RequestShape::unshaped();
    let (placed, guard) = router.ledger().pick_forced(&shape, id).unwrap();
    assert_eq!((placed.backend, router.in_flight()), (id, 1));
    guard.finish(Outcome::Completed, &Usage::default());
    assert_eq!(router.in_flight(), 0);
}
