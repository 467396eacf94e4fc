//! What is sent again, and what is not.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use router_tests::backend::{Backend, Exchange, Received, Refusing, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::router::{config, metric, start, wait_idle};
use router_tests::wait;
use router_user::app::RunningRouter;
use router_user::config::Config;

/// A configuration whose back-off outlasts a test.
fn long_backoff(backends: &[std::net::SocketAddr]) -> Config {
    let mut config = config(backends);
    config.limits.backoff_min = Duration::from_secs(3600);
    config.limits.backoff_max = Duration::from_secs(3600);
    config
}

/// A router over engines that die once it knows them, and the ports they leave; then those that live.
fn start_with_dead(config: Config, dying: Vec<Backend>) -> (RunningRouter, Vec<Refusing>) {
    let router = start(config);
    dying.iter().for_each(Backend::wait_probed);
    (router, dying.into_iter().map(Backend::die).collect())
}

#[test]
fn a_refused_connection_goes_to_the_next_backend_and_the_dead_one_is_backed_off() {
    let (dying, alive) = (Backend::ok(), Backend::ok());
    let config = long_backoff(&[dying.addr(), alive.addr()]);
    let (router, _dead) = start_with_dead(config, vec![dying]);
    let is_ready = |row: usize| router.ledger().snapshot(router.ledger().backends()[row]).unwrap().ready;
    assert!(is_ready(0), "nobody has met its death yet");
    for i in 0..20 {
        let answer = ask(router.addr(), chat());
        assert_eq!(answer.status, 200, "request {i}: {answer:?}");
        assert_eq!(router.in_flight(), 0, "the count moved exactly once");
    }
    assert_eq!(alive.received().len(), 20);
    assert!(!is_ready(0), "a dead engine at 0 in flight must not swallow the traffic");
    assert!(is_ready(1));
}

#[test]
fn a_backend_that_returns_takes_part_again() {
    let dying = Backend::ok();
    let mut config = config(&[dying.addr()]);
    config.limits.backoff_min = Duration::from_millis(20);
    config.limits.backoff_max = Duration::from_millis(40);
    let (router, dead) = start_with_dead(config, vec![dying]);
    assert_eq!(ask(router.addr(), chat()).status, 503);
    let addr = dead[0].addr();
    drop(dead);
    let engine = Backend::start_at(addr, |_, exchange| exchange.answer("200 OK", "{}"));
    wait::until("it is served again", || ask(router.addr(), chat()).status == 200);
    assert!(!engine.received().is_empty());
}

