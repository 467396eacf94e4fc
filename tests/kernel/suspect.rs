//! Signs of engines that stall or die: one that is stopped, one out of reach, one that reads nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use router_policy::{BackendId, Nanos};
use router_tests::backend::Backend as Engine;
use router_tests::client::{ask, chat};
use router_tests::router;
use router_user::account::{Account, Role, Sign, Suspicion};
use router_user::clock;
use router_user::config::{Config, KernelConfig, KernelMode};
use rustix::process::Signal;

use crate::agent::REQUEST;
use crate::commands::{output, unlatch};
use crate::hosts::{connect_hosts, ip};
use crate::sandbox::{name, run, say, wait_until_finished};
use crate::world::{Backend, account, connect_marked_to, register, wait_row, wait_until};

/// What the row of a backend says, when others answered just now.
fn sign(account: &Account, id: BackendId) -> Option<Sign> {
    let now = clock::now();
    let row = account.kernel_row(id).unwrap();
    Suspicion::of(&row, now, now, Duration::from_secs(30)).map(|suspicion| suspicion.sign)
}

#[track_caller]
fn wait_sign(account: &Account, id: BackendId, wanted: Option<Sign>) {
    wait_until(|| match sign(account, id) {
        found if found == wanted => Ok(()),
        found => Err(format!("{found:?}; {:?}", account.row(id))),
    });
}

