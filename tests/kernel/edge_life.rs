//! The edge guard over the lives of routers: killed, restarted, side by side, and what the dead leave.

use std::path::Path;
use std::time::Duration;

use router_user::edge::view::{self, Kind};
use router_user::edge::{Edge, EdgeError, EdgeOptions, Mode};

use crate::edge::{GUARDED, Ports, is_attached, options, prefix, tries, wait_detached};
use crate::hosts::{DEVICE, connect_hosts};
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::upgrade::open_pin;
use crate::world::wait_until;

/// A router that guards its port until it is killed.
fn guard_until_killed(sandbox: &Sandbox) {
    // The helper's thread is on the router's host, which it was started from.
    let deny = vec![prefix("10.9.0.2/32")];
    let _edge = Edge::start(&EdgeOptions { deny, ..options(sandbox, DEVICE) }).unwrap();
    say("guarding");
    wait_until_finished();
}

#[test]
fn a_guard_that_is_killed_stays_and_the_next_takes_it_over() {
    run(name!(), |sandbox| {
        if sandbox.step().is_some() {
            return guard_until_killed(sandbox);
        }
        let clients = connect_hosts().unwrap();
        let _ports = Ports::open();
        let mut first = sandbox.helper("first");
        first.hears();
        first.kill();
        drop(first);
        assert!(is_attached(DEVICE));
        assert!(!tries(&clients, "10.9.0.2", GUARDED));
        view::add(&sandbox.pin_dir(), prefix("10.9.0.3"), Kind::Deny).unwrap();

        let second = Edge::start(&options(sandbox, DEVICE)).unwrap();
        assert!(tries(&clients, "10.9.0.2", GUARDED), "its configuration does not deny this one");
        assert!(!tries(&clients, "10.9.0.3", GUARDED), "a rule made by hand stays");
        drop(second);
        wait_detached();
        assert!(tries(&clients, "10.9.0.3", GUARDED));
        assert_eq!(view::state(&sandbox.pin_dir()).unwrap().rules.len(), 1, "rules outlive the router");
        view::detach(&sandbox.pin_dir()).unwrap();
        assert!(!sandbox.pin_dir().exists());
    });
}

#[test]
fn two_routers_share_a_device_until_the_last_one_ends() {
    run(name!(), |sandbox| {
        let _clients = connect_hosts().unwrap();
        let first = Edge::start(&options(sandbox, DEVICE)).unwrap();
        let second = Edge::start(&EdgeOptions { port: 8005, ..options(sandbox, DEVICE) }).unwrap();
        assert_eq!(view::state(&sandbox.pin_dir()).unwrap().ports.len(), 2);
        drop(first);
        assert!(is_attached(DEVICE));
        drop(second);
        wait_detached();
    });
}

#[test]
fn a_router_that_takes_over_a_port_keeps_it_when_the_other_ends() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let _ports = Ports::open();
        let old = Edge::start(&options(sandbox, DEVICE)).unwrap();
        let new = Edge::start(&options(sandbox, DEVICE)).unwrap();
        view::add(&sandbox.pin_dir(), prefix("10.9.0.2"), Kind::Deny).unwrap();
        for ends_first in [old, new] {
            assert!(is_attached(DEVICE));
            assert!(!tries(&clients, "10.9.0.2", GUARDED));
            drop(ends_first);
        }
        wait_detached();
    });
}

#[test]
fn a_dead_router_is_known_as_dead_while_its_pid_is_still_there() {
    run(name!(), |sandbox| {
        if sandbox.step().is_some() {
            return guard_until_killed(sandbox);
        }
        let _clients = connect_hosts().unwrap();
        let mut dead = sandbox.helper("dead");
        dead.hears();
        dead.kill();
        // Not waited for: the process has ended, and its number is not free.
        wait_until(|| match view::state(&sandbox.pin_dir()).unwrap().ports[..] {
            [port] if !port.is_alive && Path::new(&format!("/proc/{}", port.pid)).exists() => Ok(()),
            ref ports => Err(format!("{ports:?}")),
        });
        assert!(view::pinned(&sandbox.pin_dir()).unwrap().pids.is_empty());
        // The next router, elsewhere, takes the dead one's program off.
        let other = Edge::start(&EdgeOptions { port: 8005, ..options(sandbox, "lo") }).unwrap();
        assert!(!is_attached(DEVICE));
        assert_eq!(view::state(&sandbox.pin_dir()).unwrap().ports.len(), 1);
        drop(other);
    });
}

#[test]
fn a_restart_finds_its_device_free() {
    run(name!(), |sandbox| {
        let _clients = connect_hosts().unwrap();
        for _ in 0..20 {
            let edge = Edge::start(&options(sandbox, DEVICE)).unwrap();
            assert_eq!((edge.mode(), edge.not_native()), (Mode::Native, None));
            drop(edge);
            assert!(!is_attached(DEVICE), "off when the router has ended, not a moment later");
        }
    });
}

#[test]
fn a_device_that_is_not_let_go_of_yet_is_waited_for_but_not_forever() {
    run(name!(), |sandbox| {
        let _clients = connect_hosts().unwrap();
        let edge = Edge::start(&options(sandbox, DEVICE)).unwrap();
        let pin = view::state(&sandbox.pin_dir()).unwrap().devices.remove(0).path;
        // Somebody has the link open, and its pin is removed by hand: so no router finds it, or can take it off.
        let held = open_pin(&pin);
        std::fs::remove_file(pin).unwrap();
        drop(edge);
        assert!(is_attached(DEVICE));
        let refused = Edge::start(&options(sandbox, DEVICE)).unwrap_err();
        assert!(matches!(refused, EdgeError::Attach { .. }), "{refused}");
        let lets_go = std::thread::spawn(move || {
            // Longer than loading takes, and shorter than loading and waiting.
            std::thread::sleep(Duration::from_millis(400));
            drop(held);
        });
        let edge = Edge::start(&options(sandbox, DEVICE)).unwrap();
        assert_eq!(edge.mode(), Mode::Native);
        lets_go.join().unwrap();
    });
}

#[test]
fn a_guard_left_in_generic_mode_is_taken_over_as_it_is() {
    run(name!(), |sandbox| {
        let _clients = connect_hosts().unwrap();
        let first = Edge::start(&options(sandbox, "lo")).unwrap();
        let second = Edge::start(&EdgeOptions { port: 8005, ..options(sandbox, "lo") }).unwrap();
        assert_eq!(second.mode(), Mode::Generic);
        assert!(second.not_native().is_some_and(|why| why.contains("earlier")), "{:?}", second.not_native());
        drop((first, second));
    });
}

#[test]
fn devices_of_two_networks_with_one_number_are_two() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let (ours, theirs) = (options(sandbox, "lo"), options(sandbox, "lo"));
        let first = Edge::start(&ours).unwrap();
        let is_guarded_there = || clients.run(|| is_attached("lo"));
        let second = clients.run(move || Edge::start(&theirs).unwrap());
        assert!(is_attached("lo") && is_guarded_there(), "the loopback is number 1 in both");
        let state = view::state(&sandbox.pin_dir()).unwrap();
        assert_eq!(state.devices.iter().map(|device| device.id.ifindex).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(state.devices.iter().filter(|device| device.name().is_some()).count(), 1);
        drop(first);
        assert!(!is_attached("lo") && is_guarded_there());
        drop(second);
        assert!(!is_guarded_there());
    });
}
