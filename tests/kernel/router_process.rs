//! The router as the program that people start, killed and started again.
//!
//! `cargo xtask test` builds it and says where it is; without that the cases are skipped.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use router_tests::client::{Client, ask};
use router_user::account::view::{Row, View};

use crate::hosts::own_network;
use crate::program::{Serve, completion, holding_engine};
use crate::sandbox::{Sandbox, name, run};
use crate::world::{PROGRAMS, bpftool, wait_until};

/// Where the program is.
pub(crate) const BINARY: &str = "UNLATCH_BIN";

/// Whether the program is there; says so if not.
pub(crate) fn is_built(name: &str) -> bool {
    let is_built = std::env::var_os(BINARY).is_some();
    if !is_built {
        println!("SKIP {name}: {BINARY} does not name the program; `cargo xtask test` does");
    }
    is_built
}

fn rows(sandbox: &Sandbox) -> Vec<Row> {
    View::open(&sandbox.pin_dir()).unwrap().rows().unwrap()
}

/// In flight and connections of each backend.
fn counts(sandbox: &Sandbox) -> Vec<(u32, u64)> {
    rows(sandbox).iter().map(|row| (row.load.workers.iter().sum(), row.load.conns)).collect()
}

/// Awaiting and streaming of each backend, and how many of both are no router's.
fn phases(sandbox: &Sandbox) -> Vec<(u64, u64, u64)> {
    let foreign = |row: &Row| row.load.foreign_awaiting + row.load.foreign_streaming;
    rows(sandbox).iter().map(|row| (row.load.awaiting, row.load.streaming, foreign(row))).collect()
}

#[test]
fn a_router_killed_with_requests_in_flight_leaves_no_count_and_its_totals() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engines = [holding_engine(), holding_engine()];
        let both = [&engines[0], &engines[1]];
        let mut router = Serve::new(sandbox, "127.78.0.1", "on", &both).start();
        let mut clients = Vec::new();
        for _ in 0..6 {
            let mut client = Client::connect(router.addr);
            client.send(completion("hold"));
            clients.push(client);
        }
        wait_until(|| match counts(sandbox) {
            counts if counts == [(3, 3), (3, 3)] => Ok(()),
            counts => Err(format!("{counts:?}, three requests on three connections each wanted")),
        });
        wait_until(|| match phases(sandbox) {
            phases if phases == [(3, 0, 0), (3, 0, 0)] => Ok(()),
            phases => {
                Err(format!("{phases:?}, but the kernel must see what the router counts, and no probe"))
            }
        });
        let load = bpftool(&["map", "dump", "pinned"], &sandbox.pin_dir().join("v1/LOAD"), &[]);
        let load: serde_json::Value = serde_json::from_str(&load).unwrap();
        for row in 0..2 {
            let workers = load[row]["value"]["workers"].as_array().unwrap();
            assert_eq!(workers.iter().filter_map(serde_json::Value::as_u64).sum::<u64>(), 3);
        }
        let view = View::open(&sandbox.pin_dir()).unwrap();
        let workers = view.workers();
        assert_eq!(workers.iter().map(|(_, worker)| worker.pid).collect::<Vec<_>>(), [router.pid()]);

        router.kill();
        wait_until(|| match (counts(sandbox), view.workers().len()) {
            (counts, 0) if counts == [(0, 0), (0, 0)] => Ok(()),
            (counts, slots) => Err(format!("{counts:?} and {slots} slots of a router that is dead")),
        });
        wait_until(|| match phases(sandbox) {
            phases if phases == [(0, 0, 0), (0, 0, 0)] => Ok(()),
            phases => Err(format!("{phases:?} of a router that is dead")),
        });
        let tokens = |row: &Row| row.load.q_tokens.iter().chain(&row.load.c_tokens).sum::<u32>();
        assert!(rows(sandbox).iter().all(|row| tokens(row) == 0));
        for mut client in clients {
            assert!(client.is_closed());
        }

        let again = Serve::new(sandbox, "127.78.0.1", "on", &both).start();
        let totals: Vec<_> = rows(sandbox).iter().map(|row| (row.load.opened, row.load.closed)).collect();
        assert_eq!(totals, [(3, 3), (3, 3)], "a restart finds its totals");
        assert_eq!(view.workers().len(), 1);
        assert_eq!(ask(again.addr, completion("answer")).status, 200);
        assert_eq!(rows(sandbox).iter().map(|row| row.load.opened).sum::<u64>(), 7);
    });
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing_pinned_or_attached() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        for phase in ["warm-up", "the burst"] {
            let mut command = Command::new(std::env::var_os(BINARY).unwrap());
            command.arg("demo").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut demo = command.spawn().unwrap();
            let pins = PathBuf::from(format!("/sys/fs/bpf/unlatch-demo-{}", demo.id()));
            let mut says = BufReader::new(demo.stderr.take().unwrap());
            let mut line = String::new();
            while !line.trim_end().ends_with(phase) {
                line.clear();
                assert_ne!(says.read_line(&mut line).unwrap(), 0, "the demo must come to {phase}");
            }
            // The warm-up is announced before anything is pinned.
            wait_until(|| if pins.exists() { Ok(()) } else { Err("no pins".to_owned()) });
            rustix::process::kill_process(
                rustix::process::Pid::from_child(&demo),
                rustix::process::Signal::INT,
            )
            .unwrap();
            let mut rest = String::new();
            says.read_to_string(&mut rest).unwrap();
            assert_eq!(demo.wait().unwrap().code(), Some(70), "{rest}");
            assert!(rest.ends_with("unlatch: interrupted\n"), "{rest}");
            assert!(!pins.exists(), "{phase}");
            wait_until(|| match bpftool(&["cgroup", "show"], &sandbox.cgroup, &[]) {
                shown if PROGRAMS.iter().any(|program| shown.contains(program)) => Err(shown),
                _ => Ok(()),
            });
        }
    });
}

#[test]
fn of_a_router_at_a_device_that_was_killed_the_other_clears_the_count() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        own_network().unwrap();
        let engine = holding_engine();
        let [mut first, second] = ["127.78.0.11", "127.78.0.12"].map(|ip| {
            let serve = Serve::new(sandbox, ip, "on", &[&engine]);
            serve.arg("--kernel-hook=tcx").arg("--kernel-dev=lo").start()
        });
        assert_eq!(first.metric("unlatch_kernel_attached"), Some(2.0), "{:?}", first.said());
        let _clients = [&first, &first, &second].map(|router| {
            let mut client = Client::connect(router.addr);
            client.send(completion("hold"));
            client
        });
        let is = |wanted: u64| match (counts(sandbox)[0], phases(sandbox)[0]) {
            found if found == ((wanted as u32, wanted), (wanted, 0, 0)) => Ok(()),
            found => Err(format!("{found:?}")),
        };
        wait_until(|| is(3));
        first.kill();
        wait_until(|| is(1));
    });
}

#[test]
fn a_router_counts_connections_that_are_older_than_it() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = holding_engine();
        let older = TcpStream::connect(engine.addr()).unwrap();
        let _router = Serve::new(sandbox, "127.78.0.13", "on", &[&engine]).start();
        let foreign = |wanted: u64| match rows(sandbox)[0].load.foreign_conns {
            found if found == wanted => Ok(()),
            found => Err(format!("{found} connections of others, not {wanted}")),
        };
        wait_until(|| foreign(1));
        drop(older);
        wait_until(|| foreign(0));
    });
}
