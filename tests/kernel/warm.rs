//! A restart with a state has both: what the kernel counted, by its pins, and what the engines hold, by the state.

use std::net::SocketAddr;

use router_tests::backend::Backend as Engine;
use router_tests::client::{Client, ask, post};
use router_user::account::view::View;

use crate::program::holding_engine;
use crate::router_process::is_built;
use crate::sandbox::{name, run};
use crate::serving::Serving;
use crate::world::wait_until;

/// A turn of one session, with all turns before it.
fn turn(turns: usize) -> String {
    let prompt = (0..turns).map(|turn| format!("This is turn {turn}. ").repeat(60)).collect::<String>();
    post("/v1/completions", &serde_json::json!({"model": "m", "prompt": prompt}).to_string())
}

#[test]
fn a_restart_with_a_state_has_the_kernels_counts_and_the_engines_caches() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engines = [holding_engine(), holding_engine()];
        let backends = engines.each_ref().map(|e| format!("--backend=http://{},model=m", e.addr()));
        let state = format!("--state-dir={}", sandbox.bpffs.with_file_name("state").display());
        let args =
            ["--kernel=on", "--debug-headers=true", "--log-level=error", &state, &backends[0], &backends[1]];
        let addr = SocketAddr::from(([127, 78, 1, 9], 8001));
        let opened = || {
            View::open(&sandbox.pin_dir()).unwrap().rows().unwrap().iter().map(|r| r.load.opened).sum::<u64>()
        };

        let first = Serving::start(sandbox, addr, &args);
        let answer = ask(addr, turn(1));
        let went = answer.header("x-unlatch-backend").unwrap().to_owned();
        let before = opened();
        assert!(before >= 1);
        first.stop();

        let second = Serving::start(sandbox, addr, &args);
        assert_eq!(opened(), before, "totals are the kernel's");
        let answer = ask(addr, turn(2));
        let decision = answer.header("x-unlatch-decision").unwrap().to_owned();
        assert_eq!(answer.header("x-unlatch-backend"), Some(&*went), "{decision}");
        assert!(!decision.contains("matched=0;"), "{decision}");

        // A killed router's request is in the kernel's hands, its cache in the state of the start before.
        let mut held = Client::connect(addr);
        held.send(post("/v1/completions", r#"{"model":"m","prompt":"hold"}"#));
        wait_until(|| match engines.iter().flat_map(Engine::received).count() {
            3 => Ok(()),
            others => Err(format!("{others} requests")),
        });
        drop(second);
        let _third = Serving::start(sandbox, addr, &args);
        wait_until(|| {
            match View::open(&sandbox.pin_dir())
                .unwrap()
                .rows()
                .unwrap()
                .iter()
                .map(|r| r.load.workers.iter().sum::<u32>())
                .sum()
            {
                0 => Ok(()),
                left => Err(format!("{left} requests of the killed router")),
            }
        });
        let decision = ask(addr, turn(2)).header("x-unlatch-decision").unwrap().to_owned();
        assert!(!decision.contains("matched=0;"), "{decision}");
    });
}
