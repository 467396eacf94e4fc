//! The agent as the program that people start.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use router_tests::client::ask;

use crate::agent::{REQUEST, connect, is_nothing_left, listen, pass};
use crate::hosts::own_network;
use crate::router_process::{BINARY, is_built};
use crate::sandbox::{Sandbox, name, run};

/// A running agent, killed with its value.
struct Agent {
    process: Child,
    admin: SocketAddr,
}

impl Agent {
    fn start(sandbox: &Sandbox, ports: &str, more: &[&str]) -> Self {
        let mut command = Command::new(std::env::var_os(BINARY).unwrap());
        command.args(["agent", "--admin-listen=127.0.0.1:0", "--port", ports]);
        command.arg("--pin-dir").arg(sandbox.pin_dir()).arg("--kernel-cgroup").arg(&sandbox.cgroup);
        let mut process = command.args(more).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let admin = line.trim().strip_prefix("listening on http://").unwrap().parse().unwrap();
        Self { process, admin }
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
fn the_program_counts_at_a_device() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        own_network().unwrap();
        let (listener, port) = listen("127.0.0.1");
        let mut agent = Agent::start(sandbox, &port.to_string(), &["--kernel-hook=tcx", "--kernel-dev=lo"]);
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
