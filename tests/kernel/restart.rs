//! A router that comes back: in a new cgroup, as systemd starts it, and again and again under load.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use router_common::BackendLoad;
use router_tests::backend::{Backend as Engine, Exchange, Received, Then};
use router_tests::client::post;
use router_user::account::view::{View, pinned};
use router_user::account::{At, Role};

use crate::router_process::is_built;
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::serving::Serving;
use crate::upgrade::put_behind;
use crate::world::{Backend, PROGRAMS, account, connect_marked_to, register, wait_until};

const REQUEST: &[u8] = b"POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: 1000000000\r\n\r\n";

/// A router in a cgroup of its own: connects, sends requests until nothing more is taken, and says what the kernel saw.
fn unit(sandbox: &Sandbox, cgroup: &str, engine: SocketAddr) {
    enter(&sandbox.cgroup.join(cgroup));
    let account = account(sandbox);
    let id = register(&account, engine);
    let mut stream = connect_marked_to(&account, id, engine, Role::Router);
    stream.set_nonblocking(true).unwrap();
    stream.write_all(REQUEST).unwrap();
    let filled = loop {
        match stream.write(&[b'x'; 4096]) {
            Ok(sent) => assert_ne!(sent, 0),
            Err(error) => break error,
        }
    };
    assert_eq!(filled.kind(), ErrorKind::WouldBlock);
    let row = account.row(id);
    say(format!("{} {} {} {}", row.conns, row.awaiting, row.opened, account.slot()));
    wait_until_finished();
}

fn enter(cgroup: &Path) {
    fs::create_dir(cgroup).unwrap();
    fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
}

fn load(sandbox: &Sandbox) -> BackendLoad {
    View::open(&sandbox.pin_dir()).unwrap().rows().unwrap()[0].load
}

#[track_caller]
fn wait_load(sandbox: &Sandbox, wanted: impl Fn(&BackendLoad) -> bool) {
    wait_until(|| match load(sandbox) {
        load if wanted(&load) => Ok(()),
        load => Err(format!("{load:?}")),
    });
}

