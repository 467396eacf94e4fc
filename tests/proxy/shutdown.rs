//! The end of a router: what is in flight may end, the rest is cut, and nothing is left.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat, post};
use router_tests::process::{self, Process};
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

/// H05, times scaled by 40: streams of a second, a delay of half a second in which the router says that it goes and
/// serves on, and then the end with the last stream.
#[test]
fn h05_readiness_falls_at_once_and_the_listener_closes_after_the_delay() {
    let program = match process::program() {
        Ok(program) => program,
        Err(reason) => {
            println!("SKIP h05_readiness_falls_at_once_and_the_listener_closes_after_the_delay: {reason}");
            return;
        }
    };
    let gate = Gate::default();
    let at_engine = gate.clone();
    let engine = Backend::start(move |request, exchange| {
        if !String::from_utf8_lossy(&request.body).contains("\"stream\"") {
            return exchange.answer("200 OK", "{}");
        }
        exchange.start_stream();
        exchange.chunk("data: 0\n\n");
        at_engine.wait();
        exchange.chunk("data: 1\n\n");
        exchange.end_stream()
    });
    let mut router = Process::start(program, "127.79.5.2", &[engine.addr()], &["--shutdown-delay=500ms"]);
    let addr = router.addr();
    let mut idle: Vec<_> = (0..20).map(|_| Client::connect(addr)).collect();
    let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}"#;
    let streams: Vec<_> = (0..20).map(|_| begin(addr, &post("/v1/chat/completions", body))).collect();
    let signalled = Instant::now();
    router.signal(rustix::process::Signal::TERM);
    let ask_admin =
        |path: &str| ask(router.admin(), format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n")).status;
    wait::until("it says that it is not ready", || ask_admin("/readyz") == 503);
    let health = ask(addr, "GET /health HTTP/1.1\r\nhost: h\r\n\r\n");
    assert_eq!(health.status, 503, "on the data port too: {}", health.text());
    let mut served = 0;
    while signalled.elapsed() < Duration::from_millis(350) {
        let answer = ask(addr, chat());
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
        served += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(served > 2, "it serves on: {served}");
    assert!(idle.iter_mut().all(Client::is_closed), "idle connections are closed");
    wait::until("nobody listens any more", || TcpStream::connect(addr).is_err());
    assert!(signalled.elapsed() >= Duration::from_millis(500), "not before the delay is over");
    gate.open();
    for (mut client, head) in streams {
        let rest = client.body(head);
        assert!(rest.is_complete && rest.text() == "data: 1\n\n", "{rest:?}");
    }
    assert_eq!(router.wait_exit(), 0);
}

/// H05, its second and third run.
#[test]
fn h05_a_stream_without_end_is_cut_at_the_limit_or_by_a_second_signal() {
    for (args, signals, at_least) in [
        (["--shutdown-deadline=400ms", "--shutdown-delay=0s"], 1, Duration::from_millis(400)),
        (["--shutdown-deadline=1h", "--shutdown-delay=0s"], 2, Duration::ZERO),
        (["--shutdown-deadline=1h", "--shutdown-delay=1h"], 2, Duration::ZERO),
    ] {
        let program = match process::program() {
            Ok(program) => program,
            Err(reason) => {
                println!("SKIP h05_a_stream_without_end_is_cut_at_the_limit_or_by_a_second_signal: {reason}");
                return;
            }
        };
        let engine = Backend::start(|_, exchange| {
            exchange.start_stream();
            exchange.chunk("data: 0\n\n");
            exchange.wait_closed()
        });
        let mut router = Process::start(program, "127.79.5.3", &[engine.addr()], &args);
        let (mut client, head) = begin(router.addr(), &chat());
        let signalled = Instant::now();
        router.signal(rustix::process::Signal::TERM);
        if signals == 2 {
            wait::until("the first signal is seen", || router.said().contains("draining"));
            router.signal(rustix::process::Signal::TERM);
        }
        assert_eq!(router.wait_exit(), 0, "{args:?}");
        assert!(signalled.elapsed() >= at_least, "{args:?}");
        assert!(!client.body(head).is_complete, "{args:?}: a cut answer never looks whole");
    }
}

/// Begins a stream and waits for its first event.
fn begin(router: SocketAddr, request: &str) -> (Client, String) {
    let mut client = Client::connect(router);
    client.send(request);
    let head = client.head();
    assert_eq!(client.chunk().as_deref(), Some("data: 0\n\n"));
    (client, head)
}
