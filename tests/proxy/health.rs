//! Engines that load, fail fast, are away, or only look sick; what becomes of their traffic. Times are scaled.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat, post};
use router_tests::router::{config, in_flight, start, status, wait_idle};
use router_tests::wait::{self, Gate};
use router_user::app::{Router, RunningRouter};
use router_user::config::Config;

pub(crate) const MS: Duration = Duration::from_millis(1);

/// Engines asked often, back-offs and ejections short.
pub(crate) fn quick(backends: &[SocketAddr]) -> Config {
    let mut config = config(backends);
    config.policy.scrape_interval = 50 * MS;
    (config.limits.backoff_min, config.limits.backoff_max) = (20 * MS, 100 * MS);
    config.probe.timeout = 200 * MS;
    let rules = &mut config.probe.rules;
    (rules.eject_min, rules.eject_max, rules.slow_start) = (200 * MS, 400 * MS, 500 * MS);
    rules.hung_seconds = 0.3;
    config
}

pub(crate) fn state(router: &RunningRouter, row: usize) -> String {
    status(router, row)["state"].as_str().unwrap().to_owned()
}

fn readyz(router: &RunningRouter) -> u16 {
    ask(router.admin_addr(), "GET /readyz HTTP/1.1\r\nhost: h\r\n\r\n").status
}

/// An engine that answers each request at once.
fn fine() -> Backend {
    Backend::start(|_, exchange| exchange.answer("200 OK", "{}"))
}

/// One after another, until that engine has had a request; how many it took.
fn ask_until(router: &RunningRouter, engine: &Backend) -> usize {
    let (before, mut asked) = (engine.received().len(), 0);
    wait::until("it gets a request", || {
        asked += 1;
        assert_eq!(ask(router.addr(), chat()).status, 200, "the other one serves");
        engine.received().len() > before
    });
    asked
}

/// H06: what loads, or is another service, gets nothing, even if its model is configured.
#[test]
fn h06_loading_is_not_healthy_and_neither_is_another_service() {
    let engine = fine();
    engine.feel("503 Loading", r#"{"error":{"message":"loading model"}}"#);
    let router = Router::start(quick(&[engine.addr()])).unwrap();
    wait::until("it is known to load", || state(&router, 0) == "not_ready");
    for (status, body) in [
        ("503 Loading", "{}"),
        ("200 OK", "<html>hello</html>"),
        ("301 Moved", ""),
        ("401 Unauthorized", "{}"),
        ("204 No Content", ""),
        ("500 Oops", ""),
    ] {
        engine.feel(status, body);
        // Some rounds.
        let begun = Instant::now();
        while begun.elapsed() < 200 * MS {
            let answer = ask(router.addr(), chat());
            assert_eq!(answer.status, 503, "{status}");
            assert!(answer.header("retry-after").is_some() && answer.text().contains("no_backend"));
            assert_eq!(readyz(&router), 503, "{status}");
        }
    }
    assert_eq!(engine.received().len(), 0, "nobody sent it a prompt");
    engine.feel("200 OK", "");
    wait::until("it serves", || state(&router, 0) == "ready");
    assert_eq!(ask(router.addr(), chat()).status, 200);

    // A wrong probe of one that served must not take the last engine away.
    engine.feel("500 Oops", "");
    wait::until("it is ejected", || state(&router, 0) == "ejected");
    assert_eq!(status(&router, 0)["held_against"], "probe_failed");
    assert_eq!(ask(router.addr(), chat()).status, 200, "better it than nobody");
    engine.feel("200 OK", "<html>");
    wait::until("another service is there", || state(&router, 0) == "not_ready");
    assert_eq!(ask(router.addr(), chat()).status, 503);
    engine.feel("200 OK", "");
    wait::until("it serves again", || matches!(&*state(&router, 0), "ready" | "slow_start"));
    assert_eq!(ask(router.addr(), chat()).status, 200);
}

/// H01: refused for a while, and hung and then restarted; no operator needed.
#[test]
fn h01_an_engine_that_comes_back_at_its_address_rejoins_by_itself() {
    let steady = fine();
    let mut engine = fine();
    let router = start(quick(&[steady.addr(), engine.addr()]));
    let addr = engine.addr();
    for away in [Duration::ZERO, 300 * MS, 1000 * MS] {
        let dead = engine.die();
        let begun = Instant::now();
        while begun.elapsed() < away {
            assert_eq!(ask(router.addr(), chat()).status, 200);
        }
        drop(dead);
        engine = Backend::start_at(addr, |_, exchange| exchange.answer("200 OK", "{}"));
        let back = Instant::now();
        ask_until(&router, &engine);
        println!("away {away:?}: back after {:?}", back.elapsed());
    }
    drop(engine);
    // It takes connections and answers nothing, probes neither.
    let wedged = Wedged::start(addr);
    let mut hanging = Vec::new();
    wait::until("it is out of favour", || {
        let mut client = Client::connect(router.addr());
        client.send(chat());
        hanging.push(client);
        std::thread::sleep(10 * MS);
        !matches!(&*state(&router, 1), "ready" | "slow_start")
    });
    drop(wedged);
    let engine = Backend::start_at(addr, |_, exchange| exchange.answer("200 OK", "{}"));
    let back = Instant::now();
    ask_until(&router, &engine);
    println!("hung: back after {:?}", back.elapsed());
}

/// Takes connections and does nothing with them.
struct Wedged {
    stop: Arc<AtomicBool>,
    addr: SocketAddr,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Wedged {
    fn start(addr: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind(addr).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut held = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                held.push(listener.accept().unwrap());
            }
        });
        Self { stop, addr, thread: Some(thread) }
    }
}

