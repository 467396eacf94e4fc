//! M08: metrics that are huge, endless, one line, or never come. They slow nothing and fill no memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Exchange, Then};
use router_tests::client::{Client, chat};
use router_tests::router::{config, metric, start};
use router_tests::wait;

const ENGINES: usize = 10;
/// Of 200 requests a second.
const PAUSE: Duration = Duration::from_millis(5);
const REQUESTS: usize = 600;
const PIECE: usize = 64 << 10;
const GOOD: &str = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n";

/// What is wrong with an engine's metrics.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// 30 MB of buckets at 20 MB/s, the gauges at the end.
    Huge,
    /// Lines without end.
    Endless,
    /// One line of 20 MB.
    OneLine,
    /// A head, then nothing.
    Silent,
}

impl Wrong {
    fn answer(self, exchange: &mut Exchange) -> Then {
        let lines =
            "vllm:e2e_request_latency_seconds_bucket{engine=\"0\",le=\"0.5\"} 4711.0\n".repeat(PIECE / 69);
        exchange.send("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n");
        let began = Instant::now();
        match self {
            Self::Huge => {
                for n in 1..=(30 << 20) / lines.len() {
                    if !exchange.try_send(&lines) {
                        return Then::Close;
                    }
                    let due = Duration::from_secs_f64((n * lines.len()) as f64 / 20e6);
                    std::thread::sleep(due.saturating_sub(began.elapsed()));
                }
                exchange.send(GOOD);
            }
            Self::Endless => while exchange.try_send(&lines) {},
            Self::OneLine => {
                exchange.send("vllm:num_requests_running{x=\"");
                for _ in 0..(20 << 20) / PIECE {
                    if !exchange.try_send(vec![b'y'; PIECE]) {
                        return Then::Close;
                    }
                }
                exchange.send("\"} 1\n");
            }
            Self::Silent => return exchange.wait_closed(),
        }
        Then::Close
    }
}

/// What is common to the engines.
#[derive(Default)]
struct State {
    is_wrong: AtomicBool,
    scrapes: [AtomicUsize; ENGINES],
    /// Most scrapes of one engine at once.
    most_at_once: AtomicUsize,
}

fn engine(row: usize, state: &Arc<State>) -> Backend {
    let wrong = [Wrong::Huge, Wrong::Endless, Wrong::OneLine, Wrong::Silent][row % 4];
    let state = Arc::clone(state);
    Backend::start(move |request, exchange| {
        if !request.line().starts_with("GET /m ") {
            return exchange.answer("200 OK", "{}");
        }
        if !state.is_wrong.load(Ordering::SeqCst) {
            return exchange.answer("200 OK", GOOD);
        }
        let at_once = state.scrapes[row].fetch_add(1, Ordering::SeqCst) + 1;
        state.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        let then = wrong.answer(exchange);
        state.scrapes[row].fetch_sub(1, Ordering::SeqCst);
        then
    })
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Latencies of so many requests, sorted, and the most memory meanwhile.
fn traffic(client: &mut Client) -> (Vec<Duration>, usize) {
    let mut most = 0;
    let mut latencies: Vec<Duration> = (0..REQUESTS)
        .map(|n| {
            let sent = Instant::now();
            client.send(chat());
            assert_eq!(client.answer().status, 200);
            let took = sent.elapsed();
            if n % 20 == 0 {
                most = most.max(resident_bytes());
            }
            std::thread::sleep(PAUSE.saturating_sub(took));
            took
        })
        .collect();
    latencies.sort_unstable();
    (latencies, most)
}

#[test]
fn m08_huge_and_endless_metrics_slow_nothing_and_fill_no_memory() {
    let state = Arc::new(State::default());
    let engines: [Backend; ENGINES] = std::array::from_fn(|row| engine(row, &state));
    let mut config = config(&engines.each_ref().map(Backend::addr));
    config.policy.scrape_interval = Duration::from_secs(1);
    for backend in &mut config.backends {
        backend.metrics.path = Some("/m".to_owned());
    }
    let router = start(config);
    wait::until("all have reported", || metric(&router, "unlatch_backend_reported_running", "") == 10.0);
    let mut client = Client::connect(router.addr());
    let (before, memory_before) = traffic(&mut client);
    state.is_wrong.store(true, Ordering::SeqCst);
    let failed =
        |reason: &str| metric(&router, "unlatch_scrape_failures_total", &format!("reason=\"{reason}\""));
    // In time or in bytes, whichever this machine comes to first.
    wait::until("each text is given up", || failed("too_large") + failed("unreachable") >= 10.0);
    let (during, memory_during) = traffic(&mut client);
    let at = |sorted: &[Duration], percent: usize| sorted[sorted.len() * percent / 100];
    println!(
        "p50 {:?} then {:?}, p99 {:?} then {:?}; resident {} MB then {} MB",
        at(&before, 50),
        at(&during, 50),
        at(&before, 99),
        at(&during, 99),
        memory_before >> 20,
        memory_during >> 20
    );
    assert!(memory_during < memory_before + (100 << 20), "{memory_before} then {memory_during} bytes");
    // The 99th percentile is of a machine that others use; the median is the router's.
    assert!(at(&during, 50) < at(&before, 50) + Duration::from_millis(5), "requests wait for scrapes");
    assert_eq!(state.most_at_once.load(Ordering::SeqCst), 1, "no two scrapes of one engine at once");
}
