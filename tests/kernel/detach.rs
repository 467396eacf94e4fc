//! `unlatch bpf detach` after the death of every kind of process.

use std::fs;

use router_user::account::At;
use router_user::account::local::Local;
use router_user::account::view::pinned;
use router_user::edge::Edge;

use crate::hosts::{DEVICE, connect_hosts, ip};
use crate::pins::left_in;
use crate::router_process::is_built;
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::serving::unlatch_ok;
use crate::world::{PROGRAMS, account, bpftool, wait_until};
use crate::{agent, edge};

/// In a helper: takes its part, until it is killed.
fn take_part(sandbox: &Sandbox, as_what: &str) {
    let gone = sandbox.cgroup.join("gone");
    let _part: Box<dyn std::any::Any> = match as_what {
        "agent" => Box::new(Local::open(&agent::options(sandbox, &[1])).unwrap()),
        "guard" => Box::new(Edge::start(&edge::options(sandbox, DEVICE)).unwrap()),
        _ => {
            fs::create_dir(&gone).unwrap();
            fs::write(gone.join("cgroup.procs"), "0").unwrap();
            Box::new(account(sandbox))
        }
    };
    say("takes part");
    wait_until_finished();
}

/// Lets a process of each kind take part and die; the router's cgroup goes with it.
fn die(sandbox: &Sandbox, kinds: &[&str]) {
    for kind in kinds {
        let mut process = sandbox.helper(kind);
        process.hears();
        process.kill();
    }
    if kinds.contains(&"router") {
        fs::remove_dir(sandbox.cgroup.join("gone")).unwrap();
        wait_until(|| match pinned(&sandbox.pin_dir()).unwrap().links {
            links if links.iter().filter(|l| l.at == At::Gone).count() == PROGRAMS.len() => Ok(()),
            links => Err(format!("{links:?}")),
        });
    }
}

#[test]
fn detach_takes_off_what_dead_routers_agents_and_guards_left() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        if let Some(kind) = sandbox.step() {
            return take_part(sandbox, kind);
        }
        let _clients = connect_hosts().unwrap();
        let says = [
            ("agent", "detached local_sockops (id "),
            ("guard", "detached edge_guard on device edge0 (native)"),
            ("router", "without effect, its cgroup or device is gone"),
        ];
        let all = says.map(|(kind, _)| kind);
        for kinds in [&all[..1], &all[1..2], &all[2..], &all] {
            die(sandbox, kinds);
            let text = unlatch_ok(sandbox, "bpf detach");
            for (kind, line) in says {
                assert_eq!(text.contains(line), kinds.contains(&kind), "{kinds:?}: {text}");
            }
            assert_eq!(left_in(&sandbox.bpffs), Vec::<String>::new(), "{kinds:?}");
            // Off when the command ends, not a moment later.
            assert!(!ip(&["link", "show", "dev", DEVICE]).contains("xdp"));
            let shown = bpftool(&["cgroup", "show"], &sandbox.cgroup, &[]);
            assert!(!shown.contains("local_") && !shown.contains("inflight"), "{shown}");
        }
    });
}
