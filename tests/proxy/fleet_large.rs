//! The fleet is read anew while a thousand streams go on: none fails, and picks are as quick as before.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use router_policy::{Outcome, RequestShape, Usage};
use router_tests::backend::Backend;
use router_tests::client::{Client, chat};
use router_tests::router::{backend, config, start, wait_idle};
use router_tests::wait::{self, Gate};
use router_user::app::RunningRouter;
use router_user::app::fleet::CONFIGURATION;
use router_user::backends::Member;

const BACKENDS: u8 = 255;
const STREAMS: usize = 1000;
const RELOADS: usize = 20;

/// All at one port of this host: the whole of 127.0.0.0/8 is ours.
fn addresses(port: u16) -> Vec<SocketAddr> {
    (1..=BACKENDS).map(|n| (Ipv4Addr::new(127, 80, 1, n), port).into()).collect()
}

fn members(addrs: &[SocketAddr], max_in_flight: u32) -> Vec<Member> {
    let member = |&addr: &SocketAddr| {
        let mut config = backend(addr);
        config.spec.max_in_flight = Some(max_in_flight);
        Member { config, addr }
    };
    addrs.iter().map(member).collect()
}

/// What a pick takes at the 99th percentile, while something is done.
fn picks(router: &RunningRouter, during: impl FnOnce() + Send) -> Duration {
    let mut took = Vec::new();
    std::thread::scope(|scope| {
        let done = scope.spawn(during);
        while !done.is_finished() {
            let before = Instant::now();
            let picked = router.ledger().pick(&RequestShape::unshaped(), &[]);
            took.push(before.elapsed());
            let (_, guard) = picked.unwrap();
            guard.finish(Outcome::NeverSent, &Usage::default());
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

#[test]
fn reloads_of_255_backends_under_a_thousand_streams_fail_none() {
    let gate = Gate::default();
    let at_engine = gate.clone();
    let engine = Backend::start_at(([0, 0, 0, 0], 0).into(), move |_, exchange| {
        exchange.start_stream();
        exchange.chunk("data: 0\n\n");
        at_engine.wait_within(Duration::from_secs(60));
        exchange.chunk("data: 1\n\n");
        exchange.end_stream()
    });
    let all = addresses(engine.addr().port());
    let router = start(config(&all));
    let streams: Vec<_> = (0..STREAMS)
        .map(|_| {
            let mut client = Client::connect(router.addr());
            client.send(chat());
            let head = client.head();
            assert_eq!(client.chunk().as_deref(), Some("data: 0\n\n"));
            (client, head)
        })
        .collect();
    let quiet = picks(&router, || std::thread::sleep(Duration::from_secs(1)));
    let fleet = std::sync::Arc::clone(router.fleet());
    let reloading = picks(&router, || {
        for n in 0..RELOADS {
            // A quarter leaves and comes back, all are configured anew.
            let kept = if n % 2 == 0 { all.len() * 3 / 4 } else { all.len() };
            let change = fleet.set(CONFIGURATION, members(&all[..kept], 1000 + n as u32));
            assert!(change.refused.is_empty(), "{change:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    println!("p99 of a pick: {quiet:?} before, {reloading:?} during {RELOADS} reloads");
    // Threads wait for a core on a busy machine; a lock held for a whole reload would take far longer.
    assert!(
        reloading < quiet * 3 + Duration::from_millis(2),
        "{quiet:?} before, {reloading:?} during reloads"
    );
    gate.open();
    for (mut client, head) in streams {
        let rest = client.body(head);
        assert!(rest.is_complete && rest.text() == "data: 1\n\n", "{rest:?}");
    }
    wait_idle(&router);
    router.fleet().set(CONFIGURATION, Vec::new());
    wait::until("all leave", || router.registry().all().is_empty());
}
