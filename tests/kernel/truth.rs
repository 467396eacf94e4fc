//! The kernel's phases beside the truth, sampled every millisecond while many connections are at work.
//!
//! One thread drives both ends of a connection, so it knows where its request is. It sends and notes under a lock
//! that the sampler takes too: what is compared is of one moment.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use router_user::account::local::Local;

use crate::agent::options;
use crate::agent_tcx::at_device;
use crate::hosts::{CLIENTS, DEVICE, connect_hosts, own_network};
use crate::sandbox::{name, run};
use crate::tcx::{at_devices, beyond};
use crate::world::{Backend, account, wait_until};

const SAMPLES: usize = 1000;

/// Requests that are where.
#[derive(Clone, Copy, Debug, Default)]
struct Truth {
    awaiting: u64,
    streaming: u64,
    sent: u64,
}

/// How an answer is cut into segments; the first begins it, the last ends it.
fn answers() -> [Vec<Vec<u8>>; 4] {
    let chunked = "HTTP/1.1 200 OK\r\nserver: mock\r\ntransfer-encoding: chunked\r\n\r\n";
    let event = "e\r\ndata: {\"a\":1}\n\r\n";
    let long = ["HTTP/1.1 200 OK\r\ncontent-length: 50000\r\n\r\n", &"x".repeat(10_000)].concat();
    let texts: [Vec<String>; 4] = [
        [chunked, event, event, event, "0\r\n\r\n"].map(str::to_owned).into(),
        [chunked.to_owned() + event, event.to_owned(), event.to_owned() + "0\r\n\r\n"].into(),
        [long, "x".repeat(20_000), "x".repeat(20_000)].into(),
        ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_owned()].into(),
    ];
    texts.map(|segments| segments.into_iter().map(String::into_bytes).collect())
}

/// Requests on one connection, one after another, until `stop`.
fn drive(mut ours: TcpStream, mut theirs: TcpStream, seed: usize, truth: &Mutex<Truth>, stop: &AtomicBool) {
    let request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: 2\r\n\r\n{}";
    let pause = |ms: usize| std::thread::sleep(Duration::from_millis(ms as u64));
    for answer in answers().iter().cycle().skip(seed) {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let segment = |from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8], note: &dyn Fn(&mut Truth)| {
            let mut truth = truth.lock().unwrap();
            from.write_all(bytes).unwrap();
            note(&mut truth);
            drop(truth);
            to.read_exact(&mut vec![0; bytes.len()]).unwrap();
        };
        segment(&mut ours, &mut theirs, request, &|truth| {
            truth.awaiting += 1;
            truth.sent += 1;
        });
        pause(5 + seed % 7);
        for (n, bytes) in answer.iter().enumerate() {
            segment(&mut theirs, &mut ours, bytes, &|truth| {
                if n == 0 {
                    truth.awaiting -= 1;
                    truth.streaming += 1;
                }
                if n + 1 == answer.len() {
                    truth.streaming -= 1;
                }
            });
            pause(2 + seed % 3);
        }
    }
}

/// From which side the kernel looks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Router,
    Engine,
    Loopback,
    Cable,
    EngineLoopback,
}

fn check(name: &'static str, side: Side, connections: usize) {
    run(name, |sandbox| {
        let (account, backend, _other_host) = match side {
            Side::Router | Side::Engine => {
                let account = account(sandbox);
                let backend = Backend::new(&account, "127.0.0.1");
                (account, backend, None)
            }
            Side::Loopback | Side::EngineLoopback => {
                own_network().unwrap();
                let account = at_devices(sandbox, &["lo"]);
                let backend = Backend::new(&account, "127.0.0.1");
                (account, backend, None)
            }
            Side::Cable => {
                let hosts = connect_hosts().unwrap();
                let account = at_devices(sandbox, &[DEVICE]);
                let backend = beyond(&hosts, &account, CLIENTS[0]);
                (account, backend, Some(hosts))
            }
        };
        let port = [backend.addr().port()];
        let agent = match side {
            Side::Engine => Some(Local::open(&options(sandbox, &port)).unwrap()),
            Side::EngineLoopback => Some(Local::open(&at_device(sandbox, "lo", &port)).unwrap()),
            _ => None,
        };
        let row = || agent.as_ref().map_or_else(|| account.row(backend.id), |agent| agent.rows()[0].load);
        let (truth, stop) = (Mutex::new(Truth::default()), AtomicBool::new(false));
        let (mut equal, mut error, mut busy) = (0, 0, 0);
        std::thread::scope(|scope| {
            for seed in 0..connections {
                let (ours, theirs) = backend.connect();
                for end in [&ours, &theirs] {
                    end.set_nodelay(true).unwrap();
                }
                let (truth, stop) = (&truth, &stop);
                scope.spawn(move || drive(ours, theirs, seed, truth, stop));
            }
            let mut next = Instant::now();
            for _ in 0..SAMPLES {
                next += Duration::from_millis(1);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                let truth = truth.lock().unwrap();
                let row = row();
                let off = row.awaiting.abs_diff(truth.awaiting) + row.streaming.abs_diff(truth.streaming);
                equal += usize::from(off == 0);
                error += off;
                busy += usize::from(truth.awaiting > 0 && truth.streaming > 0);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let share = equal as f64 / SAMPLES as f64;
        let mean_error = error as f64 / SAMPLES as f64;
        println!("{connections} connections: {:.1} % equal, mean error {mean_error:.4}", share * 100.0);
        assert!(busy > SAMPLES / 2, "the truth must be worth comparing: {busy} samples");
        assert!(share >= 0.99, "{equal} of {SAMPLES} samples were equal");
        assert!(mean_error <= 0.01, "mean error {mean_error}");
        let sent = truth.lock().unwrap().sent;
        wait_until(|| match row() {
            row if (row.awaiting, row.streaming, row.ttfb_count) == (0, 0, sent) => Ok(()),
            row => Err(format!("{row:?} after {sent} requests")),
        });
    });
}

#[test]
fn sixteen_connections_agree_with_the_truth() {
    check(name!(), Side::Router, 16);
}

#[test]
fn sixty_four_connections_agree_with_the_truth() {
    check(name!(), Side::Router, 64);
}

#[test]
fn sixteen_connections_agree_with_the_truth_at_lo() {
    check(name!(), Side::Loopback, 16);
}

#[test]
fn sixty_four_connections_agree_with_the_truth_at_lo() {
    check(name!(), Side::Loopback, 64);
}

#[test]
fn sixteen_connections_agree_with_the_truth_at_lo_of_the_engines_host() {
    check(name!(), Side::EngineLoopback, 16);
}

#[test]
fn sixteen_connections_agree_with_the_truth_at_a_cable() {
    check(name!(), Side::Cable, 16);
}

#[test]
fn sixteen_connections_agree_with_the_truth_on_the_engines_host() {
    check(name!(), Side::Engine, 16);
}

#[test]
fn sixty_four_connections_agree_with_the_truth_on_the_engines_host() {
    check(name!(), Side::Engine, 64);
}
