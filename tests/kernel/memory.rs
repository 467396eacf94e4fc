//! What 10,000 open connections to 256 backends take: maps, storage of sockets, and time at the pick.

use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_common::BackendId;
use router_common::limits::{MAX_BACKENDS, MAX_LOCAL_PORTS};
use router_policy::{BackendSpec, Models, Outcome, Placement, PolicyConfig, RequestShape, Usage};
use router_user::account::Ledger;
use router_user::account::local::Local;
use router_user::account::view::pinned;

use crate::agent::options;
use crate::hosts::own_network;
use crate::many::allow_descriptors;
use crate::sandbox::{Sandbox, name, run};
use crate::world::{account, bpftool, register, wait_until};

const OPEN: usize = 10_000;

/// What the kernel says the pinned maps take, by name. Storage of sockets is not in it.
fn maps(sandbox: &Sandbox) -> Vec<(&'static str, u64)> {
    let all = pinned(&sandbox.pin_dir()).unwrap();
    let bytes = |name: &str| {
        let shown = bpftool(&["-j", "map", "show", "pinned"], &all.path.join(name), &[]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown["bytes_memlock"].as_u64().unwrap_or_else(|| panic!("{shown}"))
    };
    all.maps.iter().map(|&name| (name, bytes(name))).collect()
}

fn sum(maps: &[(&str, u64)]) -> u64 {
    maps.iter().map(|(_, bytes)| bytes).sum()
}

/// What the kernel has charged to the sockets of this network for what hangs on them (`o` of `skmem`).
fn charged() -> u64 {
    let output = Command::new("ss").args(["-Htmn", "state", "established"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let fields = text.split([',', '(', ')']).filter_map(|field| field.strip_prefix('o'));
    fields.filter_map(|bytes| bytes.parse::<u64>().ok()).sum()
}

/// Listeners with room for so many connections that nobody accepts: their ends need no descriptors.
fn listeners(count: usize) -> Vec<TcpListener> {
    let listener = |_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, (OPEN / count + 1) as i32).unwrap();
        listener
    };
    (0..count).map(listener).collect()
}

/// Connections spread over listeners.
fn open(listeners: &[TcpListener]) -> Vec<TcpStream> {
    let connect = |listener: &TcpListener| TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    listeners.iter().cycle().take(OPEN).map(connect).collect()
}

/// The least time of a pick and its end, of some rounds.
fn pick(ledger: &Arc<Ledger>) -> Duration {
    const EACH: u32 = 50;
    let round = || {
        let start = Instant::now();
        for _ in 0..EACH {
            let (_, guard) = ledger.pick(&RequestShape::unshaped(), &[]).unwrap();
            guard.finish(Outcome::Completed, &Usage::default());
        }
        start.elapsed() / EACH
    };
    (0..40).map(|_| round()).min().unwrap()
}

#[test]
fn ten_thousand_connections_cost_their_storage_and_nothing_else() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        allow_descriptors(OPEN as u64 + 1000);
        let account = account(sandbox);
        let listeners = listeners(MAX_BACKENDS);
        let ledger = Ledger::new(Placement::new(PolicyConfig::default(), Box::new(account.clone()), 1));
        let rows: Vec<BackendId> = listeners
            .iter()
            .map(|listener| {
                let id = register(&account, listener.local_addr().unwrap());
                ledger
                    .set_backend(id, BackendSpec { url: format!("http://{id:?}"), ..BackendSpec::default() });
                ledger.models(id, Models::Unknown);
                ledger.ready(id, true);
                id
            })
            .collect();
        let (maps_before, before, time_before) = (maps(sandbox), charged(), pick(&ledger));
        let connections = open(&listeners);
        let conns = || rows.iter().map(|&row| account.row(row).conns).sum::<u64>();
        assert_eq!(conns(), OPEN as u64);
        let each = (charged() - before) as f64 / OPEN as f64;
        let after = maps(sandbox);
        assert_eq!(after, maps_before, "maps must not grow with connections");
        // Some slack for what else runs here: growth with connections would be of another order.
        let times = pick(&ledger).as_secs_f64() / time_before.as_secs_f64();
        println!(
            "\nFIGURE maps of the routers, 256 backends: {} B ({after:?}), the same at {OPEN} connections",
            sum(&after)
        );
        println!("FIGURE storage of a router's socket: {each} B, as charged to it");
        println!(
            "FIGURE maps and storage at {OPEN} connections and 256 backends: {:.2} MiB",
            (sum(&after) as f64 + each * OPEN as f64) / f64::from(1 << 20)
        );
        println!(
            "FIGURE a pick among 256 backends at {OPEN} open connections over one at none: {times:.2} x"
        );
        assert!((32.0..512.0).contains(&each), "{each} B of storage a socket");
        assert!(times < 2.0, "{times}");
        drop((connections, listeners));
        wait_until(|| if conns() == 0 { Ok(()) } else { Err(format!("{} connections", conns())) });
    });
}

#[test]
fn an_agent_takes_its_storage_for_each_accepted_connection() {
    run(name!(), |sandbox| {
        own_network().unwrap();
        allow_descriptors(OPEN as u64 + 1000);
        let listeners = listeners(MAX_LOCAL_PORTS);
        let ports: Vec<u16> =
            listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let agent = Local::open(&options(sandbox, &ports)).unwrap();
        let (before, maps_before) = (charged(), maps(sandbox));
        let connections = open(&listeners);
        assert_eq!(agent.rows().iter().map(|row| row.load.conns).sum::<u64>(), OPEN as u64);
        let each = (charged() - before) as f64 / OPEN as f64;
        assert_eq!(maps(sandbox), maps_before, "maps must not grow with connections");
        println!("\nFIGURE maps of the agent: {} B ({maps_before:?})", sum(&maps_before));
        println!("FIGURE storage of a socket that the agent counts: {each} B, as charged to it");
        assert!((512.0..1024.0).contains(&each), "{each} B of storage a socket");
        drop(connections);
        agent.take_off().unwrap();
    });
}