impl Drop for Wedged {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _wakes = TcpStream::connect(self.addr);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// H02, a hundred times as fast.
#[test]
fn h02_a_busy_engine_with_slow_probes_stays_in_and_its_streams_complete() {
    const EVENTS: usize = 60;
    let engine = Backend::start(|_, exchange| {
        exchange.start_stream();
        for n in 0..EVENTS {
            exchange.chunk(&format!("data: {n}\n\n"));
            std::thread::sleep(50 * MS);
        }
        exchange.end_stream()
    });
    engine.feel("200 OK", "");
    let mut config = quick(&[engine.addr()]);
    config.probe.timeout = 100 * MS;
    config.probe.rules.unhealthy_threshold = 2;
    let router = start(config);
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let mut client = Client::connect(router.addr());
            client.send(chat());
            assert!(client.head().starts_with("HTTP/1.1 200"));
            client
        })
        .collect();
    // None is answered in time from now on.
    engine.dawdle(400 * MS);
    let waits = std::thread::spawn(move || {
        clients.into_iter().all(|mut client| {
            let events = std::iter::from_fn(|| client.chunk()).collect::<String>();
            events.matches("data:").count() == EVENTS
        })
    });
    while !waits.is_finished() {
        assert_eq!(state(&router, 0), "ready");
        std::thread::sleep(10 * MS);
    }
    assert!(waits.join().unwrap(), "no stream was cut");
    wait_idle(&router);
    // The same probes with nothing else heard of it are another thing.
    wait::until("it is missed", || state(&router, 0) == "ejected");
    assert_eq!(status(&router, 0)["held_against"], "probe_timeout");
    engine.dawdle(Duration::ZERO);
    wait::until("and found again", || matches!(&*state(&router, 0), "slow_start" | "ready"));
}

