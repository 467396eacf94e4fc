//! The kernel's phases and the routers' counts beside the truth, sampled every millisecond while many connections are at
//! work, from the router's and from the engine's side, with one router process and with three: in a cgroup, at `lo`, and
//! at a cable to another host.
//!
//! Routers are processes of their own, the engine is this one. Whoever moves a request on sends and notes it under the
//! lock of [`Truth`], which the sampler takes too: what is compared is of one moment.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_policy::{BackendSpec, Models, Outcome, Placement, PolicyConfig, RequestShape, Usage};
use router_user::account::local::Local;
use router_user::account::{Account, Ledger, Role};

use crate::agent::options;
use crate::agent_tcx::at_device;
use crate::hosts::{CLIENTS, DEVICE, connect_hosts, own_network};
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::shared::{Noted, Truth};
use crate::tcx::{at_devices, beyond};
use crate::world::{Backend, account, connect_marked_to, register, wait_until};

const SAMPLES: usize = 1000;

/// Longest that a packet is on its way on a machine with other work.
const SETTLED: Duration = Duration::from_secs(2);

/// Not a device.
const CGROUP: &str = "cgroup";

/// How an answer is cut into segments; the first begins it, the last ends it.
fn answers() -> [Vec<Vec<u8>>; 4] {
    let chunked = "HTTP/1.1 200 OK\r\nserver: mock\r\ntransfer-encoding: chunked\r\n\r\n";
    let event = "e\r\ndata: {\"a\":1}\n\r\n";
    let long = ["HTTP/1.1 200 OK\r\ncontent-length: 50000\r\n\r\n", &"x".repeat(10_000)].concat();
    let texts: [Vec<String>; 4] = [
        [chunked, event, event, event, "0\r\n\r\n"].map(str::to_owned).into(),
        [chunked.to_owned() + event, event.to_owned(), event.to_owned() + "0\r\n\r\n"].into(),
        [long, "x".repeat(20_000), "x".repeat(20_000)].into(),
        ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_owned()].into(),
    ];
    texts.map(|segments| segments.into_iter().map(String::into_bytes).collect())
}

/// A request that says which of the answers it wants.
fn request(answer: usize) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: engine\r\nx-answer: {answer}\r\ncontent-length: 2\r\n\r\n{{}}"
    )
}

fn pause(ms: usize) {
    std::thread::sleep(Duration::from_millis(ms as u64));
}

/// The engine's end of a connection.
fn answer(mut theirs: TcpStream, seed: usize, truth: &Truth) {
    theirs.set_nodelay(true).unwrap();
    let answers = answers();
    let mut got = vec![0; request(0).len()];
    while theirs.read_exact(&mut got).is_ok() {
        let asked = got.iter().position(|&byte| byte == b'x').unwrap() + "x-answer: ".len();
        let answer = &answers[usize::from(got[asked] - b'0')];
        pause(5 + seed % 7);
        for (n, bytes) in answer.iter().enumerate() {
            truth.note(|noted| {
                theirs.write_all(bytes).unwrap();
                if n == 0 {
                    noted.awaiting -= 1;
                    noted.streaming += 1;
                }
                if n + 1 == answer.len() {
                    noted.streaming -= 1;
                }
            });
            pause(2 + seed % 3);
        }
    }
}

/// The router's end: requests one after another, each counted by the ledger before it is sent.
fn ask(mut ours: TcpStream, seed: usize, ledger: &Arc<Ledger>, truth: &Truth) {
    ours.set_nodelay(true).unwrap();
    ours.set_nonblocking(false).unwrap();
    let lengths = answers().map(|segments| segments.iter().map(Vec::len).sum::<usize>());
    for (n, length) in lengths.iter().enumerate().cycle().skip(seed) {
        if truth.is_over() {
            return;
        }
        let guard = truth.note(|noted| {
            let (_, guard) = ledger.pick(&RequestShape::unshaped(), &[]).unwrap();
            ours.write_all(request(n).as_bytes()).unwrap();
            noted.awaiting += 1;
            noted.held += 1;
            noted.sent += 1;
            guard
        });
        ours.read_exact(&mut vec![0; *length]).unwrap();
        truth.note(|noted| {
            guard.finish(Outcome::Completed, &Usage::default());
            noted.held -= 1;
        });
    }
}

