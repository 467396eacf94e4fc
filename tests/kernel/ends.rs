//! The matrix: each address form, each way in which a connection ends, in each phase of a request, seen from the
//! router's side and from the engine's at once. Afterwards nothing is counted anywhere.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use router_common::{BackendId, BackendLoad};
use router_user::account::Account;
use router_user::account::local::Local;
use rustix::net::sockopt::set_socket_linger;

use crate::agent::{REQUEST, options, pass};
use crate::phase_ends::full_listener;
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::world::{account, register, wait_row, wait_until};

/// Where the engine listens, and how the router reaches it.
const FORMS: [(&str, &str); 4] = [
    ("127.0.0.1:0", "127.0.0.1"),
    ("[::1]:0", "[::1]"),
    ("127.0.0.1:0", "[::ffff:127.0.0.1]"),
    ("[::]:0", "127.0.0.1"),
];

/// A way to end: its name, what both ends do, and whether each side must see that the other broke it.
type End = (&'static str, fn(TcpStream, TcpStream), Broke);

/// Who broke it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broke {
    Nobody,
    Router,
    Engine,
}

const ENDS: [End; 9] = [
    (
        "the router closes first",
        |ours, theirs| {
            drop(ours);
            drop(theirs);
        },
        Broke::Nobody,
    ),
    (
        "the engine closes first",
        |ours, theirs| {
            drop(theirs);
            drop(ours);
        },
        Broke::Nobody,
    ),
    ("the router resets", |ours, theirs| reset(ours, theirs), Broke::Router),
    ("the engine resets", |ours, theirs| reset(theirs, ours), Broke::Engine),
    ("the router closes with unread data", |ours, theirs| close_unread(ours, theirs), Broke::Router),
    ("the engine closes with unread data", |ours, theirs| close_unread(theirs, ours), Broke::Engine),
    ("the router half-closes, the engine closes", |ours, theirs| half_close(ours, theirs), Broke::Nobody),
    ("the engine half-closes, the router closes", |ours, theirs| half_close(theirs, ours), Broke::Nobody),
    (
        "both half-close",
        |ours, theirs| {
            ours.shutdown(Shutdown::Write).unwrap();
            half_close(theirs, ours);
        },
        Broke::Nobody,
    ),
];

fn reset(by: TcpStream, mut other: TcpStream) {
    set_socket_linger(&by, Some(Duration::ZERO)).unwrap();
    drop(by);
    other.read(&mut [0]).unwrap_err();
}

fn close_unread(by: TcpStream, mut other: TcpStream) {
    other.write_all(b"never read").unwrap();
    wait_until(|| by.peek(&mut [0; 16]).map(drop).map_err(|error| error.to_string()));
    drop(by);
    other.read(&mut [0]).unwrap_err();
}

fn half_close(by: TcpStream, mut other: TcpStream) {
    by.shutdown(Shutdown::Write).unwrap();
    other.read_to_end(&mut Vec::new()).unwrap();
    drop(other);
    drop(by);
}

/// Where the request is when the connection ends: awaiting, streaming, both 0 without one.
const PHASES: [(u64, u64); 3] = [(0, 0), (1, 0), (0, 1)];

