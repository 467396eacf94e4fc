//! P04: engines that close idle connections after a fixed time, while a request for them may be on its way.
//!
//! The case's third run, an end of stream that the network holds back, is in the kernel tier (`late_ends`): it needs a
//! network of its own.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use router_tests::backend::header_values;
use router_tests::client::Client;
use router_tests::router::{config, start, wait_idle};
use router_tests::wait::is_long;

/// How it closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// A FIN, at once.
    Fin,
    /// A reset once it has read the head of another request, which it does not execute.
    ResetAfterHead,
}

/// An engine that closes connections which idled for `idle`, and counts what it executed by request id.
struct Engine {
    addr: SocketAddr,
    executed: Arc<Mutex<BTreeMap<String, u32>>>,
    stop: Arc<AtomicBool>,
}

impl Engine {
    fn start(idle: Duration, how: How) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (executed, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let engine = Self { addr, executed: Arc::clone(&executed), stop: Arc::clone(&stop) };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (executed, stream) = (Arc::clone(&executed), stream.unwrap());
                std::thread::spawn(move || serve(stream, idle, how, &executed));
            }
        });
        engine
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _woken = TcpStream::connect(self.addr);
    }
}

/// Until the connection idled or ended.
fn serve(mut stream: TcpStream, idle: Duration, how: How, executed: &Mutex<BTreeMap<String, u32>>) {
    stream.set_nodelay(true).unwrap();
    let mut has_served = false;
    loop {
        stream.set_read_timeout(Some(idle)).unwrap();
        let is_late = stream.peek(&mut [0]).is_err();
        if is_late && how == How::Fin {
            return;
        }
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let Some(head) = read_head(&mut stream) else { return };
        if is_late && has_served {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            return;
        }
        let length = header_values(&head, "content-length").first().map_or(0, |l| l.parse().unwrap());
        if stream.read_exact(&mut vec![0; length]).is_err() {
            return;
        }
        if let [id] = header_values(&head, "x-request-id")[..] {
            *executed.lock().entry(id.to_owned()).or_default() += 1;
        }
        // It has no list of models.
        let status = if head.starts_with("GET") { "404 Not Found" } else { "200 OK" };
        if stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}").as_bytes()).is_err()
        {
            return;
        }
        has_served = true;
    }
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// One client that asks again and again just as the engine closes; the ids of what failed.
fn ask_at_the_border(router: SocketAddr, idle: Duration, rounds: u32, body: &str) -> Vec<String> {
    let mut rng = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(rounds.into());
    let mut client = Client::connect(router);
    let mut failed = Vec::new();
    for i in 0..rounds {
        let id = format!("r-{i}");
        client.send(format!(
            "POST /v1/completions HTTP/1.1\r\nhost: h\r\nx-request-id: {id}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let answer = client.answer();
        let answered = Instant::now();
        assert!(matches!(answer.status, 200 | 502), "{answer:?}");
        if answer.status == 502 {
            failed.push(id);
        }
        let jitter = Duration::from_micros(rng.random_range(0..6000));
        std::thread::sleep((answered + idle + jitter - Duration::from_millis(3)) - Instant::now());
    }
    failed
}

/// Asks under each combination at once; a run with few failures that nobody executed passes, if it may fail at all.
fn run(how: How, is_late: bool) {
    let (idle, rounds) = match (is_long(), is_late) {
        (true, _) => (Duration::from_secs(5), 400),
        (false, true) => (Duration::from_millis(40), 60),
        (false, false) => (Duration::from_millis(200), 20),
    };
    let bodies = [r#"{"a":"bc"}"#.to_owned(), format!(r#"{{"prompt":"{}"}}"#, "x".repeat(1 << 20))];
    std::thread::scope(|scope| {
        for body in &bodies {
            scope.spawn(move || {
                let engine = Engine::start(idle, how);
                let mut config = config(&[engine.addr]);
                // By default younger than what any engine closes: 4 s.
                let age = if is_long() { config.limits.idle_conn_age_max } else { idle / 2 };
                config.limits.idle_conn_age_max = if is_late { Duration::from_secs(3600) } else { age };
                let router = start(config);
                let failed = ask_at_the_border(router.addr(), idle, rounds, body);
                wait_idle(&router);
                let executed = engine.executed.lock();
                assert!(executed.values().all(|&times| times == 1), "executed twice: {executed:?}");
                assert!(failed.iter().all(|id| !executed.contains_key(id)), "executed and failed");
                assert_eq!(executed.len() + failed.len(), rounds as usize);
                assert!(is_late || failed.is_empty(), "{failed:?}");
                // What meets the moment between the engine's decision and its close is reset, with nothing proved.
                assert!(how == How::ResetAfterHead || failed.len() <= rounds as usize / 10, "{failed:?}");
            });
        }
    });
}

/// All at once: where there is time each takes half an hour.
#[test]
fn p04_engines_that_close_idle_connections_fail_nothing_young_and_repeat_nothing() {
    std::thread::scope(|scope| {
        for how in [How::Fin, How::ResetAfterHead] {
            for is_late in [false, true] {
                scope.spawn(move || run(how, is_late));
            }
        }
    });
}
