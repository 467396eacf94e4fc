//! S03: what clients make up makes no series and no state.

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, post};
use router_tests::process::{Process, program};
use router_tests::wait::is_long;

/// Six kinds of requests, all of whose made-up words are new each time; and whether each is an error.
fn made_up(n: usize) -> [(String, Option<u16>); 6] {
    let body = r#"{"model":"m","prompt":"x"}"#;
    let with = |line: &str| post("/v1/completions", body).replacen("\r\n", &format!("\r\n{line}\r\n"), 1);
    [
        (post("/v1/completions", &format!(r#"{{"model":"made-up-{n}","prompt":"x"}}"#)), Some(404)),
        (format!("GET /made-up/{n} HTTP/1.1\r\nhost: h\r\n\r\n"), Some(404)),
        (format!("GET /v1/made-up/{n}?q={n} HTTP/1.1\r\nhost: h\r\n\r\n"), Some(200)),
        (
            format!(
                "FOO{n} /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ),
            None,
        ),
        (post("/v1/completions", body).replacen("host: router", &format!("host: h{n}.test"), 1), Some(200)),
        (with(&format!("x-request-id: id-{n}\r\nx-session-id: session-{n}\r\nx-user: {n}")), Some(200)),
    ]
}

fn series(process: &Process) -> usize {
    let text = ask(process.admin(), "GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n").text();
    text.lines().filter(|line| !line.starts_with('#')).count()
}

#[test]
fn s03_what_clients_make_up_makes_no_series_and_no_state() {
    let program = match program() {
        Ok(program) => program,
        Err(reason) => {
            return println!("SKIP s03_what_clients_make_up_makes_no_series_and_no_state: {reason}");
        }
    };
    let engine = Backend::ok();
    let router =
        Process::start(program, "127.79.0.3", &[engine.addr()], &["--policy=session", "--log-level=error"]);
    let mut client = Client::connect(router.addr());
    let mut send = |from: usize, count: usize| {
        for n in from..from + count {
            for (request, status) in made_up(n) {
                client.send(&request);
                let answer = client.answer();
                assert!(status.is_none_or(|status| answer.status == status), "{request}: {}", answer.head);
                if answer.header("connection") == Some("close") {
                    client = Client::connect(router.addr());
                }
            }
        }
    };
    send(0, 200);
    let (fresh, kib) = (series(&router), router.resident_kib());
    let count = if is_long() { 50_000 / 6 } else { 1000 };
    send(200, count);
    let (after, grown) = (series(&router), router.resident_kib().saturating_sub(kib));
    println!("{} requests: {fresh} series, then {after}; {grown} KiB more resident", count * 6);
    assert!(after < fresh + 50, "{fresh} series, then {after}");
    assert!(grown < 20 << 10, "{grown} KiB more are resident");
    let refused = |reason| router.metric("unlatch_refused_total", &format!("reason=\"{reason}\""));
    assert_eq!(refused("unknown_model"), (200 + count) as f64, "an error, and under one name");
    assert_eq!(refused("unknown_path"), (200 + count) as f64);
    let text = ask(router.admin(), "GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n").text();
    assert!(!text.contains("made-up") && !text.contains("FOO") && !text.contains("session-"), "{text}");
}
