//! Engines that break in every way and at every byte: a client gets a whole answer or a visible error, never a cut one
//! that looks whole, and nothing stays counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat};
use router_tests::fixture;
use router_tests::router::{config, in_flight, start, wait_idle};
use router_user::app::RunningRouter;

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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const CLIENTS: usize = 1000;
    const ROUNDS: usize = 3;
    let script = |_: &_, exchange: &mut router_tests::backend::Exchange| {
        exchange.start_stream();
        for i in 0..10 {
            exchange.chunk(&format!("data: {i}\n\n"));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        exchange.end_stream()
    };
    let steady = Backend::start(script);
    let mortal = Backend::start(script);
    let mut config = config(&[steady.addr(), mortal.addr()]);
    // Exactly what the bodies in flight may take: what is not given back is missed.
    config.limits.bodies_total_bytes_max = (CLIENTS * 60) as u64;
    config.limits.backoff_min = std::time::Duration::from_millis(20);
    config.limits.backoff_max = std::time::Duration::from_millis(50);
    let router = start(config);
    let addr = router.addr();
    let ends = Arc::new([const { AtomicUsize::new(0) }; 3]);
    let counted = Arc::clone(&ends);
    let clients = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let one = move |ends: Arc<[AtomicUsize; 3]>| async move {
                for _ in 0..ROUNDS {
                    let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
                    let request = chat().replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1);
                    stream.write_all(request.as_bytes()).await.unwrap();
                    let mut answer = Vec::new();
                    let read = stream.read_to_end(&mut answer);
                    let _reset = tokio::time::timeout(std::time::Duration::from_secs(60), read)
                        .await
                        .expect("every answer ends");
                    ends[verdict(&answer)].fetch_add(1, Ordering::Relaxed);
                }
            };
            let tasks: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(one(Arc::clone(&counted)))).collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
    let mut engine = Some(mortal);
    while !clients.is_finished() {
        std::thread::sleep(std::time::Duration::from_millis(150));
        let dead = engine.take().unwrap().die();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let at = dead.addr();
        drop(dead);
        engine = Some(Backend::start_at(at, script));
    }
    clients.join().unwrap();
    let [complete, errors, broken] = [0, 1, 2].map(|i| ends[i].load(Ordering::Relaxed));
    println!("{complete} complete, {errors} errors, {broken} broken off");
    assert_eq!(complete + errors + broken, CLIENTS * ROUNDS);
    assert!(complete > CLIENTS, "{complete}");
    assert!(broken > 0, "engines died within streams");
    wait_idle(&router);
    for row in 0..2 {
        assert_eq!(in_flight(&router, row), 0);
    }
    // All of the budget is back: as many bodies as before find room at once.
    let mut held: Vec<_> = (0..CLIENTS)
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

/// 0: a whole answer; 1: an error of ours, whole; 2: visibly broken off.
fn verdict(answer: &[u8]) -> usize {
    let text = String::from_utf8_lossy(answer);
    let is_whole_stream = text.ends_with("\r\n0\r\n\r\n");
    match text.get(9..12) {
        Some("200") if is_whole_stream => {
            assert!((0..10).all(|i| text.contains(&format!("data: {i}\n\n"))), "it looks whole: {text}");
            0
        }
        Some("200") => 2,
        Some("502" | "503") if text.ends_with('}') => 1,
        _ => panic!("neither an answer nor an error: {text:?}"),
    }
}
