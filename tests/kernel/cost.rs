//! What a request costs in processor time, end to end, with an agent or an edge guard and without: in alternation, the
//! least of each, as others on the machine only ever add.
//!
//! The kernel must account softirqs to the task they interrupt (`CONFIG_IRQ_TIME_ACCOUNTING` off), or the programs'
//! share on the way in is not seen.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use router_common::edge::{EdgeLimits, Verdict};
use router_user::account::local::Local;
use router_user::edge::{Edge, EdgeOptions, Mode, view};

use crate::agent::options;
use crate::hosts::{CLIENTS, DEVICE, ROUTER, connect_hosts, own_network};
use crate::sandbox::{Sandbox, is_long, name, run};

/// Requests of 200 bytes and answers of 1 KiB, on one connection; processor time of both ends, nanoseconds each.
fn ping_pong(mut ours: TcpStream, mut theirs: TcpStream, requests: u32) -> f64 {
    let request = padded("POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\nx: ", "\r\n\r\n{}", 200);
    let answer = padded("HTTP/1.1 200 OK\r\ncontent-length: 984\r\n\r\n", "", 1024);
    for end in [&ours, &theirs] {
        end.set_nodelay(true).unwrap();
        end.set_nonblocking(false).unwrap();
    }
    std::thread::scope(|scope| {
        let engine = scope.spawn(|| {
            let before = cpu_ns();
            let mut buffer = [0; 200];
            for _ in 0..requests {
                theirs.read_exact(&mut buffer).unwrap();
                theirs.write_all(&answer).unwrap();
            }
            cpu_ns() - before
        });
        let before = cpu_ns();
        let mut buffer = [0; 1024];
        for _ in 0..requests {
            ours.write_all(&request).unwrap();
            ours.read_exact(&mut buffer).unwrap();
        }
        let client = cpu_ns() - before;
        (client + engine.join().unwrap()) as f64 / f64::from(requests)
    })
}

/// `start`, as many letters as are needed, `end`.
fn padded(start: &str, end: &str, bytes: usize) -> Vec<u8> {
    [start, &"x".repeat(bytes - start.len() - end.len()), end].concat().into_bytes()
}

/// CPU time of this thread. The scheduler adds up when it runs, so it is made to.
fn cpu_ns() -> u64 {
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Turns with and without what `with` keeps attached. `off` takes it off and says how many requests it saw: a
/// measurement of nothing is none.
fn compare<T>(
    what: &str,
    connect: impl Fn() -> (TcpStream, TcpStream),
    with: impl Fn() -> T,
    off: impl Fn(T) -> u64,
) {
    let (turns, requests) = if is_long() { (25, 4000) } else { (2, 200) };
    let (mut bare, mut attached) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..turns {
        let (ours, theirs) = connect();
        bare = bare.min(ping_pong(ours, theirs, requests));
        let on = with();
        let (ours, theirs) = connect();
        attached = attached.min(ping_pong(ours, theirs, requests));
        let seen = off(on);
        assert!(seen >= requests.into(), "{seen} of {requests} requests seen");
    }
    if is_long() {
        let ratio = attached / bare;
        println!(
            "\nFIGURE ping-pong CPU, {what}: {ratio:.3} x; {bare:.0} and {attached:.0} ns, {turns} turns each"
        );
    }
}

fn local(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

#[test]
fn with_an_agent_over_without() {
    run(name!(), |sandbox| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = options(sandbox, &[listener.local_addr().unwrap().port()]);
        compare(
            "agent attached over not",
            || local(&listener),
            || Local::open(&options).unwrap(),
            |agent| {
                let seen = agent.rows()[0].load.ttfb_count;
                agent.take_off().unwrap();
                seen
            },
        );
    });
}

fn guard(sandbox: &Sandbox, device: &str, port: u16, mode: Mode) -> Edge {
    let options = EdgeOptions {
        pin_dir: sandbox.pin_dir(),
        device: device.to_owned(),
        port,
        deny: vec!["203.0.113.0/24".parse().unwrap()],
        allow: Vec::new(),
        limits: EdgeLimits::default(),
    };
    let edge = Edge::start(&options).unwrap();
    assert_eq!(edge.mode(), mode);
    edge
}

/// Takes it off; returns packets of connections there were, to the guarded port.
fn unguard(sandbox: &Sandbox, edge: Edge) -> u64 {
    let seen = view::state(&sandbox.pin_dir()).unwrap().packets[Verdict::Established as usize].1;
    drop(edge);
    seen
}

#[test]
fn with_a_generic_guard_on_the_loopback_over_without() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let with = || guard(sandbox, "lo", port, Mode::Generic);
        compare(
            "generic edge guard on lo over none",
            || local(&listener),
            with,
            |edge| unguard(sandbox, edge),
        );
    });
}

#[test]
fn with_a_native_guard_on_a_cable_over_without() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let listener = TcpListener::bind((ROUTER[0], 0)).unwrap();
        let to: SocketAddr = listener.local_addr().unwrap();
        let connect = || {
            let ours = clients.connect(CLIENTS[0], to, 1).pop().expect("it connects");
            (ours, listener.accept().unwrap().0)
        };
        let with = || guard(sandbox, DEVICE, to.port(), Mode::Native);
        compare("native edge guard on veth over none", connect, with, |edge| unguard(sandbox, edge));
    });
}
