//! Counts under traffic of every kind: they cover every proxied path, never go below zero, and come to rest at zero.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use router_policy::{BackendId, PolicyConfig};
use router_tests::backend::{Backend, Exchange, Received, Then};
use router_tests::client::{Client, post};
use router_tests::router::{config, in_flight, metric, start, wait_idle};
use router_tests::wait::{self, Gate};
use router_user::account::{Account, Ledger};

/// Clients of the mix that run at once.
const CONCURRENCY: usize = 8;

/// R02. Held until all have arrived instead of for 5 s.
#[test]
fn r02_load_is_counted_on_every_proxied_path() {
    let prefix = "the same four thousand bytes; ".repeat(140);
    for path in ["/inference/v1/generate", "/v1/rerank", "/pooling", "/v1/pooling", "/v1/chat/completions"] {
        let gate = Gate::default();
        let engine = || {
            let gate = gate.clone();
            Backend::start(move |_, exchange| {
                gate.wait();
                exchange.answer("200 OK", "{}")
            })
        };
        let engines = [engine(), engine(), engine(), engine()];
        let mut config = config(&engines.each_ref().map(Backend::addr));
        // The default policy: it would follow the prefix if it saw no load.
        config.policy = PolicyConfig { scrape_interval: config.policy.scrape_interval, ..Default::default() };
        config.proxy_paths = vec!["/inference".into(), "/pooling".into()];
        let router = start(config);
        let clients: Vec<_> = (0..40)
            .map(|i| {
                let mut client = Client::connect(router.addr());
                let text = format!("{prefix}{i}");
                let message = serde_json::json!({"role": "user", "content": text});
                let body = serde_json::json!({"model": "m", "messages": [message], "query": text});
                client.send(post(path, &body.to_string()));
                client
            })
            .collect();
        wait::until("all forty are counted", || router.in_flight() == 40);
        assert_eq!(metric(&router, "unlatch_backend_in_flight", ""), 40.0, "{path}: and shown");
        wait::until("all forty arrive", || engines.iter().map(|e| e.received().len()).sum::<usize>() == 40);
        for (row, engine) in engines.iter().enumerate() {
            let there = engine.received().len();
            assert_eq!(in_flight(&router, row) as usize, there, "{path}: what is shown is what is there");
            assert!(there <= 24, "{path}: {there} of 40 on one engine");
        }
        gate.open();
        for mut client in clients {
            assert_eq!(client.answer().status, 200, "{path}");
        }
        wait_idle(&router);
    }
}

/// What a request of the mix is to meet; the engine reads it from the body.
const KINDS: [&str; 9] =
    ["fine", "stream", "unknown model", "too large", "leave early", "leave late", "refuse", "fail", "reset"];

/// Requests whose clients leave, by number: those that have arrived, and those whose connection was closed.
#[derive(Clone, Default)]
struct Leaving {
    arrived: Arc<Mutex<HashSet<u64>>>,
    closed: Arc<Mutex<HashSet<u64>>>,
}

impl Leaving {
    /// The engine's side.
    fn engine(&self, request: &serde_json::Value, exchange: &mut Exchange) -> Then {
        let number = request["number"].as_u64().unwrap();
        self.arrived.lock().insert(number);
        let then = exchange.wait_closed();
        self.closed.lock().insert(number);
        then
    }
}

fn engine(leaving: &Leaving, request: &Received, exchange: &mut Exchange) -> Then {
    let request: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    match request["prompt"].as_str().unwrap() {
        "stream" => {
            exchange.start_stream();
            exchange.chunk("data: 0\n\n");
            exchange.end_stream()
        }
        "leave early" => leaving.engine(&request, exchange),
        "leave late" => {
            exchange.start_stream();
            exchange.chunk("data: 0\n\n");
            leaving.engine(&request, exchange)
        }
        "refuse" => exchange.answer("422 Odd", "{}"),
        "fail" => exchange.answer("500 Oops", "{}"),
        "reset" => Then::Reset,
        _ => exchange.answer("200 OK", "{}"),
    }
}

/// The clients' side of the mix.
struct Mix {
    to: SocketAddr,
    leaving: Leaving,
    sent: AtomicUsize,
}

impl Mix {
    /// So many requests, the kinds in turn, eight clients at once.
    fn run(&self, requests: usize, kinds: &[&str]) {
        let left = AtomicUsize::new(requests);
        let is_any_left =
            || left.try_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
        std::thread::scope(|scope| {
            for _ in 0..CONCURRENCY {
                scope.spawn(|| {
                    while is_any_left() {
                        let number = self.sent.fetch_add(1, Ordering::Relaxed);
                        self.one(number as u64, kinds[number % kinds.len()]);
                    }
                });
            }
        });
    }

