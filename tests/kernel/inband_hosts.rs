//! Load in band between hosts: an engine's, and two routers', each with a network, a cgroup and pins of its own.
//!
//! The engine and its agent are here; a router is a helper that does as it is told, and says what it knows then.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use router_common::BackendLoad;
use router_policy::{
    BackendId, BackendSpec, LoadTable, Outcome, Placement, PolicyConfig, Report, RequestShape, Signal, Usage,
};
use router_user::account::local::Local;
use router_user::account::{Account, Hook, KernelMode, KernelOptions, Role, open};
use router_user::clock::now;

use crate::agent::REQUEST;
use crate::hosts::{ip, own_network};
use crate::inband::telling;
use crate::sandbox::{Helper, Sandbox, name, run, say};
use crate::world::{bpftool, connect_marked_to, register, wait_row, wait_until};

const CHUNK: &[u8] = b"2\r\nhi\r\n";
const PORT: u16 = 8000;
/// Where the path to the engine strips options.
const RELAY_PORT: u16 = 8001;

/// What a router knows of its backend.
#[derive(Clone, Debug, PartialEq)]
struct Knows {
    own: u32,
    /// All, as it was told in band, and its own at that time.
    told: Option<(u32, u32)>,
    /// Of others, as its policy takes it.
    foreign: Option<f64>,
}

impl fmt::Display for Knows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", serde_json::json!([self.own, self.told, self.foreign]))
    }
}

/// A router's host.
struct Router(Helper);

impl Router {
    /// Makes the host, and lays a cable to it: `10.9.<number>.0/24`, with the engine at `.1`.
    fn start(sandbox: &Sandbox, number: u8, port: u16) -> Self {
        let mut router = Self(sandbox.helper(&format!("{number} {port}")));
        let (device, thread) = (format!("cable{number}"), router.0.hears());
        ip(&["link", "add", &device, "type", "veth", "peer", "name", "cable", "netns", &thread]);
        ip(&["addr", "add", &format!("10.9.{number}.1/24"), "dev", &device]);
        ip(&["link", "set", &device, "up"]);
        router.does("go");
        router
    }

    fn does(&mut self, word: &str) -> Knows {
        self.0.tell(word);
        let (own, told, foreign) = serde_json::from_str(&self.0.hears()).unwrap();
        Knows { own, told, foreign }
    }

    /// Waits until it was told this.
    fn is_told(&mut self, told: (u32, u32)) -> Knows {
        wait_until(|| match self.does("look") {
            knows if knows.told == Some(told) => Ok(()),
            knows => Err(format!("{knows:?}, not {told:?}")),
        });
        self.does("look")
    }
}

/// The life of a router's host.
fn router(sandbox: &Sandbox, step: &str) {
    let (number, port) = step.split_once(' ').unwrap();
    let cgroup = sandbox.cgroup.join(format!("router{number}"));
    std::fs::create_dir(&cgroup).unwrap();
    std::fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
    own_network().unwrap();
    // A network is a thread's.
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    say(thread.file_name().unwrap().display());
    let mut words = io::stdin().lock().lines().map(Result::unwrap);
    assert_eq!(words.next().unwrap(), "go");
    ip(&["addr", "add", &format!("10.9.{number}.2/24"), "dev", "cable"]);
    ip(&["link", "set", "cable", "up"]);
    let pin_dir = sandbox.bpffs.join(format!("router{number}"));
    let account = open(&KernelOptions { mode: KernelMode::On, pin_dir, hook: Hook::Cgroup(None) }).unwrap();
    let addr: SocketAddr = format!("10.9.{number}.1:{port}").parse().unwrap();
    let id = register(&account, addr);
    let mut policy = Placement::new(PolicyConfig::default(), Box::new(account.clone()), 1);
    policy.set_backend(id, BackendSpec::default());
    policy.set_ready(id, true);
    say(knows(&account, &policy, id));
    let mut held = Vec::new();
    for word in words {
        match word.split_once(' ') {
            None if word == "ask" => {
                let decision = policy.pick_forced(now(), &RequestShape::unshaped(), id).unwrap();
                let mut stream = connect_marked_to(&account, id, addr, Role::Router);
                stream.write_all(REQUEST).unwrap();
                held.push((stream, decision.ticket));
            }
            None if word == "end" => {
                let (stream, ticket) = held.pop().unwrap();
                drop(stream);
                policy.on_finished(now(), ticket, Outcome::ClientGone, &Usage::default());
            }
            None if word == "heard" => wait_row(&account, id, |row| row.streaming == 1),
            Some(("reported", running)) => {
                let running = Signal::known(running.parse().unwrap(), now());
                policy.report_begins(now(), id);
                let report = Report { running, waiting: Signal::known(0, now()), ..Report::default() };
                policy.report(now(), id, report);
            }
            _ => assert_eq!(word, "look"),
        }
        say(knows(&account, &policy, id));
    }
}

fn knows(account: &Account, policy: &Placement, id: BackendId) -> Knows {
    let held = policy.snapshot(now(), id).unwrap();
    let told = account.told(id).map(|told| (told.in_flight, told.ours));
    Knows { own: held.own.requests, told, foreign: held.foreign.value() }
}

/// The engine, its agent that tells both routers, and the engine's ends of connections.
struct Engine {
    listener: TcpListener,
    agent: Local,
    open: Vec<TcpStream>,
}

