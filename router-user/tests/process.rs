//! The program as a process: exit codes and signals.
#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(10);

/// For a router whose data plane nobody asks.
const ANY: &str = "--listen=127.0.0.1:0";

fn unlatch(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unlatch"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = unlatch(args).output().unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// A free port of an address that only the calling test uses, so that nobody takes it meanwhile.
fn free_addr(ip: &str) -> String {
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap().to_string()
}

/// A router as a process, ended by its value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

impl Process {
    fn serve(listen: &str, backend: &str) -> Self {
        let backend = format!("http://{backend},model=m");
        let args = [
            "serve",
            "--listen",
            listen,
            "--admin-listen",
            "127.0.0.1:0",
            "--kernel",
            "off",
            "--backend",
            &backend,
        ];
        let process = Self(unlatch(&args).spawn().unwrap());
        let end = Instant::now() + DEADLINE;
        while TcpStream::connect(listen).is_err() {
            assert!(Instant::now() < end, "it must listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    /// A router with further flags and environment, that answers on its admin listener.
    fn serve_with(admin: &str, command: &mut Command) -> Self {
        command.args(["--admin-listen", admin, "--kernel", "off"]);
        let process = Self(command.spawn().unwrap());
        let end = Instant::now() + DEADLINE;
        while TcpStream::connect(admin).is_err() {
            assert!(Instant::now() < end, "it must listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    fn signal(&self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "it must end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The body of what a listener answers.
fn get(addr: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The policy that a router says it has.
fn policy(admin: &str) -> String {
    let status: serde_json::Value = serde_json::from_str(&get(admin, "/status")).unwrap();
    status["policy"].as_str().unwrap().to_owned()
}

/// An engine that serves and never tells its load, until the test ends.
fn silent_engine() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            let _gone = BufReader::new(&stream).read_line(&mut line);
            let (status, body) = match line.split(' ').nth(1) {
                Some("/v1/models") => ("200 OK", r#"{"data":[{"id":"m"}]}"#),
                _ => ("404 Not Found", ""),
            };
            let length = body.len();
            let _gone = write!(
                stream,
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            );
        }
    });
    addr
}

/// A request whose head has reached the engine; the engine's end of it.
fn request_in_flight(listen: &str, engine: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(listen).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    client.write_all(b"GET /v1/thing HTTP/1.1\r\nhost: h\r\nx-mine: 1\r\n\r\n").unwrap();
    loop {
        let (theirs, _) = engine.accept().unwrap();
        theirs.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut line = String::new();
        BufReader::new(&theirs).read_line(&mut line).unwrap();
        // Probes come too.
        if line.starts_with("GET /v1/thing ") {
            return (client, theirs);
        }
    }
}

#[test]
fn wrong_usage_is_64_and_names_it() {
    for (args, named) in [
        (&["serve", "--no-such-flag"][..], "--no-such-flag"),
        (&["serve", "--workers", "none"], "workers"),
        (&["serve", "--config", "/nowhere/unlatch.toml"], "/nowhere/unlatch.toml"),
        (&["fly"], "fly"),
    ] {
        let (code, stderr) = run(args);
        assert_eq!(code, Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(named), "{args:?}: {stderr}");
    }
}

#[test]
fn a_port_in_use_is_69_and_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let (code, stderr) =
        run(&["serve", "--kernel", "off", "--listen", &addr, "--admin-listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(69), "{stderr}");
    assert!(stderr.contains(&addr), "{stderr}");
}

#[test]
fn sigterm_lets_a_request_end_and_exits_0() {
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = free_addr("127.77.0.1");
    let mut process = Process::serve(&listen, &engine.local_addr().unwrap().to_string());
    let (mut client, mut theirs) = request_in_flight(&listen, &engine);
    process.signal();
    let end = Instant::now() + DEADLINE;
    while TcpStream::connect(&listen).is_ok() {
        assert!(Instant::now() < end, "it must stop listening");
        std::thread::sleep(Duration::from_millis(5));
    }
    theirs.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(process.exit_code(), Some(0));
}

#[test]
fn a_second_signal_does_not_wait() {
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = free_addr("127.77.0.2");
    let mut process = Process::serve(&listen, &engine.local_addr().unwrap().to_string());
    let (_client, _theirs) = request_in_flight(&listen, &engine);
    process.signal();
    while TcpStream::connect(&listen).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = Instant::now();
    process.signal();
    assert_eq!(process.exit_code(), Some(0));
    assert!(second.elapsed() < DEADLINE, "the deadline of 30 s is not waited for");
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("unlatch.toml");
    std::fs::write(&file, "policy = \"random\"\nseed = 1\n").unwrap();
    let by_file = ["serve", ANY, "--config", file.to_str().unwrap()];
    let by_flag = [&by_file[..], &["--policy", "least-in-flight"]].concat();
    let admin = free_addr("127.77.0.3");
    let of = |command: &mut Command| {
        let _process = Process::serve_with(&admin, command);
        policy(&admin)
    };
    assert_eq!(of(&mut unlatch(&by_file)), "random");
    assert_eq!(of(unlatch(&by_file).env("UNLATCH_POLICY", "")), "random", "an empty variable is none");
    assert_eq!(of(unlatch(&by_file).env("UNLATCH_POLICY", "round-robin")), "round-robin");
    assert_eq!(of(unlatch(&by_flag).env("UNLATCH_POLICY", "round-robin")), "least-in-flight");

    let wrong = unlatch(&by_file).env("UNLATCH_POLICY", "fastest").output().unwrap();
    let stderr = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(64) && stderr.contains("UNLATCH_POLICY"), "{stderr}");
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
    ] {
        assert_eq!(series(name), Vec::<String>::new(), "unknown, and no 0");
    }
    let in_flight = format!("unlatch_backend_in_flight{{pool=\"m\",backend=\"http://{engine}\"}} 0.0");
    assert_eq!(series("unlatch_backend_in_flight"), [in_flight]);
    assert!(text.ends_with("# EOF\n"), "{text}");
}

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
fn a_demo_of_a_trace_that_is_not_there_is_wrong_usage() {
    let (code, stderr) = run(&["demo", "--real", "--trace", "/nowhere/trace.jsonl"]);
    assert!(code == Some(64) && stderr.contains("/nowhere/trace.jsonl"), "{stderr}");
}
