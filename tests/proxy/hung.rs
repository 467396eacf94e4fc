//! Engines that take requests and answer none: when they are suspect, and where traffic goes. Times are scaled.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat, post};
use router_tests::router::{config, in_flight, start, wait_idle};
use router_tests::wait::{self, Gate};

use crate::health::{MS, quick, state};

/// M06's.
const PATIENCE: Duration = Duration::from_secs(3);

/// A client that waits so long for the first byte; whether it came.
fn ask_impatiently(router: SocketAddr, patience: Duration) -> bool {
    let mut stream = TcpStream::connect(router).unwrap();
    stream.write_all(chat().as_bytes()).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).is_ok() && &head == b"HTTP/1.1 200"
}

/// M06, with timeouts of the case and engines as they are.
#[test]
fn m06_a_wedged_engine_that_looks_idle_gets_trials_only() {
    let (wedged, works) = (
        Backend::start(|_, exchange| exchange.wait_closed()),
        Backend::start(|_, exchange| {
            std::thread::sleep(250 * MS);
            exchange.answer("200 OK", "{}")
        }),
    );
    wedged.feel("200 OK", "");
    let gauges = |running, waiting| {
        format!(
            "vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\nvllm:kv_cache_usage_perc 0\n"
        )
    };
    wedged.say(&gauges(0, 0));
    works.say(&gauges(6, 1));
    let mut config = config(&[wedged.addr(), works.addr()]);
    config.policy.scrape_interval = 200 * MS;
    config.policy.policy = router_policy::PolicyName::PrefixCost;
    let router = start(config);
    let (next, worked) = (AtomicUsize::new(0), parking_lot::Mutex::new(vec![false; 60]));
    let (addr, ledger) = (router.addr(), router.ledger());
    let there = || ledger.snapshot(ledger.backends()[0]).unwrap().own.requests;
    let begun = Instant::now();
    let most_later = std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let n @ ..60 = next.fetch_add(1, Ordering::SeqCst) {
                    worked.lock()[n] = ask_impatiently(addr, PATIENCE);
                }
            });
        }
        // Until the first timeouts nothing tells it from an idle engine.
        let mut most_later = 0;
        while next.load(Ordering::SeqCst) < 66 {
            if begun.elapsed() > PATIENCE + 500 * MS {
                most_later = there().max(most_later);
            }
            std::thread::sleep(MS);
        }
        most_later
    });
    let worked = worked.into_inner();
    let last = worked[30..].iter().filter(|w| **w).count();
    let at_wedged = wedged.received().len();
    println!(
        "{at_wedged} of 60 went to it, {last} of the last 30 were answered, {most_later} at once in the end"
    );
    assert!(last >= 27, "{worked:?}");
    assert!(most_later <= 3, "half of what runs at most");
    // All at first, as the other says to have seven of others; those placed before three timeouts; trials.
    assert!(at_wedged <= 6 + 3, "after the first timeouts trials only: {at_wedged}");
}

#[test]
fn a_hung_engine_is_suspect_in_time_and_traffic_moves() {
    let hangs = Arc::new(AtomicBool::new(false));
    let (gate, flag) = (Gate::default(), Arc::clone(&hangs));
    let opens = gate.clone();
    let first = Backend::start(move |_, exchange| {
        if flag.load(Ordering::SeqCst) {
            gate.wait();
        }
        exchange.answer("200 OK", "{}")
    });
    let second = Backend::start(|_, exchange| {
        std::thread::sleep(10 * MS);
        exchange.answer("200 OK", "{}")
    });
    let stream = post("/v1/chat/completions", r#"{"model":"m","stream":true,"messages":[]}"#);
    let router = start(quick(&[first.addr(), second.addr()]));
    for _ in 0..20 {
        assert_eq!(ask(router.addr(), &stream).status, 200);
    }
    hangs.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let mut clients: Vec<_> = Vec::new();
    while in_flight(&router, 0) < 4 {
        let mut client = Client::connect(router.addr());
        client.send(&stream);
        clients.push(client);
        std::thread::sleep(MS);
    }
    wait::until("it is suspect", || state(&router, 0) == "suspect");
    let took = begun.elapsed();
    println!("suspect after {took:?}");
    // 0.3 s, a tenth until it is looked at, and what a busy machine adds.
    assert!(took >= 300 * MS && took < 1500 * MS, "{took:?}");
    let before = first.received().len();
    for _ in 0..20 {
        assert_eq!(ask(router.addr(), &stream).status, 200);
    }
    let trials = first.received().len() - before;
    assert!(trials <= 1, "{trials} more went there");
    // It goes on: whatever was decided, its bytes say that it lives.
    hangs.store(false, Ordering::SeqCst);
    opens.open();
    wait::until("it is taken back", || matches!(&*state(&router, 0), "slow_start" | "ready"));
    for mut client in clients {
        assert_eq!(client.answer().status, 200, "those that waited are answered");
    }
}

/// Clients that leave soon say nothing of an engine, however many they are.
#[test]
fn clients_that_leave_soon_are_not_held_against_an_engine() {
    let engine = Backend::start(|_, exchange| exchange.wait_closed());
    let mut config = quick(&[engine.addr()]);
    config.probe.rules.hung_seconds = 60.0;
    let router = start(config);
    for n in 1..=20 {
        let mut client = Client::connect(router.addr());
        client.send(chat());
        engine.wait_received(n);
        drop(client);
        engine.wait_closed(n);
    }
    wait_idle(&router);
    assert_eq!(state(&router, 0), "ready");
}