fn bring((awaiting, streaming): (u64, u64), ours: &mut TcpStream, theirs: &mut TcpStream) {
    if awaiting + streaming > 0 {
        pass(ours, theirs, REQUEST);
    }
    if streaming > 0 {
        pass(theirs, ours, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    }
}

/// Router and agent, and what both see of one engine.
struct Sides {
    account: Account,
    agent: Local,
    id: BackendId,
}

impl Sides {
    fn open(sandbox: &Sandbox, engine: SocketAddr, reached: SocketAddr) -> Self {
        let account = account(sandbox);
        let agent = Local::open(&options(sandbox, &[engine.port()])).unwrap();
        let id = register(&account, reached);
        Self { account, agent, id }
    }

    fn rows(&self) -> [BackendLoad; 2] {
        [self.account.row(self.id), self.agent.rows()[0].load]
    }

    /// Waits until both sides have these connections, and requests in these phases.
    #[track_caller]
    fn see(&self, conns: u64, phase: (u64, u64)) {
        wait_until(|| {
            let found = self.rows().map(|row| (row.conns, (row.awaiting, row.streaming)));
            if found == [(conns, phase); 2] { Ok(()) } else { Err(format!("{found:?}")) }
        });
    }
}

#[test]
fn every_form_end_and_phase_leaves_nothing_on_either_side() {
    run(name!(), |sandbox| {
        for (listen, reach) in FORMS {
            let listener = TcpListener::bind(listen).unwrap();
            let engine = listener.local_addr().unwrap();
            let to: SocketAddr = format!("{reach}:{}", engine.port()).parse().unwrap();
            let sides = Sides::open(sandbox, engine, to);
            let mut broken = [0; 2];
            let mut opened = 0;
            for (how, end, broke) in ENDS {
                for phase in PHASES {
                    println!("{listen} reached as {reach}: {how} at {phase:?}");
                    let mut ours = TcpStream::connect(to).unwrap();
                    let mut theirs = listener.accept().unwrap().0;
                    bring(phase, &mut ours, &mut theirs);
                    sides.see(1, phase);
                    end(ours, theirs);
                    sides.see(0, (0, 0));
                    opened += 1;
                    broken[0] += u64::from(broke == Broke::Engine);
                    broken[1] += u64::from(broke == Broke::Router);
                    let rows = sides.rows();
                    assert_eq!(rows.map(|row| row.resets), broken, "{how}");
                    assert_eq!(rows.map(|row| (row.opened, row.closed)), [(opened, opened); 2], "{how}");
                }
            }
            sides.agent.take_off().unwrap();
        }
    });
}

#[test]
fn refused_and_unanswered_connections_are_counted_on_neither_side() {
    run(name!(), |sandbox| {
        let hole = full_listener();
        let addr = hole.local_addr().unwrap();
        let sides = Sides::open(sandbox, addr, addr);
        let queued = [(); 2].map(|()| TcpStream::connect(addr).unwrap());
        // The queue is visible where the engine is; what did not get into it is not there.
        sides.see(2, (0, 0));
        TcpStream::connect_timeout(&addr, Duration::from_millis(50)).unwrap_err();
        sides.see(2, (0, 0));
        drop((queued, hole));
        sides.see(0, (0, 0));
        TcpStream::connect(addr).unwrap_err();
        assert_eq!(sides.rows().map(|row| (row.opened, row.closed)), [(2, 2); 2]);
    });
}

#[test]
fn a_killed_engine_leaves_nothing_on_either_side() {
    const EACH: u64 = 4;
    run(name!(), |sandbox| {
        if sandbox.step().is_some() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            say(listener.local_addr().unwrap());
            let mut theirs: Vec<_> = (0..3 * EACH).map(|_| listener.accept().unwrap().0).collect();
            // Of three one answers, one is only read, one is deaf.
            for (n, theirs) in theirs.iter_mut().enumerate().filter(|(n, _)| n % 3 < 2) {
                theirs.read_exact(&mut vec![0; REQUEST.len()]).unwrap();
                if n % 3 == 0 {
                    theirs.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
                }
            }
            return wait_until_finished();
        }
        let mut engine = sandbox.helper("engine");
        let addr: SocketAddr = engine.hears().parse().unwrap();
        let sides = Sides::open(sandbox, addr, addr);
        let mut ours: Vec<_> = (0..3 * EACH).map(|_| TcpStream::connect(addr).unwrap()).collect();
        ours.iter_mut().for_each(|ours| ours.write_all(REQUEST).unwrap());
        sides.see(3 * EACH, (2 * EACH, EACH));
        engine.kill();
        // Its host knows at once; the router's connections are there until it closes them.
        wait_row(&sides.account, sides.id, |row| (row.awaiting, row.streaming) == (0, 0));
        drop(ours);
        sides.see(0, (0, 0));
    });
}
