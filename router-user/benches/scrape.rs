//! What reading engines' metrics costs. `cargo bench -p router-user --bench scrape`.
//!
//! Two questions. How fast is a whole text read, plain and in pieces as it comes? What share of a core takes the watch
//! of 512 engines that are asked each second? The text is a real vLLM's, where it lies beside the checkout.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use router_policy::{BackendId, Models, Nanos, Report};
use router_user::backends::metrics_text::{Reader, parse};
use router_user::backends::{ReportSink, Target, WatchConfig, watch};

const ENGINES: usize = 512;
const WATCHED: Duration = Duration::from_secs(10);

fn text() -> Vec<u8> {
    let real = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/metrics/vllm-0.32.0-cpu-6running.txt");
    std::fs::read(real).unwrap_or_else(|_| {
        println!("no real text beside the checkout: 50 times that of the fixtures");
        let small = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/metrics/vllm_idle.txt");
        std::fs::read(small).unwrap().repeat(50)
    })
}

/// Best and median of rounds, GB/s.
fn speed(text: &[u8], mut read: impl FnMut(&[u8])) -> (f64, f64) {
    let times = (20 << 20) / text.len();
    let mut rounds: Vec<f64> = (0..31)
        .map(|_| {
            let start = Instant::now();
            (0..times).for_each(|_| read(black_box(text)));
            (times * text.len()) as f64 / start.elapsed().as_secs_f64() / 1e9
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[30], rounds[15])
}

fn main() {
    let text = text();
    let report = parse(&text, Nanos(1)).report;
    println!(
        "{} bytes, running {:?}, waiting {:?}",
        text.len(),
        report.running.value(),
        report.waiting.value()
    );
    println!("{:<22}{:>12}{:>12}", "GB/s", "best of 31", "median");
    let line = |what, (best, median): (f64, f64)| println!("{what:<22}{best:>12.2}{median:>12.2}");
    line("whole", speed(&text, |text| drop(black_box(parse(text, Nanos(1))))));
    let in_pieces = |text: &[u8], with_names| {
        let mut reader = Reader::new(with_names);
        text.chunks(8 << 10).for_each(|piece| reader.feed(piece).unwrap());
        drop(black_box(reader.finish(Nanos(1), None)));
    };
    line("in pieces of 8 KiB", speed(&text, |text| in_pieces(text, false)));
    line("the same with names", speed(&text, |text| in_pieces(text, true)));
    watch(text);
}

/// Counts what it is told.
#[derive(Default)]
struct Counting(AtomicU64);

impl ReportSink for Counting {
    fn report_begins(&self, _: BackendId) {}
    fn report(&self, _: BackendId, report: Report) -> Report {
        assert!(report.running.value().is_some(), "every report is whole");
        self.0.fetch_add(1, Ordering::Relaxed);
        report
    }
    fn models(&self, _: BackendId, _: Models) {}
    fn ready(&self, _: BackendId, _: bool) {}
    fn trust(&self, _: BackendId, _: router_policy::Trust) {}
    fn cache_lost(&self, _: BackendId) {}
}

/// The share of a core of the thread that watches; the engines are threads of their own.
fn watch(text: Vec<u8>) {
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files()).unwrap();
    let engines = serve(text);
    let host = HeaderValue::from_static("engine");
    let targets: Vec<_> = (0..ENGINES)
        .map(|n| {
            let id = BackendId::new(n % 256).unwrap();
            Arc::new(Target::new(
                id,
                format!("http://e{n}"),
                engines,
                host.clone(),
                String::new(),
                None,
                false,
            ))
        })
        .collect();
    let config = WatchConfig {
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(2),
        backoff_min: Duration::from_millis(250),
        backoff_max: Duration::from_secs(10),
        inference: None,
        mark: None,
    };
    let counting = Arc::new(Counting::default());
    let sink: Arc<dyn ReportSink> = counting.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (cpu, wall, reports) = runtime.block_on(async {
        let mut watches = tokio::task::JoinSet::new();
        for target in &targets {
            watches.spawn(watch::watch(Arc::clone(target), Arc::clone(&sink), config.clone()));
        }
        // The first round opens all connections.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (cpu, start, reports) = (thread_cpu(), Instant::now(), counting.0.load(Ordering::Relaxed));
        tokio::time::sleep(WATCHED).await;
        let reports = counting.0.load(Ordering::Relaxed) - reports;
        (thread_cpu() - cpu, start.elapsed(), reports)
    });
    println!(
        "{ENGINES} engines each second: {:.1} % of a core, {:.0} µs a round of an engine; {:.0} reports a second",
        100.0 * cpu.as_secs_f64() / wall.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / reports as f64,
        reports as f64 / wall.as_secs_f64()
    );
}

fn files() -> rustix::process::Rlimit {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    rustix::process::Rlimit { current: hard, maximum: hard }
}

fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Engines that answer each question at once: all at one address, a thread a connection.
fn serve(text: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let with_length = |body: &[u8]| {
        [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    };
    let models = Arc::new(with_length(br#"{"object":"list","data":[{"id":"m"}]}"#));
    let metrics = Arc::new(with_length(&text));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, models, metrics) = (stream.unwrap(), Arc::clone(&models), Arc::clone(&metrics));
            let answers = move || answer(stream, &models, &metrics);
            std::thread::Builder::new().stack_size(64 << 10).spawn(answers).unwrap();
        }
    });
    addr
}

fn answer(mut stream: TcpStream, models: &[u8], metrics: &[u8]) {
    let mut head = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut head) {
        let is_metrics = head[..n].starts_with(b"GET /metrics ");
        if stream.write_all(if is_metrics { metrics } else { models }).is_err() {
            return;
        }
    }
}
