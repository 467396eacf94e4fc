//! Backends by name: what the DNS says joins and leaves while the router serves.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Exchange, Received, Then};
use router_tests::client::{Client, ask, chat, post};
use router_tests::dns::{Dns, NXDOMAIN, SERVFAIL, Said};
use router_tests::router::{config, metric};
use router_tests::wait::{self, Gate};
use router_user::app::{Router, RunningRouter};
use router_user::config::{Config, DnsConfig, backend};
use serde_json::Value;

const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const THIRD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

fn named(dns: &Dns, urls: &[&str]) -> Config {
    let mut config = config(&[]);
    config.backends = urls.iter().map(|url| backend::parse(url, &|_| Ok(String::new())).unwrap()).collect();
    config.dns = DnsConfig { servers: vec![dns.addr()], ..DnsConfig::default() };
    config.limits.backoff_min = Duration::from_millis(50);
    config.limits.backoff_max = Duration::from_millis(200);
    config
}

fn shown(router: &RunningRouter) -> Vec<Value> {
    let text = ask(router.admin_addr(), "GET /status HTTP/1.1\r\nhost: h\r\n\r\n").text();
    let status: Value = serde_json::from_str(&text).unwrap();
    status["backends"].as_array().unwrap().clone()
}

fn readyz(router: &RunningRouter) -> u16 {
    ask(router.admin_addr(), "GET /readyz HTTP/1.1\r\nhost: h\r\n\r\n").status
}

/// Streams what asks for that until the gate opens, and answers the rest.
fn engine_at(addr: SocketAddr, gate: &Gate) -> Backend {
    let gate = gate.clone();
    Backend::start_at(addr, move |request: &Received, exchange: &mut Exchange| -> Then {
        if !String::from_utf8_lossy(&request.body).contains("\"stream\"") {
            return exchange.answer("200 OK", "{}");
        }
        exchange.start_stream();
        exchange.chunk("data: 0\n\n");
        gate.wait();
        exchange.chunk("data: 1\n\n");
        exchange.end_stream()
    })
}

/// Requests, one after the other, 20 a second and more, until it is stopped.
struct Traffic {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u16>>,
}

impl Traffic {
    fn start(router: SocketAddr) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut statuses = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                statuses.push(ask(router, chat()).status);
                std::thread::sleep(Duration::from_millis(20));
            }
            statuses
        });
        Self { is_over, thread }
    }

    /// The statuses of all answers.
    fn stop(self) -> Vec<u16> {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

/// Waits until the name was asked for so often again, and some requests were answered meanwhile.
fn serves_through(dns: &Dns, questions: usize, engines: [&Backend; 2]) {
    let (asked, received) = (dns.asked("e.test"), engines.map(|e| e.received().len()));
    wait::until("the name is asked for again", || dns.asked("e.test") >= asked + questions);
    wait::until("both engines get requests", || {
        (0..2).all(|n| engines[n].received().len() > received[n] + 3)
    });
}

/// H04, its times scaled: TTL 1 s instead of 5 s, failures of some questions instead of 30 s.
#[test]
fn h04_names_are_resolved_again_under_traffic() {
    let dns = Dns::start();
    let gate = Gate::default();
    let second = engine_at((SECOND, 0).into(), &gate);
    let port = second.addr().port();
    let third = engine_at((THIRD, port).into(), &gate);
    dns.say_addresses("e.test", &[SECOND]);
    let router = Router::start(named(&dns, &[&format!("http://e.test:{port},model=m")])).unwrap();
    assert_eq!(shown(&router)[0]["url"], format!("http://e.test:{port}"));
    let traffic = Traffic::start(router.addr());
    second.wait_received(5);
    let mut stream = Client::connect(router.addr());
    stream.send(post(
        "/v1/chat/completions",
        r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}"#,
    ));
    let head = stream.head();
    assert_eq!(stream.chunk().as_deref(), Some("data: 0\n\n"));

    // Another address: used within the TTL and a bit, the one before gets nothing new, its stream ends whole.
    let since = Instant::now();
    dns.say_addresses("e.test", &[THIRD]);
    third.wait_received(1);
    let after = since.elapsed();
    assert!(after < Duration::from_secs(3), "the new address was used after {after:?}");
    let old = second.received().len();
    third.wait_received(20);
    assert_eq!(second.received().len(), old, "a removed address gets no new request");
    gate.open();
    let rest = stream.body(head);
    assert!(rest.is_complete && rest.text() == "data: 1\n\n", "its stream ends as if nothing were: {rest:?}");
    wait::until("it leaves", || shown(&router).len() == 1);
    let refusing = second.die();

    // Both, the one before alive again.
    drop(refusing);
    let second = engine_at((SECOND, port).into(), &gate);
    dns.say_addresses("e.test", &[SECOND, THIRD]);
    serves_through(&dns, 1, [&second, &third]);
    let both = shown(&router);
    assert!(
        both.len() == 2 && both[0]["url"] != both[1]["url"],
        "each address is a backend of its own: {both:?}"
    );

    // What fails keeps the last good list.
    let label = "source=\"dns:e.test\"";
    for said in [NXDOMAIN, SERVFAIL] {
        let failures = metric(&router, "unlatch_discovery_failures_total", label);
        dns.say("e.test", said.clone());
        serves_through(&dns, 2, [&second, &third]);
        assert!(metric(&router, "unlatch_discovery_failures_total", label) > failures, "{said:?} is counted");
        assert_eq!(shown(&router).len(), 2, "{said:?} takes nothing away");
        dns.say_addresses("e.test", &[SECOND, THIRD]);
        wait::until("it is resolved again", || {
            metric(&router, "unlatch_discovery_good_age_seconds", label) < 1.0
        });
    }
    // A server that is silent: the question is open while requests are answered.
    dns.say("e.test", Said::Nothing);
    serves_through(&dns, 1, [&second, &third]);

    // 200 addresses, of which two answer; too many for a datagram.
    let mut all: Vec<_> = (1..=198).map(|n| Ipv4Addr::new(127, 0, 1, n)).collect();
    all.extend([SECOND, THIRD]);
    dns.say_addresses("e.test", &all);
    wait::until("all join", || shown(&router).len() == 200);
    assert!(dns.over_tcp() > 0);
    serves_through(&dns, 0, [&second, &third]);
    let statuses = traffic.stop();
    assert!(
        statuses.len() > 100 && statuses.iter().all(|&status| status == 200),
        "no request failed: {statuses:?}"
    );
}

