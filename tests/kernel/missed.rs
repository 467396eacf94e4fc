//! An engine that dies while nobody waits for it: only the kernel sees its connections end.

use std::time::Instant;

use router_tests::backend::Backend as Engine;
use router_tests::client::{ask, chat};
use router_tests::router;
use router_user::config::{Config, KernelConfig, KernelMode};

use crate::sandbox::{name, run, say, wait_until_finished};
use crate::world::wait_until;

/// Engines are asked once an hour, and no request is on its way: without the kernel's word nobody would notice.
#[test]
fn an_idle_engine_that_is_killed_is_missed_before_a_request_meets_its_death() {
    run(name!(), |sandbox| {
        if sandbox.step() == Some("engine") {
            let engine = Engine::ok();
            say(engine.addr());
            return wait_until_finished();
        }
        let mut mortal = sandbox.helper("engine");
        let addr = mortal.hears().parse().unwrap();
        let other = Engine::ok();
        let router = router::start(Config {
            kernel: KernelConfig {
                mode: KernelMode::On,
                pin_dir: sandbox.pin_dir(),
                ..KernelConfig::default()
            },
            ..router::config(&[addr, other.addr()])
        });
        let id = router.ledger().backends()[0];
        let conns = || router.account().kernel_row(id).map_or(0, |row| row.load.conns);
        // An idle connection is kept there, for four seconds.
        wait_until(|| {
            assert_eq!(ask(router.addr(), chat()).status, 200);
            if conns() > 0 { Ok(()) } else { Err("no connection is kept".to_owned()) }
        });
        // Looked at in between.
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(conns() > 0);
        mortal.kill();
        let killed = Instant::now();
        wait_until(|| match router.ledger().snapshot(id).unwrap().ready {
            false => Ok(()),
            true => Err(format!("it is ready; {} connections", conns())),
        });
        println!("missed after {:?}", killed.elapsed());
        assert_eq!(router::status(&router, 0)["state"], "backed_off");
        let retries = router::metric(&router, "unlatch_retries_total", "connect_failed");
        assert_eq!(retries, 0.0, "no request met its death");
    });
}
