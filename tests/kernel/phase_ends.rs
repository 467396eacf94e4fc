//! However a connection ends, and wherever its request is, nothing of it stays counted.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use router_common::BackendLoad;
use router_user::account::view::View;
use router_user::account::{Account, Detach, detach};

use crate::sandbox::{name, run, say, wait_until_finished};
use crate::world::{Backend, account, register, wait_row, wait_until};

const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nhost: engine\r\n\r\n";
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
const TLS: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc";

/// Where a request is when the connection ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    Awaiting,
    Streaming,
    Unknown,
}

pub(crate) const ALL: [At; 3] = [At::Awaiting, At::Streaming, At::Unknown];

/// Brings a connection there.
pub(crate) fn bring(at: At, ours: &mut TcpStream, theirs: &mut TcpStream) {
    let first = if matches!(at, At::Unknown) { TLS } else { REQUEST };
    ours.write_all(first).unwrap();
    theirs.read_exact(&mut vec![0; first.len()]).unwrap();
    if matches!(at, At::Streaming) {
        theirs.write_all(CHUNKED).unwrap();
        ours.read_exact(&mut [0; CHUNKED.len()]).unwrap();
    }
}

pub(crate) fn gauges(row: &BackendLoad) -> [u64; 5] {
    [row.awaiting, row.streaming, row.unknown, row.foreign_awaiting, row.foreign_streaming]
}

pub(crate) const fn counted(at: At) -> [u64; 5] {
    match at {
        At::Awaiting => [1, 0, 0, 1, 0],
        At::Streaming => [0, 1, 0, 0, 1],
        At::Unknown => [0, 0, 1, 0, 0],
    }
}

pub(crate) fn is_nothing_left(account: &Account, backend: &Backend) {
    wait_row(account, backend.id, |row| gauges(row) == [0; 5] && (row.conns, row.foreign_conns) == (0, 0));
}

/// Brings a connection to each phase, lets it end, and finds nothing left of it.
pub(crate) fn each_phase_ends(account: &Account, backend: &Backend, end: fn(TcpStream, TcpStream)) {
    for at in ALL {
        let (mut ours, mut theirs) = backend.connect();
        bring(at, &mut ours, &mut theirs);
        wait_row(account, backend.id, |row| gauges(row) == counted(at));
        end(ours, theirs);
        is_nothing_left(account, backend);
    }
}

pub(crate) fn this_side_closes(ours: TcpStream, theirs: TcpStream) {
    drop(ours);
    drop(theirs);
}

pub(crate) fn the_backend_closes(mut ours: TcpStream, theirs: TcpStream) {
    drop(theirs);
    assert_eq!(ours.read(&mut [0]).unwrap(), 0);
}

/// It has unread data.
pub(crate) fn this_side_resets(ours: TcpStream, mut theirs: TcpStream) {
    theirs.write_all(b"never read").unwrap();
    wait_until(|| ours.peek(&mut [0; 16]).map(drop).map_err(|error| error.to_string()));
    drop(ours);
}

/// [`each_phase_ends`], over both families.
fn check(name: &'static str, end: fn(TcpStream, TcpStream)) {
    run(name, |sandbox| {
        let account = account(sandbox);
        for host in ["127.0.0.1", "::1"] {
            let backend = Backend::new(&account, host);
            each_phase_ends(&account, &backend, end);
        }
    });
}

#[test]
fn closed_by_this_side() {
    check(name!(), this_side_closes);
}

#[test]
fn closed_by_the_backend() {
    check(name!(), the_backend_closes);
}

#[test]
fn reset_by_the_backend_as_it_has_unread_data() {
    check(name!(), |mut ours, theirs| {
        ours.write_all(b"never read").unwrap();
        wait_until(|| theirs.peek(&mut [0; 16]).map(drop).map_err(|error| error.to_string()));
        drop(theirs);
    });
}

#[test]
fn reset_by_this_side_as_it_has_unread_data() {
    check(name!(), this_side_resets);
}

#[test]
fn let_go_by_this_side_while_the_backend_is_deaf() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        for at in ALL {
            let (mut ours, mut theirs) = backend.connect();
            bring(at, &mut ours, &mut theirs);
            wait_row(&account, backend.id, |row| gauges(row) == counted(at));
            drop(ours);
            assert_eq!(gauges(&account.row(backend.id)), [0; 5], "at once: nobody waits for the peer's FIN");
            // What it still says moves nothing.
            let _refused = theirs.write_all(b"0\r\n\r\n");
            drop(theirs);
            is_nothing_left(&account, &backend);
        }
    });
}