/// H03: one refuses, one has no address, one serves.
#[test]
fn h03_a_name_without_address_is_no_reason_not_to_start() {
    let (dns, good) = (Dns::start(), Backend::ok());
    let dead = Backend::ok().die();
    let late = Backend::ok();
    let urls = [
        format!("http://{},model=m", dead.addr()),
        format!("http://late.test:{},model=m", late.addr().port()),
        format!("http://{},model=m", good.addr()),
    ];
    let router = Router::start(named(&dns, &urls.each_ref().map(String::as_str))).unwrap();
    assert_eq!(readyz(&router), 200);
    for _ in 0..10 {
        assert_eq!(ask(router.addr(), chat()).status, 200);
    }
    assert_eq!(good.received().len(), 10);
    dns.say_addresses("late.test", &[Ipv4Addr::LOCALHOST]);
    wait::until("it joins when it has an address", || {
        assert_eq!(ask(router.addr(), chat()).status, 200);
        !late.received().is_empty()
    });
}

#[test]
fn h03_without_any_address_it_is_not_ready_and_recovers() {
    let (dns, late) = (Dns::start(), Backend::ok());
    let url = format!("http://late.test:{},model=m", late.addr().port());
    let router = Router::start(named(&dns, &[&url])).unwrap();
    assert_eq!(readyz(&router), 503);
    let refused = ask(router.addr(), chat());
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let body: Value = serde_json::from_str(&refused.text()).unwrap();
    assert_eq!(body["error"]["code"], "no_backend");
    dns.say_addresses("late.test", &[Ipv4Addr::LOCALHOST]);
    wait::until("it recovers", || ask(router.addr(), chat()).status == 200);
    assert_eq!(readyz(&router), 200);
}

#[test]
fn h03_an_empty_list_serves_nobody_and_panics_nowhere() {
    let router = Router::start(config(&[])).unwrap();
    assert_eq!((readyz(&router), ask(router.addr(), chat()).status), (503, 503));
}

#[test]
fn services_say_hosts_ports_and_weights() {
    let dns = Dns::start();
    let engines = [Backend::ok(), Backend::ok()];
    let ports = engines.each_ref().map(|engine| engine.addr().port());
    let services = |all| Said::Services { ttl: 1, all };
    dns.say("_http._tcp.test", services(vec![(30, ports[0], "a.test"), (10, ports[1], "b.test")]));
    dns.say_addresses("a.test", &[Ipv4Addr::LOCALHOST]);
    dns.say_addresses("b.test", &[Ipv4Addr::LOCALHOST]);
    let router = Router::start(named(&dns, &["srv+http://_http._tcp.test,model=m"])).unwrap();
    let urls: Vec<_> = shown(&router).iter().map(|b| b["url"].clone()).collect();
    assert_eq!(urls, [format!("http://a.test:{}", ports[0]), format!("http://b.test:{}", ports[1])]);
    let weights: Vec<_> = router
        .ledger()
        .backends()
        .into_iter()
        .map(|id| router.ledger().snapshot(id).unwrap().spec.weight)
        .collect();
    assert_eq!(weights, [Some(1.5), Some(0.5)]);
    wait::until("both get requests", || {
        assert_eq!(ask(router.addr(), chat()).status, 200);
        engines.iter().all(|engine| !engine.received().is_empty())
    });
    assert_eq!(engines[0].received()[0].header("host"), Some(&*format!("a.test:{}", ports[0])));
    dns.say("_http._tcp.test", services(vec![(0, ports[1], "b.test")]));
    wait::until("what is no longer named leaves", || shown(&router).len() == 1);
    assert_eq!(shown(&router)[0]["url"], format!("http://b.test:{}", ports[1]));
}
