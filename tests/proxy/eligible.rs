//! A backend that may not get a request has no say in where it goes.

use std::time::Duration;

use router_policy::{PolicyConfig, PolicyName, RequestShape};
use router_tests::backend::{Backend, Exchange, Received};
use router_tests::client::{Client, ask, post};
use router_tests::router::{backend, config, in_flight, start, wait_idle};
use router_tests::wait::{self, Gate};
use router_user::app::RunningRouter;
use router_user::config::Config;

const PATH: &str = "/v1/completions";

/// Why the third backend is no candidate.
#[derive(Clone, Copy, Debug)]
enum Ineligible {
    Dead,
    Full,
    OtherModel,
    Draining,
}

fn body(stream: bool, text: &str, bytes: usize) -> String {
    let prompt = &text.repeat(bytes / text.len() + 1)[..bytes];
    serde_json::json!({"model": "m", "stream": stream, "prompt": prompt}).to_string()
}

/// An engine that holds its streams until the gate opens and answers all else with its row.
fn engine(row: usize, gate: &Gate) -> Backend {
    let gate = gate.clone();
    Backend::start(move |request: &Received, exchange: &mut Exchange| {
        let request: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        if request["stream"] != true {
            return exchange.answer("200 OK", &row.to_string());
        }
        exchange.start_stream();
        exchange.chunk("data: 0\n\n");
        gate.wait();
        exchange.end_stream()
    })
}

fn configured(engines: &[Backend; 3], why: Ineligible) -> Config {
    let mut config = config(&engines.each_ref().map(Backend::addr));
    let scrape_interval = config.policy.scrape_interval;
    config.policy =
        PolicyConfig { policy: PolicyName::PrefixCost, scrape_interval, ..PolicyConfig::default() };
    config.backends[2] = backend(engines[2].addr());
    let c = &mut config.backends[2].spec;
    match why {
        Ineligible::Dead => {
            (config.limits.backoff_min, config.limits.backoff_max) =
                (Duration::from_secs(3600), Duration::from_secs(3600));
        }
        Ineligible::Full => c.max_in_flight = Some(1),
        Ineligible::OtherModel => c.model = Some("other".into()),
        Ineligible::Draining => {}
    }
    config
}

/// Opens ten streams and sees each begin.
fn ten_streams(router: &RunningRouter) -> Vec<Client> {
    let open = |n| {
        let mut client = Client::connect(router.addr());
        client.send(post(PATH, &body(true, &format!("{n} unrelated "), 4000)));
        client.head();
        assert_eq!(client.chunk().as_deref(), Some("data: 0\n\n"));
        client
    };
    (0..10).map(open).collect()
}

/// Sends requests until one has met the third backend, which is dead.
fn find_dead(router: &RunningRouter) {
    let c = router.ledger().backends()[2];
    let mut n = 0;
    wait::until("a request meets the dead backend", || {
        n += 1;
        assert_eq!(ask(router.addr(), post(PATH, &body(false, &format!("{n} find out "), 600))).status, 200);
        !router.ledger().snapshot(c).unwrap().ready
    });
    wait_idle(router);
}

/// R09.
#[test]
fn r09_a_backend_that_is_no_candidate_changes_nothing_among_the_others() {
    for why in [Ineligible::Dead, Ineligible::Full, Ineligible::OtherModel, Ineligible::Draining] {
        let gate = Gate::default();
        let engines: [Backend; 3] = std::array::from_fn(|row| engine(row, &gate));
        let router = start(configured(&engines, why));
        let [_a, _b, c] = engines;
        let c_id = router.ledger().backends()[2];
        let (mut dead, mut alive, mut fills) = (None, None, None);
        match why {
            Ineligible::Dead => {
                c.wait_probed();
                dead = Some(c.die());
                find_dead(&router);
            }
            Ineligible::Full => {
                alive = Some(c);
                fills = Some(router.ledger().pick_forced(&RequestShape::unshaped(), c_id).unwrap());
            }
            Ineligible::OtherModel => alive = Some(c),
            Ineligible::Draining => {
                alive = Some(c);
                router.fleet().drain(c_id, None).unwrap();
            }
        }
        let at_c = u32::from(fills.is_some());
        let streams = ten_streams(&router);
        assert_eq!([0, 1, 2].map(|row| in_flight(&router, row)), [5, 5, at_c], "{why:?}");

        // The first settles where its prompt is; the ten of the case follow.
        let went: Vec<_> = (0..11)
            .map(|_| {
                let answer = ask(router.addr(), post(PATH, &body(false, "P ", 8000)));
                assert_eq!(answer.status, 200);
                wait::until("it is no longer counted", || router.in_flight() == 10 + at_c);
                answer.text()
            })
            .collect();
        assert!(went[0] != "2" && went.iter().all(|row| *row == went[0]), "{why:?}: {went:?}");

        gate.open();
        for mut client in streams {
            assert_eq!(client.chunk(), None);
        }
        drop(fills);
        wait_idle(&router);
        drop((dead, alive));
    }
}
