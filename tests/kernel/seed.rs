//! What happened while no program was attached: connections that are older are counted, and what closed connections
//! left behind is taken away.

use std::fs;
use std::net::{TcpListener, TcpStream};

use router_user::account::view::pinned;
use router_user::account::{Account, Adopted, Hook, KernelMode, KernelOptions, Role, Swept, open};

use crate::phases::{AWAITING, CHUNKED, IDLE, LAST_CHUNK, REQUEST, STREAMING, Wire, pass};
use crate::reconcile::take_links_away;
use crate::sandbox::{name, run, say, wait_until_finished};
use crate::world::{Backend, account, connect_marked, register, wait_row};

/// Takes up what there is; a kernel that would not tell of a connection's end must count none.
fn adopts(account: &Account, connections: usize) -> bool {
    let adopted = account.adopt().unwrap();
    if connections > 0 && adopted.refused > 0 {
        assert_eq!(adopted, Adopted { taken_up: 0, refused: connections });
        println!("SKIP {}: this kernel tells of no older connection's end (6.12 does)", std::module_path!());
        return false;
    }
    assert_eq!(adopted, Adopted { taken_up: connections, refused: 0 });
    true
}

fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

fn taken_in(account: &Account, listener: TcpListener) -> Backend {
    Backend { id: register(account, listener.local_addr().unwrap()), listener }
}

#[test]
fn connections_older_than_the_programs_are_counted_until_they_close() {
    run(name!(), |sandbox| {
        for host in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let mut open: Vec<_> = (0..3).map(|_| connect(&listener)).collect();
            // Half closed by the backend, it still is a connection.
            open[0].1.shutdown(std::net::Shutdown::Write).unwrap();
            let account = account(sandbox);
            let backend = taken_in(&account, listener);
            assert_eq!(account.row(backend.id).conns, 0);
            if !adopts(&account, 3) {
                return;
            }
            let row = account.row(backend.id);
            assert_eq!((row.conns, row.foreign_conns, row.opened, row.closed), (3, 3, 3, 0));
            adopts(&account, 0);
            assert_eq!(account.row(backend.id).conns, 3, "each is counted once");
            open.push(backend.connect());
            assert_eq!(account.row(backend.id).conns, 4);
            while open.pop().is_some() {
                let left = open.len() as u64;
                wait_row(&account, backend.id, |row| (row.conns, row.closed) == (left, 4 - left));
            }
            assert_eq!(account.row(backend.id).foreign_conns, 0);
            assert_eq!(account.sweep().unwrap(), Swept::default(), "there was nothing to put right");
        }
    });
}

#[test]
fn requests_on_an_older_connection_are_followed() {
    run(name!(), |sandbox| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mapped = format!("[::ffff:127.0.0.1]:{}", listener.local_addr().unwrap().port());
        let ours = TcpStream::connect(mapped).unwrap();
        let theirs = listener.accept().unwrap().0;
        let account = account(sandbox);
        let backend = taken_in(&account, listener);
        if !adopts(&account, 1) {
            return;
        }
        let mut wire = Wire { account, backend, ours, theirs };
        wire.ask(REQUEST).is(AWAITING).answer(CHUNKED).is(STREAMING).answer(LAST_CHUNK).is(IDLE);
        wire.ask(REQUEST).is(AWAITING);
        let Wire { account, backend, ours, theirs } = wire;
        drop((ours, theirs));
        wait_row(&account, backend.id, |row| (row.conns, row.awaiting, row.closed) == (0, 0, 1));
    });
}

