//! Every limit answers with its status, and gives back what it took.

use std::time::Duration;

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat, post};
use router_tests::router::{config, start, wait_idle};
use router_tests::wait::{self, Gate};

const LIMIT: u64 = 1000;

fn body(bytes: usize) -> String {
    let frame = r#"{"model":"m","prompt":""}"#;
    frame.replace(r#""""#, &format!("\"{}\"", "x".repeat(bytes - frame.len())))
}

#[test]
fn a_body_over_the_limit_is_413_before_it_is_read() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.limits.body_bytes_max = LIMIT;
    let router = start(config);
    let at_limit = ask(router.addr(), post("/v1/completions", &body(1000)));
    assert_eq!(at_limit.status, 200, "{at_limit:?}");
    let over = ask(router.addr(), post("/v1/completions", &body(1001)));
    assert_eq!(over.status, 413);
    assert!(over.text().contains(r#""code":"body_too_large""#) && over.text().contains("1000"), "{over:?}");
    let mut client = Client::connect(router.addr());
    client.send(
        "POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 99999999999\r\nexpect: 100-continue\r\n\r\n",
    );
    assert_eq!(client.answer().status, 413, "and no 100 Continue before it");
    assert_eq!(engine.received().len(), 1);
}

#[test]
fn a_chunked_body_over_the_limit_is_413() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.limits.body_bytes_max = LIMIT;
    let router = start(config);
    let mut client = Client::connect(router.addr());
    client.send("POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..11 {
        client.send(format!("64\r\n{}\r\n", "x".repeat(100)));
    }
    let answer = client.answer();
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(engine.received().is_empty());
}

#[test]
fn bodies_over_the_common_budget_are_503_until_others_ended() {
    let gate = Gate::default();
    let at_engine = gate.clone();
    let engine = Backend::start(move |_, exchange| {
        at_engine.wait();
        exchange.answer("200 OK", "{}")
    });
    let mut config = config(&[engine.addr()]);
    config.limits.bodies_total_bytes_max = 1500;
    let router = start(config);
    let mut first = Client::connect(router.addr());
    first.send(post("/v1/completions", &body(1000)));
    engine.wait_received(1);
    let refused = ask(router.addr(), post("/v1/completions", &body(1000)));
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains(r#""code":"body_budget""#), "{refused:?}");
    assert_eq!(router.in_flight(), 1, "what is refused is not counted");
    gate.open();
    assert_eq!(first.answer().status, 200);
    let again = ask(router.addr(), post("/v1/completions", &body(1000)));
    assert_eq!(again.status, 200, "the budget came back: {again:?}");
    wait_idle(&router);
}

#[test]
fn a_client_that_leaves_gives_its_part_of_the_budget_back() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.limits.bodies_total_bytes_max = 1500;
    let router = start(config);
    for _ in 0..3 {
        let mut client = Client::connect(router.addr());
        client.send("POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 1000\r\nexpect: 100-continue\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 100 "), "its part of the budget is taken");
        client.send("{\"model\":");
        assert_eq!(ask(router.addr(), post("/v1/completions", &body(1000))).status, 503);
        drop(client);
        wait::until("the budget is back", || {
            ask(router.addr(), post("/v1/completions", &body(1000))).status == 200
        });
    }
}

#[test]
fn a_head_of_two_hundred_fields_passes_and_one_of_three_hundred_is_431() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let with = |fields: usize| {
        let lines: String = (0..fields).map(|n| format!("x-{n}: v\r\n")).collect();
        chat().replacen("\r\n\r\n", &format!("\r\n{lines}\r\n"), 1)
    };
    assert_eq!(ask(router.addr(), with(200)).status, 200);
    assert_eq!(engine.received()[0].header("x-199"), Some("v"));
    let mut client = Client::connect(router.addr());
    client.send(with(300));
    assert!(client.head().starts_with("HTTP/1.1 431 "));
    assert_eq!(engine.received().len(), 1);
}

#[test]
fn a_head_over_the_limit_is_431() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.limits.head_bytes_max = 8 << 10;
    let router = start(config);
    let with =
        |bytes: usize| chat().replacen("\r\n\r\n", &format!("\r\nx-fill: {}\r\n\r\n", "x".repeat(bytes)), 1);
    assert_eq!(ask(router.addr(), with(7 << 10)).status, 200);
    let over = ask(router.addr(), with(9 << 10));
    assert_eq!(over.status, 431);
    assert!(over.text().contains(r#""code":"head_too_large""#), "{over:?}");
    for far_over in [17 << 10, 1 << 20] {
        let mut client = Client::connect(router.addr());
        client.send(with(far_over));
        assert!(client.head().starts_with("HTTP/1.1 431 "), "{far_over}");
    }
    assert_eq!(engine.received().len(), 1);
}

#[test]
fn a_head_that_does_not_arrive_in_time_closes_the_connection() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.limits.head_timeout = Duration::from_millis(100);
    let router = start(config);
    for dribble in ["", "POST /v1/completions HT"] {
        let mut client = Client::connect(router.addr());
        client.send(dribble);
        assert!(client.is_closed(), "{dribble:?}");
    }
}

#[test]
fn a_body_that_stops_coming_is_408() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.limits.head_timeout = Duration::from_millis(100);
    let router = start(config);
    let mut client = Client::connect(router.addr());
    client.send("POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\n{\"model\":");
    let answer = client.answer();
    assert_eq!(answer.status, 408, "{answer:?}");
    assert!(engine.received().is_empty());
}

#[test]
fn connections_over_the_cap_wait_and_are_served_later() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.limits.client_conns_max = 2;
    let router = start(config);
    let mut first = Client::connect(router.addr());
    let mut second = Client::connect(router.addr());
    for client in [&mut first, &mut second] {
        client.send(chat());
        assert_eq!(client.answer().status, 200);
    }
    let mut third = Client::connect(router.addr());
    third.send(chat());
    first.send(chat());
    assert_eq!(first.answer().status, 200);
    assert_eq!(engine.received().len(), 3, "the third waits");
    drop(second);
    assert_eq!(third.answer().status, 200);
}

#[test]
fn a_backend_at_its_own_limit_is_503_without_being_asked() {
    let engine = Backend::start(|_, exchange| exchange.wait_closed());
    let mut config = config(&[engine.addr()]);
    config.backends[0].spec.max_in_flight = Some(1);
    let router = start(config);
    let mut client = Client::connect(router.addr());
    client.send(chat());
    engine.wait_received(1);
    let refused = ask(router.addr(), chat());
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains(r#""code":"backends_full""#), "{refused:?}");
    drop(client);
    engine.wait_closed(1);
    wait_idle(&router);
}
