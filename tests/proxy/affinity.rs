//! Requests stay where their prompt is: from the second one on, under every name of its model, and only then.

use std::time::Duration;

use router_policy::{PolicyConfig, PolicyName};
use router_tests::backend::Backend;
use router_tests::client::{Answer, ask, post};
use router_tests::router::{backend, config, metric, start, wait_idle};
use router_user::app::RunningRouter;

fn send(router: &RunningRouter, body: &serde_json::Value) -> Answer {
    let answer = ask(router.addr(), post("/v1/completions", &body.to_string()));
    assert_eq!(answer.status, 200);
    wait_idle(router);
    answer
}

/// R04. The requests are 2 ms apart instead of 200, and the one before has ended.
#[test]
fn r04_a_least_match_does_not_keep_the_index_empty() {
    let engines = ["a", "b"].map(|name| Backend::start(move |_, exchange| exchange.answer("200 OK", name)));
    let mut config = config(&engines.each_ref().map(Backend::addr));
    config.policy = PolicyConfig {
        policy: PolicyName::PrefixThreshold,
        prefix_min_match: 4096,
        scrape_interval: config.policy.scrape_interval,
        ..PolicyConfig::default()
    };
    let router = start(config);
    for n in 0..50 {
        let prompt = &format!("{n:02} is the number of this prompt. ").repeat(300)[..8192];
        let went = [(); 3].map(|()| {
            let answer = send(&router, &serde_json::json!({"model": "m", "prompt": prompt}));
            std::thread::sleep(Duration::from_millis(2));
            answer.text()
        });
        assert!(went[1] == went[0] && went[2] == went[0], "prompt {n}: {went:?}");
    }
    let decisions = |reason| metric(&router, "unlatch_decisions_total", &format!("reason=\"{reason}\""));
    assert_eq!(decisions("prefix_match"), 100.0);
    assert_eq!(decisions("below_threshold_least_in_flight"), 50.0);
    assert!(engines.iter().all(|engine| engine.received().len() >= 30), "the first of each spreads");
}

/// Prompt tokens that the router believed cached, from its answer.
fn matched(answer: &Answer) -> u64 {
    let decision = answer.header("x-unlatch-decision").unwrap();
    let (_, rest) = decision.split_once("matched=").unwrap();
    rest.split(';').next().unwrap().parse().unwrap()
}

#[test]
fn an_alias_finds_what_its_model_left_and_nothing_else_does() {
    let engines = [Backend::ok(), Backend::ok(), Backend::ok()];
    let mut config = config(&engines.each_ref().map(Backend::addr));
    config.policy.policy = PolicyName::PrefixCost;
    for (at, (model, aliases)) in
        [("m", ["fast", "both"]), ("m", ["fast", "both"]), ("big", ["large", "both"])].into_iter().enumerate()
    {
        config.backends[at] = backend(engines[at].addr());
        config.backends[at].spec.model = Some(model.into());
        config.backends[at].spec.aliases = aliases.map(str::to_owned).into();
    }
    let router = start(config);
    let body = |model: &str| serde_json::json!({"model": model, "prompt": "The same prompt. ".repeat(100)});
    let with = |mut body: serde_json::Value, key: &str| {
        body[key] = "x".into();
        body
    };
    let first = send(&router, &body("m"));
    assert_eq!(matched(&first), 0);
    for (again, model) in [(send(&router, &body("fast")), "fast"), (send(&router, &body("m")), "m")] {
        assert!(matched(&again) >= 384, "{model}: {} of 1,700 characters in tokens", matched(&again));
        assert_eq!(again.header("x-unlatch-backend"), first.header("x-unlatch-backend"), "{model}");
    }
    for other in [
        body("big"),
        with(body("m"), "lora_path"),
        with(body("fast"), "cache_salt"),
        // Two models' alias may mean either.
        body("both"),
    ] {
        assert_eq!(matched(&send(&router, &other)), 0, "{other}");
    }
    assert!(matched(&send(&router, &body("large"))) >= 384, "the alias of the other model finds that one's");
    assert!(matched(&send(&router, &with(body("m"), "cache_salt"))) >= 384, "the salt is the model's, too");
}