#[test]
fn what_a_killed_process_leaves_of_older_connections_is_nothing() {
    run(name!(), |sandbox| {
        if let Some(addr) = sandbox.step() {
            let _open: Vec<_> = (0..20).map(|_| TcpStream::connect(addr).unwrap()).collect();
            say("open");
            return wait_until_finished();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = sandbox.helper(&listener.local_addr().unwrap().to_string());
        client.hears();
        let account = account(sandbox);
        let backend = taken_in(&account, listener);
        if !adopts(&account, 20) {
            return;
        }
        assert_eq!(account.row(backend.id).conns, 20);
        client.kill();
        let theirs: Vec<_> = (0..20).map(|_| backend.listener.accept().unwrap()).collect();
        drop(theirs);
        wait_row(&account, backend.id, |row| (row.conns, row.closed) == (0, 20));
    });
}

#[test]
fn sockets_of_a_living_router_keep_their_role_and_probes_are_not_taken_up() {
    run(name!(), |sandbox| {
        let first = account(sandbox);
        let backend = Backend::new(&first, "127.0.0.1");
        let _counted = connect_marked(&first, &backend, Role::Router);
        let _probe = connect_marked(&first, &backend, Role::Probe);
        let second = account(sandbox);
        assert_eq!(register(&second, backend.addr()), backend.id);
        adopts(&second, 0);
        let row = second.row(backend.id);
        assert_eq!((row.conns, row.foreign_conns, row.opened), (1, 0, 1));
    });
}

#[test]
fn connections_that_the_programs_do_not_see_are_not_taken_up() {
    run(name!(), |sandbox| {
        if let Some(addr) = sandbox.step() {
            let (place, addr) = addr.split_once(' ').unwrap();
            fs::write(sandbox.cgroup.join(place).join("cgroup.procs"), "0").unwrap();
            let _open = TcpStream::connect(addr).unwrap();
            say("open");
            return wait_until_finished();
        }
        let places = ["own", "own/below", "beside"].map(|place| sandbox.cgroup.join(place));
        places.iter().for_each(|place| fs::create_dir(place).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let helpers = ["own/below", "beside"].map(|place| {
            let mut helper = sandbox.helper(&format!("{place} {addr}"));
            helper.hears();
            helper
        });
        fs::write(places[0].join("cgroup.procs"), "0").unwrap();
        let account = account(sandbox);
        let backend = taken_in(&account, listener);
        // Its end would never be told.
        if adopts(&account, 1) {
            assert_eq!(account.row(backend.id).conns, 1);
        }
        helpers.into_iter().for_each(|helper| drop(helper.finish()));
        fs::write(sandbox.cgroup.join("cgroup.procs"), "0").unwrap();
    });
}

#[test]
fn an_older_connection_is_found_through_a_link_further_up() {
    run(name!(), |sandbox| {
        let inner = sandbox.cgroup.join("inner");
        fs::create_dir(&inner).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (ours, theirs) = connect(&listener);
        drop(account(sandbox));
        fs::write(inner.join("cgroup.procs"), "0").unwrap();
        let account = account(sandbox);
        let backend = taken_in(&account, listener);
        if adopts(&account, 1) {
            drop((ours, theirs));
            wait_row(&account, backend.id, |row| (row.conns, row.closed) == (0, 1));
        }
        fs::write(sandbox.cgroup.join("cgroup.procs"), "0").unwrap();
    });
}

#[test]
fn what_closed_unseen_is_taken_away_and_the_rest_stays() {
    run(name!(), |sandbox| {
        let before = account(sandbox);
        let backend = Backend::new(&before, "127.0.0.1");
        let mut unseen: Vec<_> = (0..4).map(|_| backend.connect()).collect();
        let mut kept = backend.connect();
        pass(&mut kept.0, &mut kept.1, REQUEST);
        for (n, (ours, theirs)) in unseen.iter_mut().enumerate() {
            pass(ours, theirs, if n == 0 { b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" } else { REQUEST });
            if n == 1 {
                pass(theirs, ours, CHUNKED);
            }
        }
        let shown = |account: &Account| {
            let row = account.row(backend.id);
            let foreign = [row.foreign_conns, row.foreign_awaiting, row.foreign_streaming];
            ([row.conns, row.awaiting, row.streaming, row.unknown], foreign)
        };
        assert_eq!(shown(&before), ([5, 3, 1, 1], [5, 3, 1]));
        take_links_away(sandbox);
        drop(unseen);
        let new_unseen = backend.connect();
        assert_eq!(shown(&before), ([5, 3, 1, 1], [5, 3, 1]), "nobody saw it");
        drop(before);

        let again = account(sandbox);
        assert_eq!(register(&again, backend.addr()), backend.id);
        assert_eq!(shown(&again), ([1, 1, 0, 0], [1, 1, 0]));
        let row = again.row(backend.id);
        assert_eq!((row.opened, row.closed), (5, 4), "what closed is closed");
        assert_eq!(again.sweep().unwrap(), Swept::default());
        let is_adopted = adopts(&again, 1);
        drop(new_unseen);
        pass(&mut kept.1, &mut kept.0, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".as_bytes());
        drop(kept);
        wait_row(&again, backend.id, |row| row.conns == 0 && row.closed == 5 + u64::from(is_adopted));
        assert_eq!(shown(&again), ([0; 4], [0; 3]));
    });
}

#[test]
fn without_the_connection_counter_nothing_is_taken_up() {
    run(name!(), |sandbox| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _open = connect(&listener);
        drop(account(sandbox));
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        let path = &links.iter().find(|link| link.program == "inflight_sockops").unwrap().path;
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
        let hook = Hook::Cgroup(None);
        let options = KernelOptions { mode: KernelMode::Auto, pin_dir: sandbox.pin_dir(), hook };
        let account = open(&options).unwrap();
        let backend = taken_in(&account, listener);
        adopts(&account, 0);
        assert_eq!(account.row(backend.id).conns, 0);
    });
}
