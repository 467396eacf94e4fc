//! A router is killed in mid-traffic, again and again: nothing of it stays counted, and how long that takes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use router_tests::backend::{Backend, Exchange, Received, Then};
use router_tests::client::Client;
use router_tests::wait;
use router_user::account::Account;
use router_user::account::view::View;

use crate::program::{Serve, completion};
use crate::router_process::is_built;
use crate::sandbox::{is_long, name, run};
use crate::world::{account, register, wait_row};

const CLIENTS: usize = 8;

/// Every second request is answered at once, the others stream for a while.
fn engine(request: &Received, exchange: &mut Exchange) -> Then {
    if request.body.windows(6).any(|text| text == b"stream") {
        exchange.start_stream();
        for _ in 0..20 {
            exchange.chunk("data: {}\n\n");
            std::thread::sleep(Duration::from_millis(1));
        }
        return exchange.end_stream();
    }
    exchange.answer("200 OK", "{}")
}

/// Requests on one connection until the router is gone.
fn client(router: SocketAddr, seed: usize, answered: &AtomicUsize, is_over: &AtomicBool) {
    let mut client = Client::connect(router);
    for n in seed.. {
        client.send(completion(if n % 2 == 0 { "stream" } else { "answer" }));
        if is_over.load(Ordering::Relaxed) || !client.is_answered() {
            return;
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is left: requests and their phases; connections.
fn left(account: &Account, rows: &[router_common::BackendId]) -> (u64, u64) {
    let rows = || rows.iter().map(|&row| account.row(row));
    let requests = |row: router_common::BackendLoad| {
        u64::from(row.workers.iter().sum::<u32>()) + row.awaiting + row.streaming + row.unknown
    };
    (rows().map(requests).sum(), rows().map(|row| row.conns).sum())
}

/// One kill: time until requests are at zero, and connections.
fn kill(serve: Serve, account: &Account, rows: &[router_common::BackendId]) -> [Duration; 2] {
    let mut router = serve.start();
    let (answered, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let addr = router.addr;
    std::thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let (answered, is_over) = (&answered, &is_over);
            scope.spawn(move || client(addr, seed, answered, is_over));
        }
        wait::until("traffic", || {
            answered.load(Ordering::Relaxed) > 4 * CLIENTS && left(account, rows).0 > 2
        });
        let start = Instant::now();
        router.kill();
        is_over.store(true, Ordering::Relaxed);
        let zero = |what: fn((u64, u64)) -> u64| {
            wait::until_busily("nothing is left", || what(left(account, rows)) == 0);
            start.elapsed()
        };
        let times = [zero(|left| left.0), zero(|left| left.1)];
        // Dropped here: the clients' threads end once the process has let go of their sockets.
        drop(router);
        times
    })
}

fn milliseconds(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    format!("p50 {:.2} ms, p90 {:.2} ms, most {:.2} ms", at(0.5), at(0.9), at(1.0))
}

#[test]
fn routers_killed_in_mid_traffic_leave_nothing() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let kills = if is_long() { 100 } else { 10 };
        let account = account(sandbox);
        let engines = [Backend::start(engine), Backend::start(engine)];
        engines.iter().for_each(|engine| engine.say(include_str!("../fixtures/metrics/vllm_idle.txt")));
        let rows = engines.each_ref().map(|engine| register(&account, engine.addr()));
        let (mut requests, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..kills {
            let serve = Serve::new(sandbox, "127.78.5.1", "on", &engines.each_ref());
            let [first, second] = kill(serve, &account, &rows);
            requests.push(first);
            connections.push(second);
            for row in rows {
                wait_row(&account, row, |row| {
                    row.opened == row.closed && row.foreign_conns == 0 && row.q_tokens == row.c_tokens
                });
                assert_eq!(account.row(row).q_tokens, [0; 16]);
            }
        }
        assert_eq!(View::open(&sandbox.pin_dir()).unwrap().workers().len(), 1, "this process's slot");
        let time = milliseconds(&mut requests);
        let word = if requests[kills / 2] < Duration::from_millis(5) { "met" } else { "missed" };
        println!(
            "\nFIGURE {kills} SIGKILLs in mid-traffic: 0 leaked; requests at zero: {time} (p50 under 5 ms: {word})"
        );
        println!("FIGURE the same, connections at zero: {}", milliseconds(&mut connections));
        assert!(requests[kills / 2] < Duration::from_millis(200), "{time}");
    });
}
