//! What the program says: log, answers, metrics.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use crate::support::{ANY, DEADLINE, Process, free_addr, get, silent_engine, unlatch};

#[test]
fn a_log_that_cannot_be_written_does_not_end_the_router() {
    let admin = free_addr("127.77.0.5");
    let mut command = unlatch(&["serve", ANY, "--log-level", "debug"]);
    let mut process = Process::serve_with(&admin, command.stderr(File::create("/dev/full").unwrap()));
    assert_eq!(get(&admin, "/healthz"), "ok\n");
    process.signal();
    assert_eq!(process.exit_code(), Some(0));
}

#[test]
fn an_output_that_cannot_be_written_is_an_error_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let pins = dir.path().to_str().unwrap();
    let full = || File::create("/dev/full").unwrap();
    let shown = unlatch(&["bpf", "status", "--pin-dir", pins]).stdout(full()).output().unwrap();
    let stderr = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(shown.status.code() == Some(70) && stderr.contains("standard output"), "{stderr}");
    let refused = unlatch(&["status", "--pin-dir", pins]).stderr(full()).output().unwrap();
    assert_eq!(refused.status.code(), Some(69));
}

#[test]
fn a_router_without_backends_says_so() {
    let admin = free_addr("127.77.0.6");
    let mut process = Process::serve_with(&admin, &mut unlatch(&["serve", ANY]));
    process.signal();
    let code = process.exit_code();
    let mut log = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(code == Some(0) && log.contains("no backend is configured"), "{code:?}: {log}");
}

#[test]
fn metrics_have_their_names_and_what_is_unknown_is_absent() {
    let admin = free_addr("127.77.0.4");
    let (listen, engine) = (free_addr("127.77.0.4"), silent_engine());
    let backend = format!("http://{engine},model=m");
    let command = &mut unlatch(&["serve", "--listen", &listen, "--backend", &backend]);
    let _process = Process::serve_with(&admin, command);
    // Placed, counted, and answered by the engine's 404.
    assert_eq!(get(&listen, "/v1/thing"), "");
    let end = Instant::now() + DEADLINE;
    // The load is asked for after the models; from then on it is known to be unknown.
    let refused =
        format!("unlatch_scrape_failures_total{{backend=\"http://{engine}\",reason=\"refused\"}} 0");
    let text = loop {
        let text = get(&admin, "/metrics");
        if text.contains("unlatch_scrape_failures") && !text.contains(&refused) {
            break text;
        }
        assert!(Instant::now() < end, "the engine must be asked");
        std::thread::sleep(Duration::from_millis(5));
    };
    let series = |name: &str| {
        let of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        text.lines().filter(of).map(str::to_owned).collect::<Vec<_>>()
    };
    for name in [
        "unlatch_backend_in_flight",
        "unlatch_backend_state",
        "unlatch_prefix_matched_tokens_total",
        "unlatch_prompt_tokens_total",
        "unlatch_ttft_seconds_count",
        "unlatch_decision_seconds_count",
        "unlatch_retries_total",
        "unlatch_decisions_total",
        "unlatch_request_seconds_count",
    ] {
        assert!(!series(name).is_empty(), "no {name} in {text}");
    }
    for name in [
        "unlatch_backend_reported_running",
        "unlatch_backend_reported_waiting",
        "unlatch_backend_report_age_seconds",
        "unlatch_backend_kernel_connections",
        "unlatch_backend_kernel_awaiting",
        "unlatch_backend_kernel_streaming",
        "unlatch_count_drift",
    ] {
        assert_eq!(series(name), Vec::<String>::new(), "unknown, and no 0");
    }
    let in_flight = format!("unlatch_backend_in_flight{{pool=\"m\",backend=\"http://{engine}\"}} 0.0");
    assert_eq!(series("unlatch_backend_in_flight"), [in_flight]);
    assert!(text.ends_with("# EOF\n"), "{text}");
}
