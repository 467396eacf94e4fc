//! A router as a process, and what talks to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// For a router whose data plane nobody asks.
pub(crate) const ANY: &str = "--listen=127.0.0.1:0";

pub(crate) fn unlatch(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unlatch"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn run(args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = unlatch(args).output().unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// A free port of an address that only the calling test uses, so that nobody takes it meanwhile.
pub(crate) fn free_addr(ip: &str) -> String {
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap().to_string()
}

/// A router as a process, ended by its value.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

impl Process {
    pub(crate) fn serve(listen: &str, backend: &str) -> Self {
        let backend = format!("http://{backend},model=m");
        let args = [
            "serve",
            "--listen",
            listen,
            "--admin-listen",
            "127.0.0.1:0",
            "--gossip-dir",
            "off",
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
    pub(crate) fn serve_with(admin: &str, command: &mut Command) -> Self {
        command.args(["--admin-listen", admin, "--kernel", "off", "--gossip-dir", "off"]);
        let process = Self(command.spawn().unwrap());
        let end = Instant::now() + DEADLINE;
        while TcpStream::connect(admin).is_err() {
            assert!(Instant::now() < end, "it must listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    pub(crate) fn signal(&self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    pub(crate) fn exit_code(&mut self) -> Option<i32> {
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
pub(crate) fn get(addr: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// An engine that serves and never tells its load, until the test ends.
pub(crate) fn silent_engine() -> String {
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
