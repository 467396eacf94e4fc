//! The end of a router: what is in flight may end, the rest is cut, and nothing is left.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat};
use router_tests::router::{config, start};
use router_tests::wait::{self, DEADLINE, Gate};
use router_user::app::{Router, StartError};

#[test]
fn a_drain_lets_requests_in_flight_end_and_accepts_nothing_new() {
    let gate = Gate::default();
    let at_engine = gate.clone();
    let engine = Backend::start(move |_, exchange| {
        exchange.start_stream();
        exchange.chunk("data: 0\n\n");
        at_engine.wait();
        exchange.chunk("data: 1\n\n");
        exchange.end_stream()
    });
    let router = start(config(&[engine.addr()]));
    let (addr, ledger) = (router.addr(), std::sync::Arc::clone(router.ledger()));
    let mut idle = Client::connect(addr);
    let mut client = Client::connect(addr);
    client.send(chat());
    let head = client.head();
    assert_eq!(client.chunk().as_deref(), Some("data: 0\n\n"));
    let drain = std::thread::spawn(move || router.shutdown(DEADLINE));
    assert!(idle.is_closed(), "an idle connection is closed at once");
    wait::until("nobody listens any more", || TcpStream::connect(addr).is_err());
    assert!(!drain.is_finished(), "one request is in flight");
    gate.open();
    let rest = client.body(head);
    assert!(rest.is_complete && rest.text() == "data: 1\n\n", "{rest:?}");
    assert!(client.is_closed());
    assert_eq!(drain.join().unwrap().cut, 0);
    assert_eq!(ledger.snapshot(ledger.backends()[0]).unwrap().own.requests, 0);
}

#[test]
fn the_deadline_cuts_what_is_left_and_gives_its_count_back() {
    let engine = Backend::start(|_, exchange| exchange.wait_closed());
    let router = start(config(&[engine.addr()]));
    let ledger = std::sync::Arc::clone(router.ledger());
    let mut client = Client::connect(router.addr());
    client.send(chat());
    engine.wait_received(1);
    let began = Instant::now();
    assert_eq!(router.shutdown(Duration::from_millis(100)).cut, 1);
    assert!(began.elapsed() >= Duration::from_millis(100), "it had its time");
    assert!(client.is_closed());
    engine.wait_closed(1);
    assert_eq!(ledger.snapshot(ledger.backends()[0]).unwrap().own.requests, 0);
}

#[test]
fn a_dropped_router_leaves_no_listener() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let (addr, admin) = (router.addr(), router.admin_addr());
    assert_eq!(ask(addr, chat()).status, 200);
    drop(router);
    for addr in [addr, admin] {
        assert!(TcpStream::connect(addr).is_err(), "{addr}");
    }
}

#[test]
fn a_port_in_use_is_exit_code_69_whichever_it_is() {
    let engine = Backend::ok();
    let first = start(config(&[engine.addr()]));
    let mut data = config(&[]);
    data.listen = first.addr();
    let mut admin = config(&[]);
    admin.admin_listen = first.admin_addr().into();
    for (config, addr) in [(data, first.addr()), (admin, first.admin_addr())] {
        let error = Router::start(config).unwrap_err();
        assert!(matches!(error, StartError::Bind { addr: a, .. } if a == addr), "{error:?}");
        assert_eq!(error.exit_code(), 69);
    }
    assert_eq!(ask(first.addr(), chat()).status, 200, "the first is unharmed");
}
