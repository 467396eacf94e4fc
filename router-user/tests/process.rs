//! The program as a process: exit codes and signals.
#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(10);

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
