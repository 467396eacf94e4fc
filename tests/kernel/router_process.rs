//! The router as the program that people start, killed and started again.
//!
//! `cargo xtask test` builds it and says where it is; without that the cases are skipped.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use router_tests::backend::{Backend, Exchange, Received, Then};
use router_tests::client::{Client, ask, post};
use router_user::account::view::{Row, View};
use router_user::account::{Detach, detach};

use crate::hosts::own_network;
use crate::sandbox::{Sandbox, name, run};
use crate::world::{PROGRAMS, bpftool, wait_until};

/// Where the program is.
pub(crate) const BINARY: &str = "UNLATCH_BIN";

/// A router as a process of its own, killed with its value.
struct Router {
    process: Child,
    addr: SocketAddr,
}

impl Router {
    /// Starts it and waits until it serves.
    fn start(sandbox: &Sandbox, ip: &str, kernel: &str, engines: &[&Backend]) -> Self {
        Self::start_with(sandbox, ip, kernel, engines, &[])
    }

    fn start_with(sandbox: &Sandbox, ip: &str, kernel: &str, engines: &[&Backend], more: &[&str]) -> Self {
        let mut process = serve(sandbox, kernel, ip);
        process.0.args(more);
        process.0.args(engines.iter().map(|engine| format!("--backend=http://{},model=m", engine.addr())));
        let router = Self { process: process.0.spawn().unwrap(), addr: process.1 };
        wait_until(|| TcpStream::connect(router.addr).map(drop).map_err(|e| e.to_string()));
        // It listens before all is set up, and answers after.
        assert_eq!(ask(router.addr, "GET /version HTTP/1.1\r\nhost: h\r\n\r\n").status, 200);
        router
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// `unlatch serve` on a free port of an address that only the calling case uses, so that nobody takes it meanwhile.
fn serve(sandbox: &Sandbox, kernel: &str, ip: &str) -> (Command, SocketAddr) {
    let addr = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
    let mut command = Command::new(std::env::var_os(BINARY).unwrap());
    command.arg("serve").arg(format!("--listen={addr}")).arg("--admin-listen=127.0.0.1:0");
    command.arg(format!("--kernel={kernel}")).arg("--pin-dir").arg(sandbox.pin_dir());
    command.args(["--policy=least-in-flight", "--log-level=error"]).stdin(Stdio::null());
    (command, addr)
}

/// Whether the program is there; says so if not.
pub(crate) fn is_built(name: &str) -> bool {
    let is_built = std::env::var_os(BINARY).is_some();
    if !is_built {
        println!("SKIP {name}: {BINARY} does not name the program; `cargo xtask test` does");
    }
    is_built
}

/// Holds a request that says so until its client is gone.
fn engine(request: &Received, exchange: &mut Exchange) -> Then {
    if request.body.windows(4).any(|text| text == b"hold") {
        return exchange.wait_closed();
    }
    exchange.answer("200 OK", "{}")
}

fn completion(prompt: &str) -> String {
    post("/v1/completions", &format!(r#"{{"model":"m","prompt":"{prompt}"}}"#))
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
        let engines = [Backend::start(engine), Backend::start(engine)];
        let both = [&engines[0], &engines[1]];
        let mut router = Router::start(sandbox, "127.78.0.1", "on", &both);
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
        assert_eq!(workers.iter().map(|(_, worker)| worker.pid).collect::<Vec<_>>(), [router.process.id()]);

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

        let again = Router::start(sandbox, "127.78.0.1", "on", &both);
        let totals: Vec<_> = rows(sandbox).iter().map(|row| (row.load.opened, row.load.closed)).collect();
        assert_eq!(totals, [(3, 3), (3, 3)], "a restart finds its totals");
        assert_eq!(view.workers().len(), 1);
        assert_eq!(ask(again.addr, completion("answer")).status, 200);
        assert_eq!(rows(sandbox).iter().map(|row| row.load.opened).sum::<u64>(), 7);
    });
}

#[test]
fn taking_the_programs_off_under_load_fails_no_request() {
    const EACH: usize = 100;
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engines = [Backend::start(engine), Backend::start(engine)];
        let router = Router::start(sandbox, "127.78.0.3", "on", &[&engines[0], &engines[1]]);
        let answered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        assert_eq!(ask(router.addr, completion("answer")).status, 200);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            wait_until(|| match answered.load(Ordering::Relaxed) {
                early if early < EACH => Err(format!("{early} answers")),
                _ => Ok(()),
            });
            detach(&sandbox.pin_dir(), Detach::Forced).unwrap();
            assert!(answered.load(Ordering::Relaxed) < 4 * EACH, "requests must come after it, too");
        });
        assert_eq!(answered.into_inner(), 4 * EACH);
        let mut client = Client::connect(router.addr);
        client.send(completion("hold"));
        wait_until(|| match engines.iter().map(|engine| engine.received().len()).sum::<usize>() {
            all if all == 4 * EACH + 1 => Ok(()),
            some => Err(format!("{some} requests")),
        });
    });
}

#[test]
fn pins_of_another_layout_are_left_alone_and_mode_on_exits_69() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let dir = sandbox.pin_dir().join("v1");
        std::fs::create_dir_all(&dir).unwrap();
        let shape = "type array key 4 value 128 entries 256 name LOAD flags 1024";
        bpftool(&["map", "create"], &dir.join("LOAD"), &shape.split(' ').collect::<Vec<_>>());

        let output = serve(sandbox, "on", "127.78.0.2").0.stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{stderr}");
        assert!(stderr.contains("v1/LOAD") && stderr.contains("another layout"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");

        let engine = Backend::start(engine);
        let router = Router::start(sandbox, "127.78.0.2", "auto", &[&engine]);
        assert_eq!(ask(router.addr, completion("answer")).status, 200);
        let shown = bpftool(&["-j", "map", "show", "pinned"], &dir.join("LOAD"), &[]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["bytes_value"], 128, "still as it was");
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
        let engine = Backend::start(engine);
        let start =
            |ip| Router::start_with(sandbox, ip, "on", &[&engine], &["--kernel-hook=tcx", "--kernel-dev=lo"]);
        let (mut first, second) = (start("127.78.0.11"), start("127.78.0.12"));
        let hold = |router: &Router| {
            let mut client = Client::connect(router.addr);
            client.send(completion("hold"));
            client
        };
        let _clients = [hold(&first), hold(&first), hold(&second)];
        wait_until(|| match (counts(sandbox)[0], phases(sandbox)[0]) {
            ((3, 3), (3, 0, 0)) => Ok(()),
            found => Err(format!("{found:?}")),
        });
        first.kill();
        wait_until(|| match (counts(sandbox)[0], phases(sandbox)[0]) {
            ((1, 1), (1, 0, 0)) => Ok(()),
            found => Err(format!("{found:?}")),
        });
    });
}

#[test]
fn a_router_counts_connections_that_are_older_than_it() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = Backend::start(engine);
        let older = TcpStream::connect(engine.addr()).unwrap();
        let _router = Router::start(sandbox, "127.78.0.13", "on", &[&engine]);
        let foreign = |wanted: u64| match rows(sandbox)[0].load.foreign_conns {
            found if found == wanted => Ok(()),
            found => Err(format!("{found} connections of others, not {wanted}")),
        };
        wait_until(|| foreign(1));
        drop(older);
        wait_until(|| foreign(0));
    });
}
