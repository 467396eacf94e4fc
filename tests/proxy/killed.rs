//! Engines that are killed under load, or told to end: no new request goes there, what cannot be saved ends visibly.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat, post};
use router_tests::process::program;
use router_tests::router::{config, metric, start, status, wait_idle};
use router_tests::wait;

/// Clients at once.
const CLIENTS: usize = 200;

/// Of all of them together.
const REQUESTS: usize = 3 * CLIENTS;

/// All of them are over by then, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);

/// After a kill so long may pass until nobody is sent there.
const MISSED_WITHIN: Duration = Duration::from_millis(50);

/// A simulated engine as a process of its own; killed with its value.
struct Engine(Child);

impl Drop for Engine {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// At a free port of an address that nobody else uses.
fn engine(program: &std::path::Path, ip: &str) -> (Engine, SocketAddr) {
    let addr = std::net::TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
    let mut command = Command::new(program);
    command.args(["engine", "--listen", &addr.to_string(), "--model", "m", "--max-num-seqs", "1000"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let engine = Engine(command.spawn().unwrap());
    wait::until("the engine listens", || std::net::TcpStream::connect(addr).is_ok());
    (engine, addr)
}

/// How a client's request ended: whole, an error of ours, visibly cut.
#[derive(Debug, Default)]
struct Ends([AtomicUsize; 3]);

impl Ends {
    fn count(&self, answer: &router_tests::client::Answer) {
        let end = match answer.status {
            200 if answer.is_complete => {
                assert!(answer.text().contains("[DONE]"), "it looks whole: {}", answer.text());
                0
            }
            200 => 2,
            502 | 503 if answer.is_complete => 1,
            _ => panic!("neither an answer nor an error: {answer:?}"),
        };
        self.0[end].fetch_add(1, Ordering::SeqCst);
    }

    fn counts(&self) -> [usize; 3] {
        self.0.each_ref().map(|n| n.load(Ordering::SeqCst))
    }
}

/// Hundreds of streams over two engines, one of which is killed. Who was not answered there yet and cannot have begun
/// goes to the other, all else ends visibly; from 50 ms on, or one failed connection, nobody is sent there.
#[test]
fn an_engine_killed_under_load_gets_nothing_more_and_every_end_is_visible() {
    let name = "an_engine_killed_under_load_gets_nothing_more_and_every_end_is_visible";
    let program = match program() {
        Ok(program) => program,
        Err(reason) => return println!("SKIP {name}: {reason}"),
    };
    let ((_steady, steady), (mortal, addr)) =
        (engine(&program, "127.20.0.1"), engine(&program, "127.20.0.2"));
    let mut config = config(&[steady, addr]);
    config.policy.scrape_interval = Duration::from_secs(1);
    config.workers = 1;
    let router = start(config);
    let to = router.addr();
    let (sent, ends) = (AtomicUsize::new(0), Ends::default());
    let decided = || metric(&router, "unlatch_decisions_total", &addr.to_string());
    let body =
        r#"{"model":"m","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"hello"}]}"#;
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while sent.fetch_add(1, Ordering::SeqCst) < REQUESTS {
                    ends.count(&ask(to, post("/v1/chat/completions", body)));
                }
            });
        }
        let id = router.ledger().backends()[1];
        let there = || router.ledger().snapshot(id).unwrap();
        wait::until("requests are there", || there().own.requests > 50);
        let mut mortal = mortal;
        let at_kill = there().own.requests;
        mortal.0.kill().unwrap();
        let killed = Instant::now();
        wait::until_busily("it is missed", || !there().ready);
        let missed = killed.elapsed();
        std::thread::sleep(MISSED_WITHIN.saturating_sub(killed.elapsed()));
        let before = decided();
        while sent.load(Ordering::SeqCst) < REQUESTS {
            assert!(killed.elapsed() < PATIENCE, "{} were sent", sent.load(Ordering::SeqCst));
            std::thread::sleep(Duration::from_millis(5));
        }
        let (late, failed) = (decided() - before, metric(&router, "unlatch_retries_total", "connect_failed"));
        println!(
            "{at_kill} in flight at the kill, missed after {missed:?}, {late} sent there later than 50 ms"
        );
        println!("{failed} connections failed");
        // Each look of the watch is its own; no client is sent to find out.
        assert!(late <= 1.0, "{late}");
        assert!(missed < MISSED_WITHIN || failed >= 1.0, "{missed:?}, {failed}");
    });
    let [whole, errors, cut] = ends.counts();
    println!("whole {whole}, errors {errors}, cut {cut}");
    assert_eq!(whole + errors + cut, REQUESTS);
    assert!(cut + errors <= CLIENTS, "only what was there was lost");
    wait_idle(&router);
    assert_eq!(status(&router, 1)["state"], "backed_off");
}

/// What both real engines do on SIGTERM.
#[test]
fn silent_answers_of_an_engine_whose_port_refuses_end_visibly_and_others_go_on() {
    const EVENTS: usize = 80;
    let mut engine = Backend::start(|request, exchange| {
        match request.header("x-case") {
            Some("talks") => {
                exchange.start_stream();
                for n in 0..EVENTS {
                    exchange.chunk(&format!("data: {n}\n\n"));
                    std::thread::sleep(Duration::from_millis(50));
                }
                return exchange.end_stream();
            }
            Some("stops") => {
                exchange.start_stream();
                exchange.chunk("data: 0\n\n");
            }
            // Not even a head.
            _ => {}
        }
        exchange.wait_closed()
    });
    let mut config = config(&[engine.addr()]);
    config.policy.scrape_interval = Duration::from_millis(100);
    config.limits.gone_stream_timeout = Some(Duration::from_millis(400));
    let router = start(config);
    let clients: Vec<_> = ["stops", "silent", "talks"]
        .into_iter()
        .enumerate()
        .map(|(n, case)| {
            let mut client = Client::connect(router.addr());
            client.send(chat().replacen("\r\n\r\n", &format!("\r\nx-case: {case}\r\n\r\n"), 1));
            engine.wait_received(n + 1);
            client
        })
        .collect();
    engine.stop_listening();
    let stopped = Instant::now();
    let [stops, silent, talks]: [_; 3] = clients
        .into_iter()
        .map(|mut client| std::thread::spawn(move || (client.answer(), Instant::now())))
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let (answer, at) = stops.join().unwrap();
    println!("ended {:?} after the port closed", at - stopped);
    assert!(!answer.is_complete && answer.text() == "data: 0\n\n", "visibly cut: {answer:?}");
    let (answer, _) = silent.join().unwrap();
    assert_eq!(answer.status, 502, "{answer:?}");
    let (answer, _) = talks.join().unwrap();
    assert!(answer.is_complete && answer.text().matches("data:").count() == EVENTS, "{answer:?}");
    assert_eq!(metric(&router, "unlatch_gone_connections_ended_total", ""), 2.0);
    assert_eq!(metric(&router, "unlatch_request_seconds_count", "outcome=\"upstream_failed\""), 2.0);
    engine.wait_closed(2);
    wait_idle(&router);
}
