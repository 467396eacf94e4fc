//! Engines that break in every way and at every byte: a client gets a whole answer or a visible error, never a cut one
//! that looks whole, and nothing stays counted.

use std::sync::atomic::{AtomicUsize, Ordering};

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::fixture;
use router_tests::router::{config, in_flight, start, wait_idle};
use router_user::app::RunningRouter;

use crate::storm;

const SIZED: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{\"answer\":42}";

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"ans\r\n8;x=y\r\nwer\":42}\r\n0\r\nx-t: 1\r\n\r\n";

const EVENTS: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
    9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

/// What an answer's body is when all of it comes.
fn whole(answer: &str) -> &'static str {
    if answer == EVENTS { "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n" } else { "{\"answer\":42}" }
}

/// A router over an engine that sends the first bytes of an answer, one more each time, and then ends so.
fn cutting(answer: &'static str, then: Then) -> (Backend, RunningRouter) {
    let next = AtomicUsize::new(0);
    let engine = Backend::start(move |_, exchange| {
        let cut = next.fetch_add(1, Ordering::SeqCst);
        exchange.send(&answer.as_bytes()[..cut.min(answer.len())]);
        then
    });
    let router = start(config(&[engine.addr()]));
    (engine, router)
}

/// Every cut point of an answer.
fn cut_everywhere(answer: &'static str, then: Then, request: &str) {
    let (engine, router) = cutting(answer, then);
    for cut in 0..=answer.len() {
        let got = ask(router.addr(), request);
        let what = format!("{then:?} after {cut} of {} bytes: {got:?}", answer.len());
        match got.status {
            // What is complete is all of it, and an error is ours.
            200 if got.is_complete => assert_eq!(got.text(), whole(answer), "{what}"),
            200 => assert!(whole(answer).starts_with(&got.text()), "{what}"),
            502 => assert!(got.is_complete && got.text().contains("backend_failed"), "{what}"),
            _ => panic!("{what}"),
        }
        if cut == answer.len() && then == Then::Close {
            assert!(got.status == 200 && got.is_complete, "{what}");
        }
        wait_idle(&router);
        assert_eq!(in_flight(&router, 0), 0, "{what}");
    }
    assert_eq!(engine.received().len(), answer.len() + 1, "each was executed once");
}

#[test]
fn an_answer_that_is_cut_at_any_byte_never_looks_whole() {
    std::thread::scope(|scope| {
        for answer in [SIZED, CHUNKED, EVENTS] {
            for then in [Then::Close, Then::Reset] {
                scope.spawn(move || cut_everywhere(answer, then, &chat()));
            }
        }
    });
}

#[test]
fn nor_does_it_to_a_client_that_knows_an_end_by_the_connections() {
    std::thread::scope(|scope| {
        for answer in [SIZED, CHUNKED, EVENTS] {
            scope.spawn(move || cut_everywhere(answer, Then::Close, &fixture::http("http10_close.http")));
        }
    });
}

#[test]
fn an_engine_that_sends_nonsense_is_a_502() {
    let nonsense: [&str; 7] = [
        "\r\n\r\n\r\n",
        "garbage\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\na b: c\r\n\r\n",
    ];
    for text in nonsense {
        let engine = Backend::start(move |_, exchange| {
            exchange.send(text);
            Then::Close
        });
        let router = start(config(&[engine.addr()]));
        let got = ask(router.addr(), chat());
        assert!(got.status == 502 || !got.is_complete, "{text:?}: {got:?}");
        wait_idle(&router);
        assert_eq!(engine.received().len(), 1, "{text:?}");
    }
}

/// Hanging is no error: prefill takes minutes. The client that gives up frees what it held.
#[test]
fn an_engine_that_hangs_with_half_an_answer_holds_nothing_once_the_client_left() {
    for cut in [0, 9, 60, SIZED.len() - 1] {
        let engine = Backend::start(move |_, exchange| {
            exchange.send(&SIZED[..cut]);
            exchange.wait_closed()
        });
        let router = start(config(&[engine.addr()]));
        let mut client = Client::connect(router.addr());
        client.send(chat());
        engine.wait_received(1);
        assert_eq!(router.in_flight(), 1, "{cut}");
        drop(client);
        engine.wait_closed(1);
        wait_idle(&router);
    }
}

/// A thousand clients at once, half of them of streams, while one engine of two dies again and again.
#[test]
fn a_thousand_streams_while_engines_die_and_come_back() {
    const ROUNDS: usize = 3;
    let (steady, mortal) = (storm::engine(), storm::engine());
    let mut config = config(&[steady.addr(), mortal.addr()]);
    // Exactly what the bodies in flight may take: what is not given back is missed.
    config.limits.bodies_total_bytes_max = (storm::CLIENTS * 60) as u64;
    config.limits.backoff_min = std::time::Duration::from_millis(20);
    config.limits.backoff_max = std::time::Duration::from_millis(50);
    let router = start(config);
    let addr = router.addr();
    let (ends, _mortal) = storm::rage(addr, mortal, ROUNDS);
    println!("{ends:?}");
    wait_idle(&router);
    for row in 0..2 {
        assert_eq!(in_flight(&router, row), 0);
    }
    // All of the budget is back: as many bodies as before find room at once.
    let mut held: Vec<_> = (0..storm::CLIENTS)
        .map(|_| {
            let mut client = Client::connect(addr);
            client.send(chat());
            client
        })
        .collect();
    for client in &mut held {
        assert!(client.head().starts_with("HTTP/1.1 200 "));
    }
    drop(held);
    wait_idle(&router);
}