/// H03. (A name without an address is another matter.)
#[test]
fn h03_a_start_with_engines_down_serves_with_the_others_and_recovers() {
    let (engine, dead) = (fine(), fine().die());
    let router = Router::start(quick(&[dead.addr(), engine.addr()])).unwrap();
    wait::until("one is found dead", || state(&router, 0) == "backed_off");
    wait::until("one is ready", || state(&router, 1) == "ready");
    assert_eq!(readyz(&router), 200);
    assert_eq!(ask(router.addr(), chat()).status, 200);
    drop(router);

    let router = Router::start(quick(&[dead.addr()])).unwrap();
    wait::until("it is found dead", || readyz(&router) == 503);
    let answer = ask(router.addr(), chat());
    assert_eq!(answer.status, 503);
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    let error: serde_json::Value = serde_json::from_str(&answer.text()).unwrap();
    assert!(error["error"]["message"].is_string(), "{error}");
    let addr = dead.addr();
    drop(dead);
    let _engine = Backend::start_at(addr, |_, exchange| exchange.answer("200 OK", "{}"));
    wait::until("it recovers", || readyz(&router) == 200 && ask(router.addr(), chat()).status == 200);
    drop(router);

    let router = Router::start(quick(&[])).unwrap();
    assert_eq!((readyz(&router), ask(router.addr(), chat()).status), (503, 503), "nobody at all");
}

#[test]
fn an_engine_that_fails_fast_attracts_nothing() {
    let fails = Backend::start(|_, exchange| exchange.answer("500 Oops", "{}"));
    let works = Backend::start(|_, exchange| {
        std::thread::sleep(20 * MS);
        exchange.answer("200 OK", "{}")
    });
    let router = start(config(&[fails.addr(), works.addr()]));
    let addr = router.addr();
    let (left, failed) = (AtomicUsize::new(400), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while left.try_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                    failed.fetch_add(usize::from(ask(addr, chat()).status != 200), Ordering::SeqCst);
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("{failed} of 400 failed");
    // Five in a row, and what was on its way by then.
    assert!((3..=12).contains(&failed), "{failed} of 400");
    assert_eq!(fails.received().len(), failed);
    assert_eq!(status(&router, 0)["held_against"], "errors");
}

/// What clients do wrong is not held against an engine.
#[test]
fn an_engine_that_refuses_with_4xx_stays_in() {
    let engine = Backend::start(|_, exchange| exchange.answer("400 Bad Request", "{}"));
    let router = start(config(&[engine.addr()]));
    for _ in 0..50 {
        assert_eq!(ask(router.addr(), chat()).status, 400);
    }
    std::thread::sleep(200 * MS);
    assert_eq!(state(&router, 0), "ready");
}

/// A restart that no port told of: the counts begin anew, the cache is gone, requests are not.
#[test]
fn a_restart_seen_by_its_counts_clears_the_cache_and_no_count() {
    let gate = Gate::default();
    let held = gate.clone();
    let engine = Backend::start(move |request, exchange| {
        if request.line().contains("chat") {
            held.wait();
        }
        exchange.answer("200 OK", "{}")
    });
    // Running is not zero, so that the report is believed while one is in flight.
    let counted = |tokens: u32| {
        format!(
            "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:prompt_tokens_total {tokens}\n"
        )
    };
    engine.say(&counted(500));
    let mut config = quick(&[engine.addr()]);
    config.policy.policy = router_policy::PolicyName::PrefixCost;
    let router = start(config);
    let prompt = serde_json::json!({"model": "m", "prompt": "p ".repeat(4000)}).to_string();
    assert_eq!(ask(router.addr(), post("/v1/completions", &prompt)).status, 200);
    let blocks = || status(&router, 0)["index_blocks"].as_u64().unwrap();
    assert!(blocks() > 0);
    let mut client = Client::connect(router.addr());
    client.send(chat());
    engine.wait_received(2);
    engine.say(&counted(3));
    wait::until("the cache is gone", || blocks() == 0);
    assert_eq!(in_flight(&router, 0), 1, "what is in flight stays counted");
    gate.open();
    assert_eq!(client.answer().status, 200);
    wait_idle(&router);
}