#[test]
fn all_backends_refusing_is_a_503_that_says_so() {
    let (a, b) = (Backend::ok(), Backend::ok());
    let (router, _dead) = start_with_dead(long_backoff(&[a.addr(), b.addr()]), vec![a, b]);
    let first = ask(router.addr(), chat());
    assert_eq!(first.status, 503);
    assert!(first.text().contains(r#""code":"backends_unreachable""#), "{first:?}");
    let second = ask(router.addr(), chat());
    assert_eq!(second.status, 503);
    assert!(second.text().contains("no backend is ready"), "{second:?}");
    assert_eq!(second.header("retry-after"), Some("1"));
    assert_eq!(router.in_flight(), 0);
}

#[test]
fn a_connection_that_does_not_come_about_in_time_goes_to_the_next_backend() {
    // An accept queue of the least length, which is then filled: the kernel drops further SYNs, as a firewall does.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let addr = full.local_addr().unwrap();
    let alive = Backend::ok();
    let mut config = long_backoff(&[addr, alive.addr()]);
    config.limits.connect_timeout = Duration::from_millis(200);
    let router = start(config);
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(200)) {
        held.push(stream);
        assert!(held.len() < 64, "the queue must fill");
    }
    for _ in 0..6 {
        assert_eq!(ask(router.addr(), chat()).status, 200);
    }
    assert_eq!(alive.received().len(), 6);
    assert_eq!(router.in_flight(), 0);
}

#[test]
fn an_engine_that_closes_after_each_stream_fails_no_request() {
    // As llama.cpp: it closes after each stream and does not say so; some requests would meet the closing itself.
    let engine = Backend::start(|_, exchange| {
        exchange.start_stream();
        exchange.chunk("data: x\n\n");
        exchange.end_stream();
        Then::Close
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    for i in 0..200 {
        client.send(chat());
        assert_eq!(client.answer().status, 200, "request {i}");
    }
    assert_eq!(engine.received().len(), 200, "each was executed once");
    assert_eq!(router.in_flight(), 0);
}

#[test]
fn a_request_that_the_engine_read_on_a_reused_connection_is_not_sent_twice() {
    for then in [Then::Close, Then::Reset] {
        let engine = Backend::start(move |request, exchange| {
            if request.line().contains("/v1/good") {
                return exchange.answer("200 OK", "{}");
            }
            then
        });
        let router = start(config(&[engine.addr()]));
        let mut client = Client::connect(router.addr());
        client.send("GET /v1/good HTTP/1.1\r\nhost: h\r\n\r\n");
        assert_eq!(client.answer().status, 200);
        client.send(chat());
        assert_eq!(client.answer().status, 502, "{then:?}");
        assert_eq!(engine.received().len(), 2, "{then:?}: its kernel had acknowledged it");
        wait_idle(&router);
    }
}

#[test]
fn a_reused_connection_that_breaks_within_an_answer_is_not_asked_again() {
    let engine = Backend::start(|request, exchange| {
        if request.line().contains("/v1/good") {
            return exchange.answer("200 OK", "{}");
        }
        exchange.send("HTTP/1.1 2");
        Then::Close
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send("GET /v1/good HTTP/1.1\r\nhost: h\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    client.send(chat());
    assert_eq!(client.answer().status, 502);
    assert_eq!(engine.received().len(), 2, "a byte of an answer had come");
    wait_idle(&router);
}

/// P06.
#[test]
fn p06_errors_of_a_request_are_passed_on_once_and_not_held_against_the_engine() {
    let mix = [(400, 100), (401, 50), (404, 50), (413, 50), (422, 50), (200, 100)];
    let script = |request: &Received, exchange: &mut Exchange| {
        let status = request.header("x-status").unwrap().to_owned();
        exchange.answer(&format!("{status} Word"), r#"{"error":"the engine's own"}"#)
    };
    let engines = [Backend::start(script), Backend::start(script)];
    let router = start(config(&engines.each_ref().map(Backend::addr)));
    let mut left = mix;
    let mut client = Client::connect(router.addr());
    // One of each in turn, until none is left.
    while let Some(at) = (0..left.len()).max_by_key(|&i| left[i].1).filter(|&i| left[i].1 > 0) {
        left[at].1 -= 1;
        let status = left[at].0;
        client.send(chat().replacen("\r\n\r\n", &format!("\r\nx-status: {status}\r\n\r\n"), 1));
        let answer = client.answer();
        assert_eq!((answer.status, &*answer.text()), (status, r#"{"error":"the engine's own"}"#));
    }
    for (status, count) in mix {
        let of_status = |e: &Backend| {
            e.received().iter().filter(|r| r.header("x-status") == Some(&status.to_string())).count()
        };
        assert_eq!(engines.iter().map(of_status).sum::<usize>(), count, "{status}: each once");
    }
    for id in router.ledger().backends() {
        assert!(router.ledger().snapshot(id).unwrap().ready, "both stay healthy");
    }
    assert_eq!(metric(&router, "unlatch_retries_total", ""), 0.0);
    wait_idle(&router);
}

/// 408 is the client's affair as well; 500 may have run; a 503 without another engine is passed on.
#[test]
fn other_errors_are_passed_on_once_too() {
    let statuses = ["408 Late", "500 Oops", "503 Busy"];
    let next = AtomicUsize::new(0);
    let engine = Backend::start(move |_, exchange| {
        let i = next.fetch_add(1, Ordering::SeqCst);
        exchange.answer(statuses[i], "{}")
    });
    let router = start(config(&[engine.addr()]));
    for status in statuses {
        assert_eq!(ask(router.addr(), chat()).status.to_string(), status[..3]);
    }
    assert_eq!(engine.received().len(), statuses.len());
    assert!(router.ledger().any_ready());
}