#[test]
fn a_restart_in_a_new_cgroup_counts_on_and_the_old_one_still_gives_back() {
    run(name!(), |sandbox| {
        if let Some(step) = sandbox.step() {
            let (cgroup, engine) = step.split_once(' ').unwrap();
            return unit(sandbox, cgroup, engine.parse().unwrap());
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let engine = listener.local_addr().unwrap();
        let start = |cgroup: &str| sandbox.helper(&format!("{cgroup} {engine}"));
        let remove = |cgroup: &str| {
            wait_until(|| fs::remove_dir(sandbox.cgroup.join(cgroup)).map_err(|e| e.to_string()))
        };
        let mut first = start("unit-1");
        assert_eq!(first.hears(), "1 1 1 0");
        let (mut unread, _) = listener.accept().unwrap();
        first.kill();
        drop(first);
        // Its request is over, its connection not: what the engine has not taken yet is before the FIN.
        wait_load(sandbox, |row| (row.conns, row.awaiting, row.workers[0]) == (1, 0, 0));
        remove("unit-1");

        let mut second = start("unit-2");
        assert_eq!(
            second.hears(),
            "2 1 2 0",
            "the new cgroup's connection and request are seen, in the same row"
        );
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        let new = fs::metadata(sandbox.cgroup.join("unit-2")).unwrap().ino();
        assert_eq!(
            links.iter().filter(|link| link.at == At::Cgroup(new)).count(),
            PROGRAMS.len(),
            "{links:?}"
        );
        // The old cgroup's last connection ends only now, and is taken back all the same.
        unread.set_nonblocking(false).unwrap();
        unread.read_exact(&mut [0; 4096]).unwrap();
        drop(unread);
        wait_load(sandbox, |row| (row.conns, row.awaiting, row.opened, row.closed) == (1, 1, 2, 1));
        second.kill();
        drop(second);
        drop(listener.accept().unwrap());
        wait_load(sandbox, |row| (row.conns, row.awaiting, row.closed) == (0, 0, 2));
        remove("unit-2");

        // Links of cgroups that are gone are without effect, and the next start sweeps them.
        wait_until(|| match pinned(&sandbox.pin_dir()).unwrap().links {
            links if links.iter().all(|link| link.at == At::Gone) => Ok(()),
            links => Err(format!("{links:?}")),
        });
        let third = account(sandbox);
        let links = pinned(&sandbox.pin_dir()).unwrap().links;
        assert_eq!(links.len(), PROGRAMS.len(), "{links:?}");
        let backend = Backend::new(&third, "127.0.0.1");
        let _open = backend.connect();
        assert_eq!(third.row(backend.id).conns, 1);
    });
}

/// Answers every request, some as a stream.
fn answer(request: &Received, exchange: &mut Exchange) -> Then {
    if request.body.windows(6).any(|text| text == b"stream") {
        exchange.start_stream();
        exchange.chunk("data: {}\n\n");
        return exchange.end_stream();
    }
    exchange.answer("200 OK", "{}")
}

/// Asks until told to stop; a router that is not there, or goes, is no failure here.
fn ask_on(router: SocketAddr, is_over: &AtomicBool, answered: &AtomicUsize) {
    let prompts =
        ["plain", "stream"].map(|p| post("/v1/completions", &format!(r#"{{"model":"m","prompt":"{p}"}}"#)));
    for request in prompts.iter().cycle() {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = TcpStream::connect(router) else {
            std::thread::yield_now();
            continue;
        };
        // Until the router closes: one request a connection.
        let request = request.replacen("host: router\r\n", "host: router\r\nconnection: close\r\n", 1);
        let mut text = Vec::new();
        if stream.write_all(request.as_bytes()).is_ok()
            && stream.read_to_end(&mut text).is_ok()
            && text.starts_with(b"HTTP/1.1 200")
        {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// In a helper: loads the programs once more over the same maps, for a cgroup beside the router's.
fn load_copies(sandbox: &Sandbox, cgroup: &str) {
    enter(&sandbox.cgroup.join(cgroup));
    let _account = account(sandbox);
    say("loaded");
    wait_until_finished();
}

/// Puts the copies behind the router's links.
fn upgrade(sandbox: &Sandbox, router: &Path) {
    let copies = sandbox.cgroup.join("copies");
    let mut helper = sandbox.helper("copies");
    helper.hears();
    let links = pinned(&sandbox.pin_dir()).unwrap().links;
    let on = |cgroup: &Path| {
        let id = fs::metadata(cgroup).unwrap().ino();
        links.iter().filter(move |link| link.at == At::Cgroup(id))
    };
    assert_eq!((on(router).count(), on(&copies).count()), (PROGRAMS.len(), PROGRAMS.len()), "{links:?}");
    for (link, copy) in on(router).zip(on(&copies)) {
        assert_eq!(link.program, copy.program);
        assert_ne!(link.program_id, copy.program_id);
        put_behind(link, copy);
    }
    helper.finish();
    fs::remove_dir(copies).unwrap();
}

#[test]
fn restarts_and_upgrades_under_load_lose_and_double_no_event() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        if let Some(cgroup) = sandbox.step() {
            return load_copies(sandbox, cgroup);
        }
        let engines = [Engine::start(answer), Engine::start(answer)];
        let addr = SocketAddr::from(([127, 78, 1, 1], 8001));
        let backends = [0, 1].map(|n: usize| format!("--backend=http://{},model=m", engines[n].addr()));
        let args = ["--kernel=on", "--log-level=error", &backends[0], &backends[1]];
        let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        let more = |n: usize| {
            let from = answered.load(Ordering::Relaxed);
            wait_until(|| match answered.load(Ordering::Relaxed) - from {
                enough if enough >= n => Ok(()),
                some => Err(format!("{some} answers")),
            });
        };
        std::thread::scope(|scope| {
            let over = crate::serving::OnDrop(|| is_over.store(true, Ordering::Relaxed));
            for _ in 0..2 {
                scope.spawn(|| ask_on(addr, &is_over, &answered));
            }
            for round in 0..3 {
                let unit = sandbox.cgroup.join(format!("unit-{round}"));
                let router = Serving::start_in(&unit, sandbox, addr, &args);
                more(50);
                upgrade(sandbox, &unit);
                more(50);
                router.stop();
                fs::remove_dir(unit).unwrap();
            }
            drop(over);
        });
        let rows = || View::open(&sandbox.pin_dir()).unwrap().rows().unwrap();
        // The engines close their ends a moment after the router closed its own.
        wait_until(|| match rows().iter().map(|row| row.load.conns).sum::<u64>() {
            0 => Ok(()),
            open => Err(format!("{open} connections")),
        });
        for (engine, row) in std::iter::zip(&engines, rows()) {
            let received = engine.received();
            let connections = received.iter().map(|r| r.connection + 1).max().unwrap_or(0) as u64;
            let load = row.load;
            assert!(received.len() > 100 && connections >= 3, "a test of nothing: {}", received.len());
            assert_eq!((load.opened, load.closed, load.conns), (connections, connections, 0), "{load:?}");
            assert_eq!(load.ttfb_count, received.len() as u64, "every answer was seen once: {load:?}");
            assert_eq!((load.awaiting, load.streaming, row.in_flight), (0, 0, 0), "{load:?}");
        }
    });
}

#[test]
fn kills_under_load_leak_nothing_and_lose_no_connection() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = Engine::start(answer);
        let addr = SocketAddr::from(([127, 78, 1, 2], 8001));
        let backend = format!("--backend=http://{},model=m", engine.addr());
        let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let over = crate::serving::OnDrop(|| is_over.store(true, Ordering::Relaxed));
            for _ in 0..2 {
                scope.spawn(|| ask_on(addr, &is_over, &answered));
            }
            for round in 1..=5 {
                let mut router =
                    Serving::start(sandbox, addr, &["--kernel=on", "--log-level=error", &backend]);
                wait_until(|| match answered.load(Ordering::Relaxed) {
                    enough if enough >= 50 * round => Ok(()),
                    some => Err(format!("{some} answers")),
                });
                router.kill();
            }
            drop(over);
        });
        wait_load(sandbox, |row| (row.conns, row.awaiting, row.streaming, row.workers) == (0, 0, 0, [0; 16]));
        let row = load(sandbox);
        assert_eq!(row.opened, row.closed);
        // A connection whose request never came is none to the engine.
        let connections = engine.received().iter().map(|r| r.connection + 1).max().unwrap() as u64;
        assert!((connections..=connections + 20).contains(&row.opened), "{connections}, {row:?}");
        assert!(View::open(&sandbox.pin_dir()).unwrap().workers().is_empty());
    });
}
