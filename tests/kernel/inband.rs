//! Load in band on one host: who is told, who hears, and what is left when nobody is asked to tell.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use router_common::BackendLoad;
use router_common::inband::REPEAT_NS;
use router_user::account::local::{Local, LocalOptions};
use router_user::account::view::pinned;
use router_user::account::{Account, Role};

use crate::agent::{REQUEST, connect, listen, options, pass};
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::world::{Backend, account, connect_marked, connect_marked_to, register, wait_row, wait_until};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
const CHUNK: &[u8] = b"2\r\nhi\r\n";

/// An agent that tells these peers.
pub(crate) fn telling(sandbox: &Sandbox, ports: &[u16], to: &[&str]) -> LocalOptions {
    let prefix = |text: &&str| text.parse::<router_user::edge::Prefix>().unwrap().parts();
    LocalOptions { tell: to.iter().map(prefix).collect(), ..options(sandbox, ports) }
}

fn open_telling(options: &LocalOptions) -> Local {
    let agent = Local::open(options).unwrap();
    assert_eq!(agent.not_telling(), None);
    agent
}

/// A router's connection that has sent a request and seen an answer begin, and the engine's end of it.
fn exchange(account: &Account, engine: &Backend) -> (TcpStream, TcpStream) {
    let mut ours = connect_marked(account, engine, Role::Router);
    let mut theirs = engine.listener.accept().unwrap().0;
    pass(&mut ours, &mut theirs, REQUEST);
    pass(&mut theirs, &mut ours, ANSWER);
    wait_row(account, engine.id, |row| row.streaming >= 1);
    (ours, theirs)
}

fn remote(row: &BackendLoad) -> Option<u32> {
    (row.remote_at_ns > 0).then_some(row.remote_in_flight)
}

#[test]
fn the_first_byte_of_an_answer_carries_the_count_of_all_clients() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let engine = Backend::new(&account, "127.0.0.1");
        let _agent = open_telling(&telling(sandbox, &[engine.addr().port()], &["127.0.0.0/8"]));
        let mut direct: Vec<_> = (0..3).map(|_| connect(&engine.listener)).collect();
        for (ours, theirs) in &mut direct {
            pass(ours, theirs, REQUEST);
            pass(theirs, ours, ANSWER);
        }
        assert_eq!(remote(&account.row(engine.id)), Some(3), "this host's direct clients hear, too");
        let (mut ours, mut theirs) = exchange(&account, &engine);
        assert_eq!(remote(&account.row(engine.id)), Some(4));
        let before = account.row(engine.id).remote_at_ns;
        direct.pop();
        // The engine's host has seen the client's end when the engine has.
        drop(direct.pop());
        wait_row(&account, engine.id, |row| row.foreign_streaming == 1);
        pass(&mut theirs, &mut ours, CHUNK);
        let row = account.row(engine.id);
        assert!(row.remote_at_ns > before);
        assert_eq!(remote(&row), Some(2));
    });
}

#[test]
fn on_a_connection_older_than_the_routers_programs_it_is_heard_too() {
    run(name!(), |sandbox| {
        let (listener, port) = listen("127.0.0.1");
        let _agent = open_telling(&telling(sandbox, &[port], &["127.0.0.0/8"]));
        let (mut ours, mut theirs) = connect(&listener);
        let account = account(sandbox);
        let engine = Backend { id: register(&account, listener.local_addr().unwrap()), listener };
        if account.adopt().unwrap().refused == 1 {
            println!("SKIP {}: this kernel tells of no older connection's end (6.12 does)", name!());
            return;
        }
        pass(&mut ours, &mut theirs, REQUEST);
        pass(&mut theirs, &mut ours, ANSWER);
        assert_eq!(remote(&account.row(engine.id)), Some(1));
    });
}

#[test]
fn of_a_mixed_fleet_those_with_an_agent_are_known_and_the_others_unknown() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let [with, without] = [(); 2].map(|()| Backend::new(&account, "127.0.0.1"));
        let _agent = open_telling(&telling(sandbox, &[with.addr().port()], &["127.0.0.0/8"]));
        let _open = [exchange(&account, &with), exchange(&account, &without)];
        assert_eq!(remote(&account.row(with.id)), Some(1));
        assert_eq!(remote(&account.row(without.id)), None);
    });
}

