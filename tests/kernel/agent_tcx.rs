//! The engine-host view at network devices.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use router_user::account::Hook;
use router_user::account::local::{Local, LocalOptions};
use router_user::account::view::pinned;

use crate::agent::{
    CHUNKED, LAST_CHUNK, REQUEST, Wire, connect, half_closed_still_awaits, listen, pass, wait_gauges,
};
use crate::hosts::{CLIENTS, DEVICE, ROUTER, connect_hosts, own_network};
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::tcx::{attached, wait_detached};
use crate::world::wait_until;

pub(crate) fn at_device(sandbox: &Sandbox, device: &str, ports: &[u16]) -> LocalOptions {
    let hook = Hook::Tcx(vec![device.to_owned()]);
    LocalOptions { pin_dir: sandbox.pin_dir(), hook, ports: ports.to_vec(), tell: Vec::new() }
}

fn over_lo(sandbox: &Sandbox, host: &str) -> Wire {
    let (listener, port) = listen(host);
    let agent = Local::open(&at_device(sandbox, "lo", &[port])).unwrap();
    let (ours, theirs) = connect(&listener);
    Wire { agent, listener, ours, theirs }
}

/// Two requests and a piece of a third, then the end of the agent.
fn follow(mut wire: Wire) {
    wire.ask(REQUEST).is([1, 1, 0, 0]);
    wire.answer(CHUNKED).is([1, 0, 1, 0]).answer("2\r\nhi\r\n").is([1, 0, 1, 0]);
    wire.answer(LAST_CHUNK).is([1, 0, 0, 0]);
    wire.ask(REQUEST).answer("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab").is([1, 0, 1, 0]);
    wire.answer("cd").is([1, 0, 0, 0]);
    let row = wire.row();
    assert_eq!((row.ttfb_count, row.tx_bytes), (2, 2 * REQUEST.len() as u64));
    assert_eq!((row.foreign_conns, row.opened, row.closed), (0, 1, 0));
    wire.ask(REQUEST).is([1, 1, 0, 0]);
    let Wire { agent, ours, theirs, .. } = wire;
    drop((ours, theirs));
    wait_gauges(&agent, [0; 4]);
    assert_eq!(agent.rows()[0].load.closed, 1);
    agent.take_off().unwrap();
}

#[test]
fn requests_are_followed_at_lo_where_both_ends_are_seen() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        for host in ["127.0.0.1", "::1"] {
            let wire = over_lo(sandbox, host);
            assert_eq!(attached("lo"), 2);
            follow(wire);
        }
        assert!(!sandbox.pin_dir().exists());
        wait_detached("lo");
    });
}

#[test]
fn requests_of_another_host_are_followed_over_a_cable() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        for (host, client) in [(ROUTER[0], CLIENTS[0]), (ROUTER[1], CLIENTS[4])] {
            let (listener, port) = listen(host);
            let agent = Local::open(&at_device(sandbox, DEVICE, &[port])).unwrap();
            let ours = clients.connect(client, listener.local_addr().unwrap(), 1).remove(0);
            ours.set_nonblocking(false).unwrap();
            let theirs = listener.accept().unwrap().0;
            ours.set_nodelay(true).unwrap();
            theirs.set_nodelay(true).unwrap();
            follow(Wire { agent, listener, ours, theirs });
        }
    });
}

#[test]
fn a_connection_is_counted_with_its_first_bytes_and_an_older_one_with_its_next_request() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        let (listener, port) = listen("127.0.0.1");
        let (mut old, mut olds) = connect(&listener);
        pass(&mut old, &mut olds, b"POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n{");
        let agent = Local::open(&at_device(sandbox, "lo", &[port])).unwrap();
        let (mut ours, mut theirs) = connect(&listener);
        let _silent = connect(&listener);
        pass(&mut old, &mut olds, b"\"}");
        assert_eq!(agent.rows()[0].load.conns, 0, "nothing was said that tells a request");
        pass(&mut ours, &mut theirs, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
        wait_gauges(&agent, [1, 0, 0, 1]);
        pass(&mut old, &mut olds, REQUEST);
        wait_gauges(&agent, [2, 1, 0, 1]);
    });
}

#[test]
fn a_connection_ends_with_the_engines_last_word_or_a_reset() {
    type End = fn(TcpStream, TcpStream);
    // Each with the resets it makes.
    let ends: [(End, u64); 3] = [
        (
            |mut ours, theirs| {
                drop(theirs);
                assert_eq!(ours.read(&mut [0]).unwrap(), 0);
            },
            0,
        ),
        (
            |ours, theirs| {
                drop(ours);
                // An engine reads the end and closes.
                wait_until(|| theirs.peek(&mut [0]).map(drop).map_err(|error| error.to_string()));
                drop(theirs);
            },
            0,
        ),
        (
            |ours, mut theirs| {
                theirs.write_all(b"HTTP/1.1 200 OK\r\n").unwrap();
                wait_until(|| ours.peek(&mut [0]).map(drop).map_err(|error| error.to_string()));
                // With something unread it is a reset.
                drop(ours);
                let _broken = theirs.read(&mut [0]);
            },
            1,
        ),
    ];
    run(name!(), |sandbox| {
        own_network().unwrap();
        let (listener, port) = listen("127.0.0.1");
        let agent = Local::open(&at_device(sandbox, "lo", &[port])).unwrap();
        for (end, resets) in ends {
            let before = agent.rows()[0].load.resets;
            let (mut ours, mut theirs) = connect(&listener);
            pass(&mut ours, &mut theirs, REQUEST);
            wait_gauges(&agent, [1, 1, 0, 0]);
            end(ours, theirs);
            wait_gauges(&agent, [0; 4]);
            assert_eq!(agent.rows()[0].load.resets, before + resets);
        }
        assert_eq!(agent.sweep().unwrap(), 0, "there was nothing to put right");
    });
}

#[test]
fn a_client_that_has_said_all_still_awaits_its_answer() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        half_closed_still_awaits(over_lo(sandbox, "127.0.0.1"));
    });
}

#[test]
fn what_ends_while_no_program_is_attached_goes_at_the_next_start_or_with_a_sweep() {
    run(name!(), |sandbox| {
        if let Some(port) = sandbox.step() {
            let _agent = Local::open(&at_device(sandbox, "lo", &[port.parse().unwrap()])).unwrap();
            say("counts");
            return wait_until_finished();
        }
        own_network().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // It starts in the network of this thread.
        let mut first = sandbox.helper(&port.to_string());
        first.hears();
        let (mut ours, mut theirs) = connect(&listener);
        let (mut kept, mut kepts) = connect(&listener);
        pass(&mut ours, &mut theirs, REQUEST);
        pass(&mut kept, &mut kepts, REQUEST);
        first.kill();
        let take_links_away = || {
            for link in pinned(&sandbox.pin_dir()).unwrap().links {
                std::fs::remove_file(link.path).unwrap();
            }
            wait_detached("lo");
        };
        take_links_away();
        drop((ours, theirs));
        let agent = Local::open(&at_device(sandbox, "lo", &[port])).unwrap();
        let row = agent.rows()[0].load;
        assert_eq!((row.conns, row.awaiting, row.opened, row.closed), (1, 1, 2, 1));
        take_links_away();
        drop((kept, kepts));
        assert_eq!(agent.rows()[0].load.conns, 1, "nobody saw it");
        wait_until(|| match agent.sweep().unwrap() {
            1 => Ok(()),
            rows => Err(format!("{rows} rows corrected")),
        });
        wait_gauges(&agent, [0; 4]);
    });
}