    /// One request, seen through: a client that leaves waits until the engine has heard of it.
    fn one(&self, number: u64, kind: &str) {
        let model = if kind == "unknown model" { "other" } else { "m" };
        let padding = if kind == "too large" { "x".repeat(5000) } else { String::new() };
        let body = serde_json::json!({"model": model, "prompt": kind, "number": number, "user": padding});
        let mut client = Client::connect(self.to);
        client.send(post("/v1/completions", &body.to_string()));
        let status = match kind {
            "leave early" | "leave late" => {
                if kind == "leave late" {
                    client.head();
                    assert_eq!(client.chunk().as_deref(), Some("data: 0\n\n"));
                }
                wait::until("it arrives", || self.leaving.arrived.lock().contains(&number));
                drop(client);
                return wait::until("it is cancelled", || self.leaving.closed.lock().contains(&number));
            }
            "unknown model" => 404,
            "too large" => 413,
            "refuse" => 422,
            "fail" => 500,
            "reset" => 502,
            _ => 200,
        };
        assert_eq!(client.answer().status, status, "{kind}");
    }
}

/// Both gauges, as the policy counts and as other processes would read it.
fn gauges(ledger: &Ledger, account: &Account) -> [u32; 4] {
    let [a, b] = [0, 1].map(|row| BackendId::new(row).unwrap());
    let own = |id| ledger.snapshot(id).unwrap().own.requests;
    [own(a), own(b), account.in_flight(a), account.in_flight(b)]
}

/// R03. Sampled every millisecond; there is no lifetime of counters that a pause could exceed.
#[test]
fn r03_whatever_ends_a_request_the_gauges_stay_within_the_concurrency_and_rest_at_zero() {
    let leaving = Leaving::default();
    let script = || {
        let leaving = leaving.clone();
        move |request: &Received, exchange: &mut Exchange| engine(&leaving, request, exchange)
    };
    let (a, b) = (Backend::start(script()), Backend::start(script()));
    let mut config = config(&[a.addr(), b.addr()]);
    config.limits.body_bytes_max = 4096;
    config.limits.backoff_min = Duration::from_millis(20);
    config.limits.backoff_max = Duration::from_millis(40);
    // Both fail a third of the time; that is not what this is about.
    let rules = &mut config.probe.rules;
    (rules.eject_failures, rules.eject_ratio, rules.slow_start) = (0, 0.0, Duration::ZERO);
    let router = start(config);
    [&a, &b].into_iter().for_each(Backend::wait_probed);
    let mix = Mix { to: router.addr(), leaving: leaving.clone(), sent: AtomicUsize::new(0) };
    let (ledger, account) = (router.ledger(), router.account());
    let is_over = AtomicBool::new(false);
    let (a, samples, max) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let (mut samples, mut max) = (0, 0);
            while !is_over.load(Ordering::Relaxed) {
                max = gauges(ledger, account).into_iter().fold(max, u32::max);
                samples += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            (samples, max)
        });
        mix.run(1500, &KINDS);
        let addr = a.addr();
        let dead = a.die();
        mix.run(500, &["fine", "stream", "unknown model", "leave late", "refuse", "fail"]);
        drop(dead);
        let a = Backend::start_at(addr, script());
        is_over.store(true, Ordering::Relaxed);
        let (samples, max) = sampler.join().unwrap();
        (a, samples, max)
    });
    assert!(samples > 50, "{samples} samples");
    // A count goes back when the router hears of the end, maybe a moment after the client. Below zero would be huge.
    assert!(
        (1..=2 * CONCURRENCY as u32).contains(&max),
        "{max} at one engine, {CONCURRENCY} clients at once"
    );
    wait_idle(&router);
    assert_eq!(gauges(ledger, account), [0; 4]);

    wait::until("the engine that returned is ready", || {
        ledger.backends().into_iter().all(|id| ledger.snapshot(id).unwrap().ready)
    });
    let before = [a.received().len(), b.received().len()];
    mix.run(200, &["fine"]);
    let share = [a.received().len() - before[0], b.received().len() - before[1]];
    assert_eq!(share[0] + share[1], 200);
    assert!((40..=160).contains(&share[0]), "{share:?} of 200: a wrong count attracts or repels");
    wait_idle(&router);
    assert_eq!(gauges(ledger, account), [0; 4]);
}
