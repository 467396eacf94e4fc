//! The engine-host view: what all clients have at an engine's port, counted where the engine accepts.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use router_common::BackendLoad;
use router_user::account::local::{Local, LocalOptions, pinned as pinned_rows};
use router_user::account::view::pinned;
use router_user::account::{Detach, DetachError, Hook, KernelError, Role, detach};

use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::world::{Backend, account, bpftool, connect_marked, wait_until};

pub(crate) const REQUEST: &[u8] =
    b"POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: 2\r\n\r\n{}";
pub(crate) const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
const PROGRAMS: usize = 4;

pub(crate) fn options(sandbox: &Sandbox, ports: &[u16]) -> LocalOptions {
    let hook = Hook::Cgroup(Some(sandbox.cgroup.clone()));
    LocalOptions { pin_dir: sandbox.pin_dir(), hook, ports: ports.to_vec(), tell: Vec::new() }
}

pub(crate) fn listen(host: &str) -> (TcpListener, u16) {
    let listener = TcpListener::bind((host, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// An agent, an engine, and a connection with both of its ends.
pub(crate) struct Wire {
    pub(crate) agent: Local,
    pub(crate) listener: TcpListener,
    pub(crate) ours: TcpStream,
    pub(crate) theirs: TcpStream,
}

impl Wire {
    fn over(sandbox: &Sandbox, host: &str) -> Self {
        let (listener, port) = listen(host);
        let agent = Local::open(&options(sandbox, &[port])).unwrap();
        let (ours, theirs) = connect(&listener);
        Self { agent, listener, ours, theirs }
    }

    pub(crate) fn ask(&mut self, bytes: &[u8]) -> &mut Self {
        pass(&mut self.ours, &mut self.theirs, bytes);
        self
    }

    pub(crate) fn answer(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        pass(&mut self.theirs, &mut self.ours, bytes.as_ref());
        self
    }

    #[track_caller]
    pub(crate) fn is(&mut self, gauges: [u64; 4]) -> &mut Self {
        wait_gauges(&self.agent, gauges);
        self
    }

    pub(crate) fn row(&self) -> BackendLoad {
        self.agent.rows()[0].load
    }
}

pub(crate) fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let theirs = listener.accept().unwrap().0;
    for end in [&ours, &theirs] {
        end.set_nodelay(true).unwrap();
    }
    (ours, theirs)
}

pub(crate) fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    to.read_exact(&mut vec![0; bytes.len()]).unwrap();
}

/// Connections, awaiting, streaming, unknown.
const fn gauges(row: &BackendLoad) -> [u64; 4] {
    [row.conns, row.awaiting, row.streaming, row.unknown]
}

#[track_caller]
pub(crate) fn wait_gauges(agent: &Local, wanted: [u64; 4]) {
    wait_until(|| match gauges(&agent.rows()[0].load) {
        found if found == wanted => Ok(()),
        found => Err(format!("{found:?}, not {wanted:?}")),
    });
}

#[test]
fn a_request_awaits_and_streams_as_at_the_client() {
    run(name!(), |sandbox| {
        for host in ["127.0.0.1", "::1"] {
            let mut wire = Wire::over(sandbox, host);
            wire.is([1, 0, 0, 0]).ask(REQUEST).is([1, 1, 0, 0]);
            wire.answer(CHUNKED).is([1, 0, 1, 0]).answer("2\r\nhi\r\n").is([1, 0, 1, 0]);
            wire.answer(LAST_CHUNK).is([1, 0, 0, 0]);
            wire.ask(REQUEST).answer("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab").is([1, 0, 1, 0]);
            wire.answer("cd").is([1, 0, 0, 0]);
            let row = wire.row();
            assert_eq!((row.ttfb_count, row.tx_bytes), (2, 2 * REQUEST.len() as u64));
            assert_eq!((row.foreign_conns, row.opened, row.workers), (0, 1, [0; 16]));
            wire.agent.take_off().unwrap();
        }
    });
}

#[test]
fn what_cannot_be_told_is_unknown_and_other_ports_are_not_counted() {
    run(name!(), |sandbox| {
        let mut wire = Wire::over(sandbox, "127.0.0.1");
        wire.ask(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").is([1, 0, 0, 1]);
        let (other, _) = listen("127.0.0.1");
        let (mut ours, mut theirs) = connect(&other);
        pass(&mut ours, &mut theirs, REQUEST);
        wire.ask(b"more").is([1, 0, 0, 1]);
    });
}

#[test]
fn routers_and_direct_clients_are_one_sum() {
    run(name!(), |sandbox| {
        let router = account(sandbox);
        let backend = Backend::new(&router, "127.0.0.1");
        let agent = Local::open(&options(sandbox, &[backend.addr().port()])).unwrap();
        let mut by_router = connect_marked(&router, &backend, Role::Router);
        let mut to_router = backend.listener.accept().unwrap().0;
        let (mut direct, mut to_direct) = connect(&backend.listener);
        pass(&mut by_router, &mut to_router, REQUEST);
        pass(&mut direct, &mut to_direct, REQUEST);
        wait_gauges(&agent, [2, 2, 0, 0]);
        let row = router.row(backend.id);
        assert_eq!(
            (row.awaiting, row.foreign_awaiting, row.conns),
            (2, 1, 2),
            "the router's own view is as ever"
        );
        pass(&mut to_direct, &mut direct, CHUNKED);
        wait_gauges(&agent, [2, 1, 1, 0]);
        drop((direct, to_direct));
        wait_gauges(&agent, [1, 1, 0, 0]);
        agent.take_off().unwrap();
        pass(&mut to_router, &mut by_router, CHUNKED);
        let row = router.row(backend.id);
        assert_eq!((row.awaiting, row.streaming), (0, 1), "the router goes on without the agent");
    });
}

/// A client ends its sending side with its request, and gets its answer.
pub(crate) fn half_closed_still_awaits(mut wire: Wire) {
    wire.ask(REQUEST).is([1, 1, 0, 0]);
    wire.ours.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wire.theirs.read(&mut [0]).unwrap(), 0);
    wire.is([1, 1, 0, 0]).answer(CHUNKED).is([1, 0, 1, 0]).answer(LAST_CHUNK).is([1, 0, 0, 0]);
}

#[test]
fn a_client_that_half_closed_still_awaits_its_answer() {
    run(name!(), |sandbox| {
        half_closed_still_awaits(Wire::over(sandbox, "127.0.0.1"));
    });
}

#[test]
fn a_connection_nobody_accepted_counts_and_goes() {
    run(name!(), |sandbox| {
        let (listener, port) = listen("127.0.0.1");
        let agent = Local::open(&options(sandbox, &[port])).unwrap();
        let mut waits = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        waits.write_all(REQUEST).unwrap();
        wait_gauges(&agent, [1, 1, 0, 0]);
        drop(listener);
        wait_gauges(&agent, [0; 4]);
    });
}

#[test]
fn a_connection_older_than_the_agent_counts_from_its_next_request_to_its_end() {
    run(name!(), |sandbox| {
        let (listener, port) = listen("127.0.0.1");
        let (mut ours, mut theirs) = connect(&listener);
        pass(&mut ours, &mut theirs, REQUEST);
        let agent = Local::open(&options(sandbox, &[port])).unwrap();
        wait_gauges(&agent, [0; 4]);
        pass(&mut theirs, &mut ours, CHUNKED);
        pass(&mut theirs, &mut ours, LAST_CHUNK);
        pass(&mut ours, &mut theirs, REQUEST);
        wait_gauges(&agent, [1, 1, 0, 0]);
        pass(&mut theirs, &mut ours, CHUNKED);
        wait_gauges(&agent, [1, 0, 1, 0]);
        drop(ours);
        drop(theirs);
        wait_gauges(&agent, [0; 4]);
        let row = agent.rows()[0].load;
        assert_eq!((row.opened, row.closed), (1, 1));
    });
}

#[test]
fn a_killed_agent_counts_on_and_the_next_takes_it_up() {
    run(name!(), |sandbox| {
        if let Some(port) = sandbox.step() {
            let _agent = Local::open(&options(sandbox, &[port.parse().unwrap()])).unwrap();
            say("counts");
            return wait_until_finished();
        }
        let (listener, port) = listen("127.0.0.1");
        let mut first = sandbox.helper(&port.to_string());
        first.hears();
        let (mut ours, mut theirs) = connect(&listener);
        pass(&mut ours, &mut theirs, REQUEST);
        let second = Local::open(&options(sandbox, &[port])).unwrap_err();
        assert!(matches!(second, KernelError::AgentRuns), "{second}");
        let refused = detach(&sandbox.pin_dir(), Detach::Careful).unwrap_err();
        assert!(matches!(refused, DetachError::Agent), "{refused}");

        first.kill();
        drop(first);
        pass(&mut theirs, &mut ours, CHUNKED);
        assert_eq!(
            gauges(&pinned_rows(&sandbox.pin_dir()).unwrap()[0].load),
            [1, 0, 1, 0],
            "by nobody's help"
        );
        let (_other, more) = listen("127.0.0.1");
        let agent = Local::open(&options(sandbox, &[more, port])).unwrap();
        assert_eq!(agent.rows().iter().map(|row| row.port).collect::<Vec<_>>(), [more, port]);
        assert_eq!(gauges(&agent.rows()[1].load), [1, 0, 1, 0]);
        assert_eq!(pinned(&sandbox.pin_dir()).unwrap().links.len(), PROGRAMS, "attached once");
        pass(&mut theirs, &mut ours, LAST_CHUNK);
        drop((ours, theirs));
        wait_until(|| match gauges(&agent.rows()[1].load) {
            [0, 0, 0, 0] => Ok(()),
            found => Err(format!("{found:?}")),
        });
    });
}

#[test]
fn detach_takes_off_what_a_killed_agent_left() {
    run(name!(), |sandbox| {
        if let Some(port) = sandbox.step() {
            let _agent = Local::open(&options(sandbox, &[port.parse().unwrap()])).unwrap();
            say("counts");
            return wait_until_finished();
        }
        let (_listener, port) = listen("127.0.0.1");
        let mut agent = sandbox.helper(&port.to_string());
        agent.hears();
        agent.kill();
        drop(agent);
        let was = detach(&sandbox.pin_dir(), Detach::Careful).unwrap();
        assert_eq!((was.links.len(), was.maps.len()), (PROGRAMS, 6));
        is_nothing_left(sandbox);
    });
}

pub(crate) fn is_nothing_left(sandbox: &Sandbox) {
    assert!(!sandbox.pin_dir().exists());
    // The kernel takes a program off a little after its link went.
    wait_until(|| match bpftool(&["cgroup", "show"], &sandbox.cgroup, &[]) {
        shown if shown.contains("local_") => Err(shown),
        _ => Ok(()),
    });
}

#[test]
fn the_row_is_readable_by_its_fields() {
    run(name!(), |sandbox| {
        let mut wire = Wire::over(sandbox, "127.0.0.1");
        wire.ask(REQUEST).is([1, 1, 0, 0]);
        let v1 = sandbox.pin_dir().join("v1");
        let dump = |map: &str| -> serde_json::Value {
            serde_json::from_str(&bpftool(&["map", "dump", "pinned"], &v1.join(map), &[])).unwrap()
        };
        let ports = dump("LOCAL_PORTS");
        let port = wire.listener.local_addr().unwrap().port();
        assert_eq!((&ports[0]["key"], &ports[0]["value"]), (&port.into(), &0.into()), "{ports}");
        assert_eq!(dump("LOCAL_LOAD")[0]["value"]["awaiting"], 1);
    });
}