#[test]
fn a_stopped_engine_is_suspected_while_another_answers_and_until_it_does() {
    run(name!(), |sandbox| {
        match sandbox.step() {
            Some("engine") => {
                let engine = Engine::ok();
                say(engine.addr());
                return wait_until_finished();
            }
            Some(line) => return unlatch(sandbox, line),
            None => {}
        }
        let mut stopping = sandbox.helper("engine");
        let addr = stopping.hears().parse().unwrap();
        let other = Engine::ok();
        let router = router::start(Config {
            kernel: KernelConfig {
                mode: KernelMode::On,
                pin_dir: sandbox.pin_dir(),
                suspect_after: Duration::from_millis(300),
                ..KernelConfig::default()
            },
            ..router::config(&[addr, other.addr()])
        });
        let front = router.addr();
        let status = || -> serde_json::Value {
            let answer = ask(router.admin_addr(), "GET /status HTTP/1.1\r\nhost: h\r\n\r\n");
            serde_json::from_str(&answer.text()).unwrap()
        };
        let suspected = |row: usize| status()["backends"][row]["suspect"].clone();
        stopping.signal(Signal::STOP);
        std::thread::scope(|scope| {
            // One of two goes to each.
            let waiting: Vec<_> = (0..2).map(|_| scope.spawn(move || ask(front, chat()).status)).collect();
            wait_until(|| match status()["backends"][0]["kernel"]["awaiting"].as_u64() {
                Some(1) => Ok(()),
                awaiting => Err(format!("{awaiting:?} awaiting")),
            });
            wait_until(|| {
                assert_eq!(ask(front, chat()).status, 200, "the other answers");
                match suspected(0) {
                    found if found["sign"] == "silent" => Ok(()),
                    found => Err(format!("{found}: {}", status())),
                }
            });
            let why = suspected(0)["why"].as_str().unwrap().to_owned();
            assert!(
                why.starts_with("1 requests without a byte for ") && why.ends_with("while others answer"),
                "{why}"
            );
            assert!(suspected(1).is_null(), "{}", status());
            let label = format!(r#"backend="http://{addr}",sign="silent""#);
            assert_eq!(router::metric(&router, "unlatch_backend_suspect", &label), 1.0);
            assert_eq!(
                router::metric(&router, "unlatch_backend_suspect", ""),
                1.0,
                "one sign of one backend"
            );
            let (text, code) = output(sandbox, "status --suspect-after 300ms");
            assert!(text.contains(&format!("suspect  http://{addr}: 1 requests without a byte")), "{text}");
            assert_eq!((code, text.matches("suspect ").count()), (0, 1), "{text}");
            let (text, _) = output(sandbox, "status --suspect-after 1h --json");
            assert!(text.contains(r#""suspect": null"#) && !text.contains("without a byte"), "{text}");

            stopping.signal(Signal::CONT);
            assert!(waiting.into_iter().all(|client| client.join().unwrap() == 200));
        });
        wait_until(|| if suspected(0).is_null() { Ok(()) } else { Err(suspected(0).to_string()) });
        drop(router);
    });
}

#[test]
fn an_engine_out_of_reach_is_suspected_until_it_answers() {
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let listener = clients.run(|| TcpListener::bind("10.9.0.2:0").unwrap());
        let engine = listener.local_addr().unwrap();
        let account = account(sandbox);
        let id = register(&account, engine);
        // Behind a dead cable even the kernel sends nothing again; behind a path that swallows the answers it does.
        let cuts: [(&[&str], &[&str], u64); 2] = [
            (&["link", "set", "client0", "down"], &["link", "set", "client0", "up"], 0),
            (&["route", "add", "blackhole", "10.9.0.1"], &["route", "del", "blackhole", "10.9.0.1"], 1),
        ];
        // One connection each, open to the end: of one that was cut the kernel thinks that its path is slow.
        let mut open = Vec::new();
        for (cut, mend, retransmits) in cuts {
            let mut ours = connect_marked_to(&account, id, engine, Role::Router);
            ours.set_nonblocking(false).unwrap();
            let mut theirs = listener.accept().unwrap().0;
            assert_eq!(sign(&account, id), None);
            clients.run(|| ip(cut));
            ours.write_all(REQUEST).unwrap();
            // The kernel tries again after 0.2 s, and after 0.4 s more it is sure enough.
            wait_sign(&account, id, Some(Sign::Unreachable));
            assert!(account.row(id).retransmits >= retransmits, "{:?}", account.row(id));
            clients.run(|| ip(mend));
            theirs.read_exact(&mut [0; REQUEST.len()]).unwrap();
            theirs.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            wait_sign(&account, id, None);
            open.push((ours, theirs));
            wait_row(&account, id, |row| (row.conns, row.awaiting) == (open.len() as u64, 0));
        }
    });
}

#[test]
fn an_engine_that_reads_nothing_is_suspected_until_it_answers() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, mut theirs) = backend.connect();
        ours.write_all(b"POST / HTTP/1.1\r\ncontent-length: 1000000000\r\n\r\n").unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut sent = 0;
        let full = loop {
            match ours.write(&[b'x'; 65536]) {
                Ok(bytes) => sent += bytes,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        wait_sign(&account, backend.id, Some(Sign::NotReading));
        assert!(account.row(backend.id).zero_windows >= 1);
        // Read, it answers before the end, as servers do that refuse.
        theirs.read_exact(&mut vec![0; sent]).unwrap();
        theirs.write_all(b"HTTP/1.1 413 No\r\ncontent-length: 0\r\n\r\n").unwrap();
        wait_sign(&account, backend.id, None);
    });
}

#[test]
fn a_reset_is_a_sign_until_the_engine_answers() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, theirs) = backend.connect();
        ours.write_all(REQUEST).unwrap();
        assert_eq!(sign(&account, backend.id), None);
        // Closed with something unread, a connection is reset.
        wait_row(&account, backend.id, |row| row.awaiting == 1);
        drop(theirs);
        wait_sign(&account, backend.id, Some(Sign::Reset));
        let (mut ours, mut theirs) = backend.connect();
        ours.write_all(REQUEST).unwrap();
        theirs.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        wait_sign(&account, backend.id, None);
        assert!(
            account.row(backend.id).asked_ns > 0 && Nanos(account.row(backend.id).asked_ns) < clock::now()
        );
    });
}