#[test]
fn half_closed_by_this_side_the_answer_goes_on_to_its_end() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, mut theirs) = backend.connect();
        bring(At::Awaiting, &mut ours, &mut theirs);
        ours.shutdown(Shutdown::Write).unwrap();
        wait_row(&account, backend.id, |row| gauges(row) == counted(At::Awaiting));
        theirs.write_all(CHUNKED).unwrap();
        wait_row(&account, backend.id, |row| gauges(row) == counted(At::Streaming));
        theirs.write_all(b"0\r\n\r\n").unwrap();
        wait_row(&account, backend.id, |row| gauges(row) == [0; 5] && row.conns == 1);
        drop((ours, theirs));
        is_nothing_left(&account, &backend);
    });
}

#[test]
fn the_kernel_gives_up_resending() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, mut theirs) = backend.connect();
        rustix::net::sockopt::set_tcp_user_timeout(&ours, 100).unwrap();
        bring(At::Streaming, &mut ours, &mut theirs);
        // More than both buffers hold: the peer's window closes, and probes of it go on past the time limit.
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[b'x'; 65_536]).is_ok() {}
        wait_row(&account, backend.id, |row| gauges(row) == [0; 5] && row.conns == 0);
        assert_eq!(account.row(backend.id).resets, 1, "it broke while in use");
    });
}

#[test]
fn refused_and_timed_out_connections_never_count() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = register(&account, closed);
        TcpStream::connect(closed).unwrap_err();

        let full = Backend { id: refused, listener: full_listener() };
        let id = register(&account, full.addr());
        // One in the queue of accepted ones, one more than its length of 0.
        let _queued = [TcpStream::connect(full.addr()).unwrap(), TcpStream::connect(full.addr()).unwrap()];
        let timeout = std::time::Duration::from_millis(50);
        TcpStream::connect_timeout(&full.addr(), timeout).unwrap_err();
        assert_eq!((account.row(id).conns, account.row(id).opened), (2, 2));
        assert_eq!((account.row(refused).conns, gauges(&account.row(refused))), (0, [0; 5]));
    });
}

/// A listener that queues as little as can be.
pub(crate) fn full_listener() -> TcpListener {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    listen(&socket, 1).unwrap();
    socket.into()
}

#[test]
fn killed_processes_leave_nothing() {
    const EACH: usize = 4;
    run(name!(), |sandbox| {
        if let Some(addr) = sandbox.step() {
            let addr: SocketAddr = addr.parse().unwrap();
            let mut open: Vec<_> = (0..EACH * ALL.len()).map(|_| TcpStream::connect(addr).unwrap()).collect();
            for (n, stream) in open.iter_mut().enumerate() {
                stream.write_all(if n % ALL.len() == 2 { TLS } else { REQUEST }).unwrap();
            }
            say("sent");
            return wait_until_finished();
        }
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let mut client = sandbox.helper(&backend.addr().to_string());
        let mut theirs: Vec<_> =
            (0..EACH * ALL.len()).map(|_| backend.listener.accept().unwrap().0).collect();
        client.hears();
        for theirs in theirs.iter_mut().skip(1).step_by(ALL.len()) {
            theirs.write_all(CHUNKED).unwrap();
        }
        let each = EACH as u64;
        wait_row(&account, backend.id, |row| {
            [row.awaiting, row.streaming, row.unknown] == [each; 3] && row.conns == 3 * each
        });
        client.kill();
        wait_row(&account, backend.id, |row| gauges(row) == [0; 5]);
        drop(theirs);
        is_nothing_left(&account, &backend);
    });
}

#[test]
fn a_request_over_a_v4_mapped_address_is_the_same_row() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{}", backend.addr().port()).parse().unwrap();
        for at in ALL {
            let mut ours = TcpStream::connect(mapped).unwrap();
            let mut theirs = backend.listener.accept().unwrap().0;
            bring(at, &mut ours, &mut theirs);
            wait_row(&account, backend.id, |row| gauges(row) == counted(at));
            drop((ours, theirs));
            is_nothing_left(&account, &backend);
        }
    });
}

#[test]
fn taking_the_programs_off_under_a_request_does_not_touch_it() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, mut theirs) = backend.connect();
        bring(At::Streaming, &mut ours, &mut theirs);
        assert_eq!(View::open(&sandbox.pin_dir()).unwrap().rows().unwrap()[0].load.streaming, 1);
        detach(&sandbox.pin_dir(), Detach::Forced).unwrap();
        theirs.write_all(b"0\r\n\r\n").unwrap();
        ours.read_exact(&mut [0; 5]).unwrap();
        bring(At::Streaming, &mut ours, &mut theirs);
    });
}
