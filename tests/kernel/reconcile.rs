//! A start after a time in which no program was attached: what nobody saw end is not counted for ever, whether the
//! kernel tells which sockets there are or not.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use router_user::account::Role;
use router_user::account::local::Local;
use router_user::account::view::{View, pinned};

use crate::agent::{REQUEST, connect, listen, options, pass};
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::world::{
    Backend, PROGRAMS, account, bpftool, connect_marked_to, register, requests, wait_row, wait_until,
};

/// Removes the pins of all links by hand, as no command does, and waits until nothing is attached.
pub(crate) fn take_links_away(sandbox: &Sandbox) {
    for link in pinned(&sandbox.pin_dir()).unwrap().links {
        fs::remove_file(link.path).unwrap();
    }
    wait_until(|| match bpftool(&["cgroup", "show"], &sandbox.cgroup, &[]) {
        shown if PROGRAMS.iter().chain(&["local_sockops"]).any(|program| shown.contains(program)) => {
            Err(shown)
        }
        _ => Ok(()),
    });
}

#[test]
fn the_slot_of_a_router_that_died_unseen_is_freed_and_a_living_ones_is_kept() {
    const ADDR: &str = "127.0.0.1:1";
    run(name!(), |sandbox| {
        if sandbox.step().is_some() {
            let account = account(sandbox);
            requests(&account, register(&account, ADDR.parse().unwrap()), 3);
            say(account.slot());
            return wait_until_finished();
        }
        let living = account(sandbox);
        let id = register(&living, ADDR.parse().unwrap());
        requests(&living, id, 2);
        let mut dying = sandbox.helper("dying");
        let slot: usize = dying.hears().parse().unwrap();
        take_links_away(sandbox);
        dying.kill();
        drop(dying);
        let taken = || View::open(&sandbox.pin_dir()).unwrap().workers().len();
        assert_eq!((taken(), living.row(id).workers[slot]), (2, 3), "nobody was there to see it");

        let third = account(sandbox);
        assert_eq!(third.slot(), slot, "its slot is free");
        assert_eq!((taken(), living.in_flight(id)), (2, 2), "its requests are gone, and only its");
    });
}

/// From now on no iterator can be loaded.
fn hide_the_types() {
    let mut mount = Command::new("mount");
    assert!(mount.args(["-t", "tmpfs", "none", "/sys/kernel/btf"]).status().unwrap().success());
}

#[test]
fn gauges_that_nobody_saw_fall_agree_with_the_sockets_there_are() {
    gauges_are_put_right(name!(), true);
}

#[test]
fn without_an_iterator_gauges_that_nobody_saw_fall_start_from_zero_and_never_wrap() {
    gauges_are_put_right(name!(), false);
}

fn gauges_are_put_right(name: &'static str, has_iterator: bool) {
    run(name, |sandbox| {
        if let Some(engine) = sandbox.step() {
            let account = account(sandbox);
            let engine: SocketAddr = engine.parse().unwrap();
            let id = register(&account, engine);
            let mut stream = connect_marked_to(&account, id, engine, Role::Router);
            stream.write_all(REQUEST).unwrap();
            say("asked");
            return wait_until_finished();
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut router = sandbox.helper(&listener.local_addr().unwrap().to_string());
        router.hears();
        let mut foreign = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        foreign.write_all(REQUEST).unwrap();
        let load = || View::open(&sandbox.pin_dir()).unwrap().rows().unwrap()[0].load;
        wait_until(|| match load() {
            row if (row.conns, row.awaiting, row.foreign_awaiting) == (2, 2, 1) => Ok(()),
            row => Err(format!("{row:?}")),
        });
        take_links_away(sandbox);
        router.kill();
        drop(router);
        assert_eq!((load().conns, load().awaiting), (2, 2), "nobody was there to see it");

        if !has_iterator {
            hide_the_types();
        }
        // One survived, and is counted on where that can be told. Else its end must not be taken from a gauge that it
        // is no part of.
        let kept = u64::from(has_iterator);
        let after = account(sandbox);
        let backend = Backend { id: register(&after, listener.local_addr().unwrap()), listener };
        let row = after.row(backend.id);
        assert_eq!(
            (row.conns, row.awaiting, row.foreign_conns, row.foreign_awaiting),
            (kept, kept, kept, kept),
            "{row:?}"
        );
        assert_eq!((row.opened, row.closed), (2, 2 - kept), "totals agree with the gauge");
        drop(foreign);
        wait_row(&after, backend.id, |row| (row.conns, row.awaiting, row.foreign_awaiting) == (0, 0, 0));
        let again = TcpStream::connect(backend.addr()).unwrap();
        wait_row(&after, backend.id, |row| (row.conns, row.opened, row.closed) == (1, 3, 2));
        drop((again, backend.listener));
        wait_row(&after, backend.id, |row| (row.conns, row.opened, row.closed) == (0, 3, 3));
    });
}

#[test]
fn what_a_living_router_has_open_stays_counted() {
    living_is_left_alone(name!(), true);
}

#[test]
fn without_an_iterator_gauges_are_left_alone_while_a_router_lives() {
    living_is_left_alone(name!(), false);
}

fn living_is_left_alone(name: &'static str, has_iterator: bool) {
    run(name, |sandbox| {
        if !has_iterator {
            hide_the_types();
        }
        let living = account(sandbox);
        let backend = Backend::new(&living, "127.0.0.1");
        let open = backend.connect();
        assert_eq!(account(sandbox).row(backend.id).conns, 1, "all programs work");
        take_links_away(sandbox);
        let second = account(sandbox);
        assert_eq!(second.row(backend.id).conns, 1, "it may be the living router's");
        drop(open);
        wait_row(&second, backend.id, |row| row.conns == 0);
    });
}

#[test]
fn an_agents_gauges_agree_with_the_sockets_too() {
    agents_are_put_right(name!(), true);
}

#[test]
fn without_an_iterator_an_agents_gauges_start_from_zero_too() {
    agents_are_put_right(name!(), false);
}

fn agents_are_put_right(name: &'static str, has_iterator: bool) {
    run(name, |sandbox| {
        let (listener, port) = listen("127.0.0.1");
        let agent = Local::open(&options(sandbox, &[port])).unwrap();
        let (mut ours, mut theirs) = connect(&listener);
        pass(&mut ours, &mut theirs, REQUEST);
        let gauges = |agent: &Local| {
            let load = agent.rows()[0].load;
            (load.conns, load.awaiting)
        };
        wait_until(|| if gauges(&agent) == (1, 1) { Ok(()) } else { Err(format!("{:?}", gauges(&agent))) });
        take_links_away(sandbox);
        drop((agent, ours, theirs));
        if !has_iterator {
            hide_the_types();
        }
        let again = Local::open(&options(sandbox, &[port])).unwrap();
        assert_eq!(gauges(&again), (0, 0));
        again.take_off().unwrap();
    });
}