#[test]
fn only_peers_of_the_prefixes_are_told_in_either_family() {
    run(name!(), |sandbox| {
        for (listens, address, to, is_told) in [
            ("127.0.0.1", "127.0.0.1", &["10.0.0.0/8", "::/0"][..], false),
            ("127.0.0.1", "127.0.0.1", &["10.0.0.0/8", "127.0.0.1/32"], true),
            ("::1", "::1", &["0.0.0.0/0", "fd00::/8"], false),
            ("::1", "::1", &["::1/128"], true),
            // Accepted by a socket of IPv6.
            ("::", "127.0.0.1", &["::/0"], false),
            ("::", "127.0.0.1", &["127.0.0.0/8"], true),
        ] {
            let account = account(sandbox);
            let listener = TcpListener::bind((listens, 0)).unwrap();
            let addr = (address.parse::<std::net::IpAddr>().unwrap(), listener.local_addr().unwrap().port());
            let id = register(&account, addr.into());
            let agent = open_telling(&telling(sandbox, &[addr.1], to));
            let mut ours = connect_marked_to(&account, id, addr.into(), Role::Router);
            let mut theirs = listener.accept().unwrap().0;
            pass(&mut ours, &mut theirs, REQUEST);
            pass(&mut theirs, &mut ours, ANSWER);
            wait_row(&account, id, |row| row.streaming == 1);
            assert_eq!(remote(&account.row(id)), is_told.then_some(1), "{listens} {to:?}");
            agent.take_off().unwrap();
        }
    });
}

#[test]
fn an_idle_connection_hears_by_keep_alive_probes() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let engine = Backend::new(&account, "127.0.0.1");
        let _agent = open_telling(&telling(sandbox, &[engine.addr().port()], &["127.0.0.0/8"]));
        let (ours, _theirs) = exchange(&account, &engine);
        rustix::net::sockopt::set_socket_keepalive(&ours, true).unwrap();
        rustix::net::sockopt::set_tcp_keepidle(&ours, Duration::from_secs(1)).unwrap();
        let mut probe = connect_marked(&account, &engine, Role::Probe);
        let mut to_probe = engine.listener.accept().unwrap().0;
        pass(&mut probe, &mut to_probe, REQUEST);
        pass(&mut to_probe, &mut probe, ANSWER);
        let before = account.row(engine.id);
        assert_eq!(remote(&before), Some(1), "a probe's packets are not listened to: it is counted itself");
        let end = Instant::now() + Duration::from_secs(10);
        while remote(&account.row(engine.id)) != Some(2) {
            assert!(Instant::now() < end, "{:?}", account.row(engine.id));
            std::thread::sleep(Duration::from_millis(10));
        }
        let after = account.row(engine.id);
        assert_eq!(
            (after.rx_bytes, after.tx_bytes),
            (before.rx_bytes, before.tx_bytes),
            "not a byte was sent"
        );
        let age = Duration::from_nanos(after.remote_at_ns - before.remote_at_ns);
        println!("heard again after {age:?}");
        assert!(age > Duration::from_millis(900), "{age:?}");
    });
}

#[test]
fn an_agent_that_is_not_to_tell_takes_the_telling_program_off() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        if let Some(port) = sandbox.step() {
            let _agent = open_telling(&telling(sandbox, &[port.parse().unwrap()], &["127.0.0.0/8"]));
            say("tells");
            return wait_until_finished();
        }
        let engine = Backend::new(&account, "127.0.0.1");
        let mut first = sandbox.helper(&engine.addr().port().to_string());
        first.hears();
        let (mut ours, mut theirs) = exchange(&account, &engine);
        assert_eq!(remote(&account.row(engine.id)), Some(1));
        first.kill();
        drop(first);
        pass(&mut theirs, &mut ours, CHUNK);
        let has_tell =
            || pinned(&sandbox.pin_dir()).unwrap().links.iter().any(|link| link.program == "inband_tell");
        assert!(has_tell());
        let _agent = Local::open(&options(sandbox, &[engine.addr().port()])).unwrap();
        assert!(!has_tell());
        // The kernel takes a program off a little after its link went.
        wait_until(|| {
            let before = account.row(engine.id).remote_at_ns;
            // What was told a moment ago is not told again anyway.
            std::thread::sleep(2 * Duration::from_nanos(REPEAT_NS));
            pass(&mut theirs, &mut ours, CHUNK);
            let after = account.row(engine.id).remote_at_ns;
            if before == after { Ok(()) } else { Err("it is told on".to_owned()) }
        });
    });
}
