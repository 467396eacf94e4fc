//! The same trace in virtual time, and over HTTP through a router and engines as processes.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use crate::support::{DEADLINE, Process, free_addr, get, run, unlatch};

const SCALE: &str = "--time-scale=8";

/// Four clients that take turns; each turn's prompt is the one before and 1,024 tokens more.
fn trace() -> String {
    let mut lines = String::new();
    for turn in 0..5 {
        for client in 0..4 {
            let at_ms = 3000 * turn + 750 * client + client * client;
            let ids: Vec<_> = (0..8 + 2 * turn).map(|id| 1000 * client + id).collect();
            let tokens = 512 * ids.len();
            let _ = writeln!(
                lines,
                r#"{{"timestamp":{at_ms},"input_length":{tokens},"output_length":12,"hash_ids":{ids:?}}}"#
            );
        }
    }
    lines
}

fn engine(name: &str) -> (Process, String) {
    let name = format!("--name={name}");
    let args = ["engine", "--listen=127.0.0.1:0", &name, SCALE, "--profile=h100-70b-tp4"];
    let mut engine = Process(unlatch(&args).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(engine.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let backend = format!("--backend={}", line.trim_end().strip_prefix("listening on ").unwrap());
    (engine, backend)
}

#[test]
fn over_http_the_router_finds_the_prefixes_that_it_finds_in_virtual_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), trace()).unwrap();
    let ((_a, backend_a), (_b, backend_b)) = (engine("a"), engine("b"));
    let (listen, admin) = (free_addr("127.77.0.7"), free_addr("127.77.0.8"));
    let args = [&format!("--listen={listen}"), &backend_a, &backend_b, "--scrape-interval=125ms"];
    let _router = Process::serve_with(&admin, unlatch(&["serve"]).args(args));
    let end = Instant::now() + DEADLINE;
    while get(&admin, "/status").matches(r#""ready":true"#).count() < 2 {
        assert!(Instant::now() < end, "both engines must be found");
        std::thread::sleep(Duration::from_millis(5));
    }

    let url = format!("--url=http://{listen}");
    let (trace, equal) = (file.path().to_str().unwrap(), "--assert=http.hit_ratio/prefix-cost>=0.9");
    // It may be slow on a busy machine, and place a request elsewhere for that, but not be faster than the engines.
    let slower = "--assert=http.ttft_p50/prefix-cost>=0.99";
    let replay = ["replay", "--trace", trace, "--engines=2", "--policy=prefix-cost", SCALE, &url];
    let (code, stderr) = run(&[&replay[..], &[equal, slower]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stderr.contains("failed"), "{stderr}");
}
