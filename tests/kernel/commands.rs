//! `unlatch status` and `unlatch bpf`, as a process of its own runs them.

use std::io::{Read, Write};
use std::path::Path;

use clap::Parser;
use router_user::account::local::Local;
use router_user::account::view::pinned;
use router_user::commands::bpf::{self, BpfArgs};
use router_user::commands::status::{self, StatusArgs};

use crate::agent::{REQUEST, connect, listen, options, pass};
use crate::sandbox::{Sandbox, name, run, say};
use crate::world::{Backend, account, requests};

#[derive(Parser)]
enum Cli {
    Status(StatusArgs),
    Bpf(BpfArgs),
}

/// In a helper: runs the command that is the step, on the sandbox's pins.
pub(crate) fn unlatch(sandbox: &Sandbox, line: &str) {
    let pin_dir = sandbox.pin_dir().display().to_string();
    let words = std::iter::once("unlatch").chain(line.split(' ')).chain(["--pin-dir", &pin_dir]);
    println!();
    let code = match Cli::parse_from(words) {
        Cli::Status(args) => status::run(&args),
        Cli::Bpf(args) => bpf::run(&args),
    };
    say(format!("{:?}", code.unwrap()));
}

/// What a command prints, and whether it exited with 0 or 69.
pub(crate) fn output(sandbox: &Sandbox, line: &str) -> (String, u8) {
    let text = sandbox.helper(line).finish();
    let (text, rest) = text.split_once("@@").unwrap();
    let text = text.split_once("...").unwrap().1.trim().to_owned();
    let code = [0, 69]
        .into_iter()
        .find(|&code: &u8| rest.starts_with(&format!("{:?}", std::process::ExitCode::from(code))));
    (text, code.unwrap())
}

#[test]
fn status_tells_what_routers_and_kernel_count() {
    run(name!(), |sandbox| {
        if let Some(line) = sandbox.step() {
            return unlatch(sandbox, line);
        }
        assert_eq!(output(sandbox, "status"), (String::new(), 69), "nothing is pinned yet");
        let router = account(sandbox);
        let backend = Backend::new(&router, "127.0.0.1");
        let (mut ours, mut theirs) = backend.connect();
        let request = b"POST / HTTP/1.1\r\n\r\n";
        ours.write_all(request).unwrap();
        theirs.read_exact(&mut [0; 19]).unwrap();
        requests(&router, backend.id, 4);

        let (text, code) = output(sandbox, "status --json");
        assert_eq!(code, 0);
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        let row = &told["backends"][0];
        assert_eq!(row["url"], format!("http://{}", backend.addr()));
        assert_eq!((&row["in_flight"], &row["conns"], &row["opened"]), (&4.into(), &1.into(), &1.into()));
        assert_eq!(row["by_worker"][0]["pid"], std::process::id());
        let phases = ["awaiting", "streaming", "unknown", "foreign", "drift"].map(|name| row[name].as_i64());
        assert_eq!(phases, [1, 0, 0, 1, -4].map(Some), "the request is no router's");

        let (text, code) = output(sandbox, "status");
        assert_eq!(code, 0);
        let line = text.lines().find(|line| line.contains("http://")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[2..9], ["4", "1", "0", "1", "1", "0", "0"], "{text}");
        assert_eq!(words[9], format!("{}:4", std::process::id()));

        // Without the program that follows requests there are no phases, and no zeros that look like some.
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        let egress = links.iter().find(|link| link.program == "phase_egress").unwrap();
        std::fs::remove_file(&egress.path).unwrap();
        let (text, _) = output(sandbox, "status --json");
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(told["backends"][0]["awaiting"].is_null(), "{text}");
        let (text, _) = output(sandbox, "status");
        let line = text.lines().find(|line| line.contains("http://")).unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>()[3..6], ["-", "-", "1"], "{text}");
    });
}

#[test]
fn bpf_status_and_detach_tell_what_they_find_and_do() {
    run(name!(), |sandbox| {
        if let Some(line) = sandbox.step() {
            return unlatch(sandbox, line);
        }
        let router = account(sandbox);
        let (text, code) = output(sandbox, "bpf status");
        assert_eq!(code, 0);
        for part in ["LOAD", "SOCKS", "inflight_sockops", "release", &std::process::id().to_string()] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        assert_eq!(output(sandbox, "bpf detach").1, 69, "a router runs");
        assert!(Path::new(&sandbox.pin_dir()).exists());
        drop(router);
        let (text, code) = output(sandbox, "bpf detach");
        assert_eq!(code, 0);
        assert!(text.contains("detached inflight_sockops"), "{text}");
        assert!(!sandbox.pin_dir().exists());
        let (text, code) = output(sandbox, "bpf status");
        assert!(text.contains("nothing is pinned") && code == 0, "{text}");
    });
}

#[test]
fn status_lists_an_agents_ports_with_and_without_a_router() {
    run(name!(), |sandbox| {
        if let Some(line) = sandbox.step() {
            return unlatch(sandbox, line);
        }
        let (listener, port) = listen("127.0.0.1");
        let agent = Local::open(&options(sandbox, &[port])).unwrap();
        let (mut ours, mut theirs) = connect(&listener);
        pass(&mut ours, &mut theirs, REQUEST);
        let (text, code) = output(sandbox, "status --json");
        assert_eq!(code, 0, "an engine's host needs no router");
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        let engine = &told["engines"][0];
        assert_eq!(engine["port"], port);
        let gauges = ["in_flight", "awaiting", "streaming", "unknown", "conns", "opened"];
        assert_eq!(gauges.map(|name| engine[name].as_u64()), [1, 1, 0, 0, 1, 1].map(Some), "{text}");
        assert!(engine["ttfb_seconds"].is_null() && told["backends"].as_array().unwrap().is_empty());
        let line = |text: &str| {
            let line = text.lines().find(|line| line.contains(&format!("port {port} "))).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let (text, _) = output(sandbox, "status");
        assert_eq!(line(&text)[2..], ["1", "1", "0", "1", "1", "0", "0"], "{text}");
        assert!(!text.contains("backend"), "no table of nothing: {text}");

        // Beside a router's rows, and without the program that follows requests no zeros that look like some.
        let router = account(sandbox);
        let backend = Backend::new(&router, "127.0.0.1");
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        let ingress = links.iter().find(|link| link.program == "local_ingress").unwrap();
        std::fs::remove_file(&ingress.path).unwrap();
        let (text, _) = output(sandbox, "status");
        assert!(text.contains(&backend.addr().to_string()), "{text}");
        assert_eq!(line(&text)[2..6], ["-", "-", "-", "1"], "{text}");
        drop(agent);
    });
}
