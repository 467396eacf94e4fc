//! The agent as the program that people start.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use router_tests::client::ask;
use router_user::account::Role;

use crate::agent::{REQUEST, connect, is_nothing_left, listen, pass};
use crate::hosts::own_network;
use crate::router_process::{BINARY, is_built};
use crate::sandbox::{Sandbox, name, run};
use crate::world::{Backend, account, connect_marked};

/// A running agent, killed with its value.
pub(crate) struct Agent {
    process: Child,
    admin: SocketAddr,
}

impl Agent {
    pub(crate) fn start(sandbox: &Sandbox, ports: &str, more: &[&str]) -> Self {
        let mut command = Command::new(std::env::var_os(BINARY).unwrap());
        command.args(["agent", "--admin-listen=127.0.0.1:0", "--port", ports]).args(more);
        command.arg("--pin-dir").arg(sandbox.pin_dir()).arg("--kernel-cgroup").arg(&sandbox.cgroup);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let admin = line.trim().strip_prefix("listening on http://").unwrap().parse().unwrap();
        Self { process, admin }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

#[test]
fn the_program_serves_its_counts_and_cleans_up_at_its_end() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let (listener, port) = listen("127.0.0.1");
        let mut agent = Agent::start(sandbox, &format!("{port},1"), &[]);
        let (mut ours, mut theirs) = connect(&listener);
        pass(&mut ours, &mut theirs, REQUEST);
        let get = |path: &str| {
            let answer = ask(agent.admin, format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n"));
            assert_eq!(answer.status, 200);
            String::from_utf8(answer.body).unwrap()
        };
        let status: serde_json::Value = serde_json::from_str(&get("/status")).unwrap();
        assert_eq!(
            (&status["engines"][0]["port"], &status["engines"][0]["in_flight"]),
            (&port.into(), &1.into())
        );
        let metric = format!("unlatch_local_awaiting{{port=\"{port}\"}} 1");
        assert!(get("/metrics").contains(&metric), "{metric}");
        let pid = rustix::process::Pid::from_child(&agent.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(agent.process.wait().unwrap().success());
        is_nothing_left(sandbox);
    });
}

#[test]
fn the_program_tells_in_band_whom_it_is_told_to_and_needs_to_be_told() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        for wrong in [&["--in-band"][..], &["--to=10.0.0.0/8"], &["--in-band", "--to=10.1.1.1/8"]] {
            let mut command = Command::new(std::env::var_os(BINARY).unwrap());
            let output = command.args(["agent", "--port=1"]).args(wrong).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(64) && stderr.contains("--to"), "{wrong:?}: {stderr}");
        }
        let account = account(sandbox);
        let engine = Backend::new(&account, "127.0.0.1");
        let port = engine.addr().port().to_string();
        let _agent = Agent::start(sandbox, &port, &["--in-band", "--to=10.0.0.0/8,127.0.0.0/8"]);
        let mut ours = connect_marked(&account, &engine, Role::Router);
        let mut theirs = engine.listener.accept().unwrap().0;
        pass(&mut ours, &mut theirs, REQUEST);
        pass(&mut theirs, &mut ours, b"HTTP/1.1 200 OK\r\n");
        let row = account.row(engine.id);
        assert!(row.remote_at_ns > 0 && row.remote_in_flight == 1, "{row:?}");
    });
}

#[test]
fn the_program_counts_at_a_device() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        own_network().unwrap();
        let mut command = Command::new(std::env::var_os(BINARY).unwrap());
        let at_lo = ["--kernel-hook=tcx", "--kernel-dev=lo"];
        let in_band = ["agent", "--port=1", "--in-band", "--to=10.0.0.0/8"];
        let output = command.args(in_band).args(at_lo).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "only a program of a cgroup can tell: {output:?}");
        let (listener, port) = listen("127.0.0.1");
        let mut agent = Agent::start(sandbox, &port.to_string(), &at_lo);
        let (mut ours, mut theirs) = connect(&listener);
        pass(&mut ours, &mut theirs, REQUEST);
        let answer = ask(agent.admin, "GET /status HTTP/1.1\r\nhost: h\r\n\r\n");
        let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(status["engines"][0]["in_flight"], 1, "{status}");
        let pid = rustix::process::Pid::from_child(&agent.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(agent.process.wait().unwrap().success());
        assert!(!sandbox.pin_dir().exists());
    });
}
