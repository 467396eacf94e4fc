//! Several routers without a shared table: each finds what the others placed.

use std::path::Path;

use router_policy::PolicyName;
use router_tests::backend::Backend;
use router_tests::client::{Answer, ask, post};
use router_tests::router::{config, metric, start, wait_idle};
use router_tests::wait;
use router_user::app::RunningRouter;
use router_user::config::Config;

fn telling(engines: &[Backend], dir: &Path) -> Config {
    let addrs: Vec<_> = engines.iter().map(Backend::addr).collect();
    let mut config = config(&addrs);
    config.policy.policy = PolicyName::PrefixCost;
    config.gossip_dir = Some(dir.to_owned());
    config
}

fn send(router: &RunningRouter, prompt: &str) -> Answer {
    let body = serde_json::json!({"model": "m", "prompt": prompt}).to_string();
    let answer = ask(router.addr(), post("/v1/completions", &body));
    assert_eq!(answer.status, 200);
    wait_idle(router);
    answer
}

fn prompt(n: usize) -> String {
    format!("This is turn one of conversation {n}. ").repeat(40)
}

#[test]
fn a_second_turn_at_another_router_goes_where_the_first_went() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("gossip");
    let engines = [Backend::ok(), Backend::ok(), Backend::ok(), Backend::ok()];
    let first = start(telling(&engines, &dir));
    // Its list is in another order: rows mean nothing to others.
    let mut reversed = telling(&engines, &dir);
    reversed.backends.reverse();
    let second = start(reversed);
    for router in [&first, &second] {
        wait::until("they know each other", || metric(router, "unlatch_gossip_peers", "") == 1.0);
    }
    for n in 0..8 {
        let (here, there) = if n % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let heard = metric(there, "unlatch_gossip_heard_total", "");
        let one = send(here, &prompt(n));
        wait::until("it is told", || metric(there, "unlatch_gossip_heard_total", "") > heard);
        let two = send(there, &format!("{} And this is turn two.", prompt(n)));
        assert_eq!(two.header("x-unlatch-backend"), one.header("x-unlatch-backend"), "conversation {n}");
        let decision = two.header("x-unlatch-decision").unwrap();
        assert!(decision.contains("cost_with_prefix"), "{decision}");
    }
    assert_eq!(metric(&second, "unlatch_gossip_lost_total", ""), 0.0);
    assert!(metric(&second, "unlatch_gossip_delay_seconds_count", "") >= 8.0);
}

#[test]
fn no_directory_is_no_reason_not_to_serve() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let engines = [Backend::ok()];
    let router = start(telling(&engines, &file.join("gossip")));
    send(&router, &prompt(1));
    assert_eq!(metric(&router, "unlatch_gossip_peers", ""), 0.0);
}