/// What sees the routers' connections: the programs of the cgroup, or those at a device.
fn looks(sandbox: &Sandbox, at: &str) -> Account {
    if at == CGROUP { account(sandbox) } else { at_devices(sandbox, &[at]) }
}

/// A router process with its share of the connections: `<where> <address> <connections> <number>`.
fn router(sandbox: &Sandbox, step: &str) {
    let mut words = step.split(' ');
    let at = words.next().unwrap();
    let addr: SocketAddr = words.next().unwrap().parse().unwrap();
    let [connections, number] = [(); 2].map(|()| words.next().unwrap().parse::<usize>().unwrap());
    let truth = Truth::open(sandbox);
    let account = looks(sandbox, at);
    let id = register(&account, addr);
    let ledger = Ledger::new(Placement::new(PolicyConfig::default(), Box::new(account.clone()), 1));
    ledger.set_backend(id, BackendSpec { url: format!("http://{addr}"), ..BackendSpec::default() });
    ledger.models(id, Models::Unknown);
    ledger.ready(id, true);
    let open: Vec<_> =
        (0..connections).map(|_| connect_marked_to(&account, id, addr, Role::Router)).collect();
    say("connected");
    std::thread::scope(|scope| {
        for (seed, ours) in open.into_iter().enumerate() {
            let (ledger, truth) = (&ledger, &truth);
            scope.spawn(move || ask(ours, seed + 5 * number, ledger, truth));
        }
    });
    wait_until_finished();
}

/// Samples of one side.
#[derive(Default)]
struct Samples {
    equal: usize,
    error: u64,
}

impl Samples {
    fn add(&mut self, off: u64) {
        self.equal += usize::from(off == 0);
        self.error += off;
    }

    fn check(&self, what: &str) {
        let share = self.equal as f64 / SAMPLES as f64;
        let error = self.error as f64 / SAMPLES as f64;
        println!(
            "\nFIGURE truth, {what}: {:.1} % of 1 ms samples equal, mean error {error:.4}",
            share * 100.0
        );
        assert!(share >= 0.99, "{} of {SAMPLES} samples were equal", self.equal);
        assert!(error <= 0.01, "mean error {error}");
    }
}

/// By how many requests the phases differ from those noted.
fn off(row: &router_common::BackendLoad, noted: &Noted) -> u64 {
    row.awaiting.abs_diff(noted.awaiting) + row.streaming.abs_diff(noted.streaming)
}

/// With the programs of the cgroup, or at a device: `lo`, or the cable, beyond which the engine's side is out of sight.
fn check(name: &'static str, at: &'static str, processes: usize, connections: usize) {
    run(name, |sandbox| {
        if let Some(step) = sandbox.step() {
            return router(sandbox, step);
        }
        let truth = Truth::open(sandbox);
        let hosts = (at == DEVICE).then(|| connect_hosts().unwrap());
        if at == "lo" {
            own_network().unwrap();
        }
        let account = looks(sandbox, at);
        let backend = match &hosts {
            Some(hosts) => beyond(hosts, &account, CLIENTS[0]),
            None => Backend::new(&account, "127.0.0.1"),
        };
        let port = [backend.addr().port()];
        let agent = match at {
            CGROUP => Some(options(sandbox, &port)),
            DEVICE => None,
            lo => Some(at_device(sandbox, lo, &port)),
        }
        .map(|options| Local::open(&options).unwrap());
        let shares =
            (0..processes).map(|n| connections / processes + usize::from(n < connections % processes));
        let mut routers: Vec<_> = shares
            .enumerate()
            .map(|(n, share)| sandbox.helper(&format!("{at} {} {share} {n}", backend.addr())))
            .collect();
        std::thread::scope(|scope| {
            for seed in 0..connections {
                let (theirs, truth) = (backend.listener.accept().unwrap().0, &truth);
                scope.spawn(move || answer(theirs, seed, truth));
            }
            routers.iter_mut().for_each(|router| assert_eq!(router.hears(), "connected"));
            sample(
                &truth,
                &account,
                &backend,
                agent.as_ref(),
                &format!("{at}, {processes} routers, {connections} connections"),
            );
            truth.end();
            // Their ends of the connections close, and the engine's threads with them.
            routers.drain(..).for_each(|router| drop(router.finish()));
        });
        let sent = truth.note(|noted| noted.sent);
        wait_until(|| {
            let sides = [Some(account.row(backend.id)), agent.as_ref().map(|agent| agent.rows()[0].load)];
            let found =
                sides.map(|row| row.map(|row| (row.conns, row.awaiting, row.streaming, row.ttfb_count)));
            let is_right = found.iter().flatten().all(|&row| row == (0, 0, 0, sent));
            let is_over = is_right && account.in_flight(backend.id) == 0;
            if is_over { Ok(()) } else { Err(format!("{found:?} after {sent} requests")) }
        });
    });
}

