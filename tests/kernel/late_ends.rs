//! P04 of the known failures of others, the third run: an engine closes an idle connection, and the network holds that
//! back, so that the router sends a request on it. Whatever then arrives first, nothing is executed twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use router_tests::backend::{Backend, Then};
use router_tests::client::Client;
use router_tests::router::{config, start, wait_idle};
use router_tests::wait;
use router_user::app::RunningRouter;

use crate::sandbox::{name, run};
use crate::wire::{ENGINE, Rule, Wire, is_possible};

const ROUNDS: usize = 10;

/// A router of one worker, over an engine at the other end of a cable.
struct Stage {
    router: RunningRouter,
    /// What was executed how often, by request id.
    executed: Arc<Mutex<BTreeMap<String, u32>>>,
    _engine: Backend,
    wire: Wire,
}

impl Stage {
    /// The engine answers and then closes; `mute` it executes and closes.
    fn set() -> Self {
        let wire = Wire::lay().unwrap();
        let executed = Arc::<Mutex<BTreeMap<String, u32>>>::default();
        let counted = Arc::clone(&executed);
        let engine = wire.engine.run(move || {
            Backend::start_at(
                (ENGINE.parse::<std::net::IpAddr>().unwrap(), 0).into(),
                move |request, exchange| {
                    let id = request.header("x-request-id").unwrap().to_owned();
                    *counted.lock().entry(id.clone()).or_default() += 1;
                    if id.starts_with("mute") {
                        return Then::Close;
                    }
                    exchange.answer("200 OK", "{}");
                    if id.starts_with("last") { Then::Close } else { Then::KeepAlive }
                },
            )
        });
        let mut config = config(&[engine.addr()]);
        config.workers = 1;
        config.limits.idle_conn_age_max = std::time::Duration::from_secs(3600);
        Self { router: start(config), executed, _engine: engine, wire }
    }

    /// Asks; the status, and how often it was executed.
    fn ask(&self, client: &mut Client, id: &str) -> (u16, u32) {
        let body = r#"{"model":"m","prompt":"x"}"#;
        client.send(format!(
            "POST /v1/completions HTTP/1.1\r\nhost: h\r\nx-request-id: {id}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let status = client.answer().status;
        wait_idle(&self.router);
        (status, self.executed.lock().get(id).copied().unwrap_or_default())
    }
}

/// Asks just after the engine closed, under a rule of the network: what became of it, each time, and how many of the
/// requests came upon the closed connection.
fn ask_late(rule: Rule) -> (Vec<(u16, u32)>, usize) {
    let stage = Stage::set();
    let mut client = Client::connect(stage.router.addr());
    let mut ends = Vec::new();
    for i in 0..ROUNDS {
        stage.wire.set(rule);
        assert_eq!(stage.ask(&mut client, &format!("last-{i}")), (200, 1));
        wait::until("the engine closes", || stage.wire.has_held());
        ends.push(stage.ask(&mut client, &format!("late-{i}")));
        stage.wire.set(Rule::Pass);
        // Whatever is left of the connection is over before the next round.
        assert_eq!(stage.ask(&mut client, &format!("between-{i}")).1, 1);
    }
    let resets = stage.wire.resets();
    println!("{rule:?}: {ends:?}, {resets} resets");
    (ends, resets)
}

#[test]
fn p04_an_end_that_the_network_holds_back_fails_nothing() {
    if !is_possible(name!()) {
        return;
    }
    run(name!(), |_| {
        let (ends, resets) = ask_late(Rule::HoldUntilReset);
        assert!(resets >= ROUNDS, "{resets} requests met the closed connection");
        assert_eq!(ends, [(200, 1); ROUNDS]);
    });
}

#[test]
fn p04_an_end_that_a_reset_overtakes_or_that_is_lost_is_never_a_second_execution() {
    if !is_possible(name!()) {
        return;
    }
    run(name!(), |_| {
        for rule in [Rule::LetResetOvertake, Rule::Lose] {
            let (ends, resets) = ask_late(rule);
            assert!(resets >= ROUNDS, "{resets} requests met the closed connection");
            assert!(ends.iter().all(|end| [(200, 1), (502, 0)].contains(end)), "{rule:?}: {ends:?}");
        }
    });
}

#[test]
fn p04_what_was_executed_before_the_end_is_an_error_though_no_acknowledgement_came() {
    if !is_possible(name!()) {
        return;
    }
    run(name!(), |_| {
        let stage = Stage::set();
        let mut client = Client::connect(stage.router.addr());
        for i in 0..ROUNDS {
            assert_eq!(stage.ask(&mut client, &format!("kept-{i}")), (200, 1));
            stage.wire.set(Rule::LoseAcks);
            assert_eq!(stage.ask(&mut client, &format!("mute-{i}")), (502, 1));
            stage.wire.set(Rule::Pass);
        }
    });
}
