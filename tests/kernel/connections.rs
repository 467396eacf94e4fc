//! When a connection is counted, and when no more.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use router_user::account::Role;
use router_user::account::view::pinned;

use crate::sandbox::{name, run};
use crate::world::{Backend, account, bpftool, connect_marked, register, wait_row, wait_until};

#[test]
fn ipv4_is_counted_while_open() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let open = backend.connect();
        let row = account.row(backend.id);
        assert_eq!((row.conns, row.opened, row.closed), (1, 1, 0));
        drop(open);
        wait_row(&account, backend.id, |row| (row.conns, row.closed, row.resets) == (0, 1, 0));
    });
}

#[test]
fn ipv6_is_counted_while_open() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "::1");
        let open = backend.connect();
        assert_eq!(account.row(backend.id).conns, 1);
        drop(open);
        wait_row(&account, backend.id, |row| (row.conns, row.closed) == (0, 1));
    });
}

#[test]
fn an_ipv4_address_reached_over_ipv6_is_the_same_row() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{}", backend.addr().port()).parse().unwrap();
        let ours = TcpStream::connect(mapped).unwrap();
        assert_eq!(account.row(backend.id).conns, 1);
        drop((ours, backend.listener.accept().unwrap()));
        wait_row(&account, backend.id, |row| row.conns == 0);
    });
}

#[test]
fn a_refused_connection_is_never_counted() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let id = register(&account, addr);
        assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let row = account.row(id);
        assert_eq!((row.conns, row.opened, row.closed, row.resets), (0, 0, 0, 0));
    });
}

#[test]
fn connections_to_other_addresses_are_not_counted() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let _ours = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        assert_eq!(account.row(backend.id).opened, 0);
    });
}

#[test]
fn a_reset_by_the_backend_ends_and_is_counted_as_one() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, theirs) = backend.connect();
        ours.write_all(b"never read").unwrap();
        wait_until(|| match theirs.peek(&mut [0; 16]) {
            Ok(10) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        // Closing with unread data is a reset.
        drop(theirs);
        wait_row(&account, backend.id, |row| (row.conns, row.closed, row.resets) == (0, 1, 1));
        assert_ne!(account.row(backend.id).last_reset_ns, 0);
        drop(ours);
        assert_eq!(account.row(backend.id).closed, 1, "counted once");
    });
}

#[test]
fn a_reset_by_this_side_is_not_the_backends() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let (ours, mut theirs) = backend.connect();
        theirs.write_all(b"never read").unwrap();
        wait_until(|| match ours.peek(&mut [0; 16]) {
            Ok(10) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        drop(ours);
        wait_row(&account, backend.id, |row| (row.conns, row.closed) == (0, 1));
        assert_eq!(account.row(backend.id).resets, 0);
    });
}

#[test]
fn a_connection_the_backend_closed_first_counts_until_this_side_closes() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, theirs) = backend.connect();
        drop(theirs);
        assert_eq!(ours.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(account.row(backend.id).conns, 1);
        drop(ours);
        wait_row(&account, backend.id, |row| (row.conns, row.closed, row.resets) == (0, 1, 0));
    });
}

#[test]
fn a_probes_connection_is_not_counted_and_a_routers_is() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let probe = connect_marked(&account, &backend, Role::Probe);
        assert_eq!(account.row(backend.id).opened, 0);
        let request = connect_marked(&account, &backend, Role::Router);
        assert_eq!(account.row(backend.id).conns, 1);
        drop(probe);
        drop(request);
        wait_row(&account, backend.id, |row| (row.conns, row.opened, row.closed) == (0, 1, 1));
    });
}

#[test]
fn counters_are_added_to_by_atomic_instructions() {
    run(name!(), |sandbox| {
        let _account = account(sandbox);
        // Lost additions are too rare to wait for one. For each program, the places that add, of which the compiler
        // has joined some: gauges up and down, those of others besides, bytes, totals, resets, retransmits, zero windows.
        let places = [("inflight_sockops", 11), ("phase_egress", 5), ("phase_ingress", 11), ("release", 5)];
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        let found = places.map(|(name, _)| {
            let link = links.iter().find(|link| link.program == name).unwrap();
            let id = link.program_id.to_string();
            let code = bpftool(&["prog", "dump", "xlated", "id", &id], "opcodes".as_ref(), &[]);
            (name, code.matches("lock *(u64 *)").count())
        });
        assert_eq!(found, places);
    });
}

#[test]
fn many_threads_at_once_lose_no_count() {
    const THREADS: u64 = 8;
    const EACH: u64 = 100;
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..EACH).for_each(|_| drop(backend.connect())));
            }
        });
        wait_row(&account, backend.id, |row| row.conns == 0 && row.closed == THREADS * EACH);
        assert_eq!(account.row(backend.id).opened, THREADS * EACH);
    });
}
