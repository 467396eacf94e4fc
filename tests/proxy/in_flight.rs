//! Every end of a request gives its count back, exactly once; and the engine hears of it.

use router_policy::{Outcome, Usage};
use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat, post};
use router_tests::router::{config, in_flight, start, wait_idle};
use router_tests::wait::{self, Gate};

#[test]
fn a_client_that_leaves_before_headers_cancels_the_request_at_the_engine() {
    let engine = Backend::start(|_, exchange| exchange.wait_closed());
    let router = start(config(&[engine.addr()]));
    let bodies = [r#"{"model":"m","prompt":"x"}"#, r#"{"model":"m","prompt":"x","stream":true}"#];
    for (i, body) in bodies.into_iter().enumerate() {
        let mut client = Client::connect(router.addr());
        client.send(post("/v1/completions", body));
        engine.wait_received(i + 1);
        assert_eq!(router.in_flight(), 1);
        drop(client);
        engine.wait_closed(i + 1);
        wait_idle(&router);
    }
}

#[test]
fn a_client_that_leaves_in_mid_stream_cancels_the_request_at_the_engine() {
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
    drop(client);
    engine.wait_closed(1);
    wait_idle(&router);
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
