//! However a connection ends that is seen at a device, nothing of it stays counted: at once where a packet tells of
//! it, else with the next sweep.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::hosts::own_network;
use crate::phase_ends::{
    ALL, At, bring, counted, each_phase_ends, gauges, is_nothing_left, the_backend_closes, this_side_closes,
    this_side_resets,
};
use crate::sandbox::{name, run, say, wait_until_finished};
use crate::tcx::at_devices;
use crate::world::{Backend, wait_row, wait_until};

/// [`each_phase_ends`], over both families, leaving so many resets each.
fn check(name: &'static str, resets: u64, end: fn(TcpStream, TcpStream)) {
    run(name, |sandbox| {
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        for host in ["127.0.0.1", "::1"] {
            let backend = Backend::new(&account, host);
            each_phase_ends(&account, &backend, end);
            let row = account.row(backend.id);
            let each = ALL.len() as u64;
            assert_eq!((row.opened, row.closed, row.resets), (each, each, each * resets));
        }
        assert_eq!(account.sweep().unwrap().rows, 0, "there was nothing to put right");
    });
}

#[test]
fn closed_by_this_side() {
    check(name!(), 0, this_side_closes);
}

#[test]
fn closed_by_this_side_while_the_backend_is_deaf() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        let backend = Backend::new(&account, "127.0.0.1");
        for at in ALL {
            let (mut ours, mut theirs) = backend.connect();
            bring(at, &mut ours, &mut theirs);
            wait_row(&account, backend.id, |row| gauges(row) == counted(at));
            drop(ours);
            assert_eq!(
                (gauges(&account.row(backend.id)), account.row(backend.id).conns),
                ([0; 5], 0),
                "at once"
            );
            let _refused = theirs.write_all(b"0\r\n\r\n");
            drop(theirs);
            is_nothing_left(&account, &backend);
        }
    });
}

#[test]
fn closed_by_the_backend() {
    check(name!(), 0, the_backend_closes);
}

#[test]
fn the_backends_last_word_ends_the_request_and_not_the_connection() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, mut theirs) = backend.connect();
        bring(At::Streaming, &mut ours, &mut theirs);
        theirs.shutdown(Shutdown::Write).unwrap();
        wait_row(&account, backend.id, |row| gauges(row) == [0; 5]);
        assert_eq!(account.row(backend.id).conns, 1);
        drop(ours);
        is_nothing_left(&account, &backend);
    });
}

#[test]
fn reset_by_the_backend_as_it_has_unread_data() {
    check(name!(), 1, |mut ours, theirs| {
        ours.write_all(b"never read").unwrap();
        wait_until(|| theirs.peek(&mut [0; 16]).map(drop).map_err(|error| error.to_string()));
        drop(theirs);
        wait_until(|| match ours.take_error() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    });
}

#[test]
fn reset_by_this_side_as_it_has_unread_data() {
    check(name!(), 0, this_side_resets);
}

#[test]
fn limit_half_closed_by_this_side_the_rest_of_the_answer_is_not_followed() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, mut theirs) = backend.connect();
        bring(At::Awaiting, &mut ours, &mut theirs);
        ours.shutdown(Shutdown::Write).unwrap();
        is_nothing_left(&account, &backend);
        theirs.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        ours.read_exact(&mut [0; 19]).unwrap();
        is_nothing_left(&account, &backend);
        assert_eq!(account.row(backend.id).opened, 1, "it is not taken up again");
    });
}

#[test]
fn what_ends_without_a_packet_goes_with_the_next_sweep() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, mut theirs) = backend.connect();
        let (_other, _others) = backend.connect();
        rustix::net::sockopt::set_tcp_user_timeout(&ours, 100).unwrap();
        bring(At::Streaming, &mut ours, &mut theirs);
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[b'x'; 65_536]).is_ok() {}
        wait_until(|| match ours.take_error() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        drop(ours);
        let is_left = |row: &router_common::BackendLoad| (row.conns, row.streaming) == (2, 1);
        assert!(is_left(&account.row(backend.id)), "{:?}", account.row(backend.id));
        // The kernel frees a socket's state a moment after the socket.
        wait_until(|| match account.sweep().unwrap().rows {
            1 => Ok(()),
            rows => Err(format!("{rows} rows corrected")),
        });
        let row = account.row(backend.id);
        assert_eq!((row.conns, row.foreign_conns, row.closed), (1, 1, 1), "the living stay");
        assert_eq!(gauges(&row), [0; 5]);
        drop(theirs);
    });
}

#[test]
fn killed_processes_leave_nothing() {
    const EACH: usize = 4;
    run(name!(), |sandbox| {
        if let Some(addr) = sandbox.step() {
            let addr: SocketAddr = addr.parse().unwrap();
            let mut open: Vec<_> = (0..EACH).map(|_| TcpStream::connect(addr).unwrap()).collect();
            for stream in &mut open {
                stream.write_all(b"POST / HTTP/1.1\r\n\r\n").unwrap();
            }
            say("sent");
            return wait_until_finished();
        }
        own_network().unwrap();
        let account = at_devices(sandbox, &["lo"]);
        let backend = Backend::new(&account, "127.0.0.1");
        // It starts in the network of this thread.
        let mut client = sandbox.helper(&backend.addr().to_string());
        let theirs: Vec<_> = (0..EACH).map(|_| backend.listener.accept().unwrap()).collect();
        client.hears();
        wait_row(&account, backend.id, |row| (row.conns, row.awaiting) == (EACH as u64, EACH as u64));
        client.kill();
        is_nothing_left(&account, &backend);
        drop(theirs);
    });
}