impl Engine {
    fn start(sandbox: &Sandbox) -> Self {
        own_network().unwrap();
        let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
        let agent = Local::open(&telling(sandbox, &[PORT], &["10.9.0.0/16", "127.0.0.0/8"])).unwrap();
        assert_eq!(agent.not_telling(), None);
        Self { listener, agent, open: Vec::new() }
    }

    fn has(&self, in_flight: u64) {
        wait_until(|| match self.agent.rows()[0].in_flight() {
            found if found == in_flight => Ok(()),
            found => Err(format!("{found} in flight, not {in_flight}")),
        });
    }

    /// Accepts so many connections.
    fn accept(&mut self, count: usize) {
        self.open.extend((0..count).map(|_| self.listener.accept().unwrap().0));
    }

    /// Sends a bit of an answer on a connection, which carries the count.
    fn answer(&mut self, connection: usize, text: &[u8]) {
        self.open[connection].write_all(text).unwrap();
    }
}

const BEGIN: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

#[test]
fn a_router_learns_of_the_requests_of_another_hosts_router() {
    run(name!(), |sandbox| {
        if let Some(step) = sandbox.step() {
            return router(sandbox, step);
        }
        let mut engine = Engine::start(sandbox);
        let [mut a, mut b] = [1, 2].map(|number| Router::start(sandbox, number, PORT));
        assert_eq!(b.does("look"), Knows { own: 0, told: None, foreign: None }, "unknown, not 0");
        b.does("ask");
        engine.accept(1);
        for _ in 0..3 {
            a.does("ask");
        }
        engine.accept(3);
        engine.has(4);
        engine.answer(0, BEGIN);
        let knows = b.is_told((4, 1));
        assert!(knows.own == 1 && knows.foreign.is_some_and(|f| f > 0.0 && f <= 3.0), "{knows:?}");
        engine.answer(1, BEGIN);
        let knows = a.is_told((4, 3));
        assert!(knows.foreign.is_some_and(|f| f > 0.0 && f <= 1.0), "{knows:?}");

        for _ in 0..3 {
            a.does("end");
        }
        // The engine gives up those whose client is gone.
        engine.open.truncate(1);
        engine.has(1);
        engine.answer(0, CHUNK);
        assert_eq!(b.is_told((1, 1)).foreign, Some(0.0));
    });
}

#[test]
fn behind_a_path_that_strips_options_the_report_counts() {
    run(name!(), |sandbox| {
        if let Some(step) = sandbox.step() {
            return router(sandbox, step);
        }
        let mut engine = Engine::start(sandbox);
        let relay = TcpListener::bind(("0.0.0.0", RELAY_PORT)).unwrap();
        std::thread::spawn(move || relay_all(&relay));
        let mut plain = Router::start(sandbox, 1, PORT);
        let mut stripped = Router::start(sandbox, 2, RELAY_PORT);
        plain.does("ask");
        stripped.does("ask");
        engine.accept(2);
        engine.has(2);
        for connection in [0, 1] {
            engine.answer(connection, BEGIN);
            engine.answer(connection, CHUNK);
        }
        plain.is_told((2, 1));
        stripped.does("heard");
        assert_eq!(stripped.does("look"), Knows { own: 1, told: None, foreign: None });
        let knows = stripped.does("reported 5");
        assert!(knows.foreign.is_some_and(|f| f > 0.0 && f <= 4.0), "{knows:?}");
    });
}

/// Passes on what comes, by connections of its own: what the engine's host adds to a packet ends here.
fn relay_all(listener: &TcpListener) {
    for ours in listener.incoming().map(Result::unwrap) {
        let theirs = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
        for (mut from, mut to) in [(ours.try_clone().unwrap(), theirs.try_clone().unwrap()), (theirs, ours)] {
            // It ends with either end.
            std::thread::spawn(move || drop(io::copy(&mut from, &mut to)));
        }
    }
}

#[test]
fn a_lie_is_bounded_and_never_lowers_a_routers_own_count() {
    run(name!(), |sandbox| {
        if let Some(step) = sandbox.step() {
            return router(sandbox, step);
        }
        let mut engine = Engine::start(sandbox);
        let mut router = Router::start(sandbox, 1, PORT);
        for _ in 0..2 {
            router.does("ask");
        }
        engine.accept(2);
        engine.has(2);
        let map = sandbox.pin_dir().join("v1/LOCAL_LOAD");
        let lie = |awaiting: u64| {
            let mut row = [0; size_of::<BackendLoad>()];
            row[8..16].copy_from_slice(&awaiting.to_ne_bytes());
            let bytes: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            let words = ["key", "0", "0", "0", "0", "value", "hex"].map(str::to_owned);
            let words: Vec<String> = words.into_iter().chain(bytes).collect();
            bpftool(
                &["map", "update", "pinned"],
                &map,
                &words.iter().map(String::as_str).collect::<Vec<_>>(),
            );
        };
        lie(1 << 40);
        engine.answer(0, BEGIN);
        let knows = router.is_told((u32::MAX, 2));
        assert!(knows.own == 2 && knows.foreign.is_some_and(|f| f > 0.0 && f <= 65_533.0), "{knows:?}");
        // The answer that began took one of those that awaited it.
        lie(0);
        engine.answer(0, CHUNK);
        let knows = router.is_told((0, 2));
        assert_eq!((knows.own, knows.foreign), (2, Some(0.0)));
    });
}