/// Whether what is off becomes right while nobody moves a request: a packet that waits for a core arrives, a phase that
/// was counted wrong stays so.
fn settles(off: impl Fn() -> u64) -> bool {
    let begun = Instant::now();
    while off() > 0 && begun.elapsed() < SETTLED {
        pause(1);
    }
    off() == 0
}

fn sample(truth: &Truth, account: &Account, backend: &Backend, agent: Option<&Local>, what: &str) {
    let (mut here, mut there) = (Samples::default(), Samples::default());
    let (mut exact, mut busy) = (0, 0);
    for _ in 0..SAMPLES {
        pause(1);
        let wrong = truth.note(|noted| {
            let here_off = || off(&account.row(backend.id), noted);
            let there_off = || agent.map_or(0, |agent| off(&agent.rows()[0].load, noted));
            here.add(here_off());
            there.add(there_off());
            exact += usize::from(u64::from(account.in_flight(backend.id)) == noted.held);
            busy += usize::from(noted.awaiting > 0 && noted.streaming > 0);
            if settles(|| here_off() + there_off()) { None } else { Some((*noted, here_off(), there_off())) }
        });
        assert_eq!(wrong, None, "{what}: nothing moves, and the phases of a side are not those noted");
    }
    assert!(busy > SAMPLES / 2, "the truth must be worth comparing: {busy} samples");
    here.check(&format!("{what}, router's side"));
    if agent.is_some() {
        there.check(&format!("{what}, engine's side"));
    }
    println!("\nFIGURE truth, {what}, routers' own counts: {exact} of {SAMPLES} samples exact");
    assert_eq!(exact, SAMPLES, "the routers' own counts must be exact in each sample");
}

#[test]
fn sixteen_connections_of_one_router_agree_with_the_truth_on_both_sides() {
    check(name!(), CGROUP, 1, 16);
}

#[test]
fn sixty_four_connections_of_one_router_agree_with_the_truth_on_both_sides() {
    check(name!(), CGROUP, 1, 64);
}

#[test]
fn sixteen_connections_of_three_routers_agree_with_the_truth_on_both_sides() {
    check(name!(), CGROUP, 3, 16);
}

#[test]
fn sixty_four_connections_of_three_routers_agree_with_the_truth_on_both_sides() {
    check(name!(), CGROUP, 3, 64);
}

#[test]
fn sixteen_connections_of_three_routers_agree_with_the_truth_at_lo_on_both_sides() {
    check(name!(), "lo", 3, 16);
}

#[test]
fn sixty_four_connections_of_one_router_agree_with_the_truth_at_lo_on_both_sides() {
    check(name!(), "lo", 1, 64);
}

#[test]
fn sixteen_connections_of_one_router_agree_with_the_truth_at_a_cable() {
    check(name!(), DEVICE, 1, 16);
}
