//! `--compat vllm`, `--metrics-compat vllm` and what else people who come from the vLLM production stack rely on.

use std::time::Duration;

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat, post};
use router_tests::router::{config, metric, start, status, wait_idle};
use router_tests::wait::{self, Gate};
use router_user::config::{Compat, Config, ModelType};

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n")
}

fn compat(engines: &[&Backend]) -> Config {
    let addrs: Vec<_> = engines.iter().map(|engine| engine.addr()).collect();
    Config { compat: Some(Compat::Vllm), metrics_compat: Some(Compat::Vllm), ..config(&addrs) }
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn engines_are_listed_with_the_ids_that_status_has() {
    let (a, b) = (Backend::ok(), Backend::ok());
    let mut config = compat(&[&a, &b]);
    config.backends[0].spec.aliases = vec!["fast".into()];
    let router = start(config);
    let answer = ask(router.addr(), get("/engines"));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let engines = json(&answer.text());
    assert_eq!(engines.as_array().unwrap().len(), 2);
    for row in 0..2 {
        assert_eq!(engines[row]["engine_id"], status(&router, row)["engine_id"]);
        assert!(engines[row]["created"].as_u64().unwrap() > 1_700_000_000);
    }
    assert_ne!(engines[0]["engine_id"], engines[1]["engine_id"]);
    assert_eq!(engines[0]["serving_models"], serde_json::json!(["fast", "m"]));
}

#[test]
fn nothing_of_it_is_there_unasked() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    for path in ["/engines", "/metrics"] {
        assert_eq!(ask(router.addr(), get(path)).status, 404, "{path}");
    }
    let answer = ask(router.addr(), post("/v1/completions?id=nobody&x=1", r#"{"model":"m","prompt":"p"}"#));
    assert_eq!(answer.status, 200, "the query is the engine's");
    assert_eq!(engine.only().line(), "POST /v1/completions?id=nobody&x=1 HTTP/1.1");
    let text = ask(router.admin_addr(), get("/metrics")).text();
    assert!(!text.contains("vllm:"), "{text}");
}

#[test]
fn a_request_goes_to_the_engine_whose_id_it_has_and_to_no_other() {
    let engines = [Backend::ok(), Backend::ok(), Backend::ok()];
    let router = start(compat(&engines.each_ref()));
    let id = status(&router, 1)["engine_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/completions?x=1&id={id}");
    for _ in 0..12 {
        assert_eq!(ask(router.addr(), post(&path, r#"{"model":"m","prompt":"p"}"#)).status, 200);
    }
    assert_eq!(engines.each_ref().map(|e| e.received().len()), [0, 12, 0]);
    assert_eq!(
        engines[1].received()[0].line(),
        "POST /v1/completions?x=1 HTTP/1.1",
        "the pin is the router's"
    );
    for nobody in ["0000000000000000", "b36921ab-6611-58c0-a941-16c51296446b", ""] {
        let answer = ask(router.addr(), post(&format!("/v1/completions?id={nobody}"), r#"{"prompt":"p"}"#));
        assert_eq!(
            (answer.status, &json(&answer.text())["error"]["code"]),
            (404, &"engine_not_found".into())
        );
    }
    let other = ask(router.addr(), post(&path, r#"{"model":"other","prompt":"p"}"#));
    assert_eq!((other.status, &json(&other.text())["error"]["code"]), (404, &"model_not_found".into()));
    let id = router_policy::BackendId::new(1).unwrap();
    router.ledger().ready(id, false);
    let away = ask(router.addr(), post(&path, r#"{"model":"m","prompt":"p"}"#));
    assert_eq!((away.status, &json(&away.text())["error"]["code"]), (503, &"no_backend".into()));
    assert_eq!(engines.each_ref().map(|e| e.received().len()), [0, 12, 0], "others are not asked instead");
    wait_idle(&router);
}

#[test]
fn the_production_stacks_metrics_are_on_the_data_port_with_our_values() {
    let gate = Gate::default();
    let held = gate.clone();
    let busy = Backend::start(move |_, exchange| {
        exchange.start_stream();
        exchange.chunk("data: 0\n\n");
        held.wait();
        exchange.end_stream()
    });
    busy.say("vllm:num_requests_running 1\nvllm:num_requests_waiting 4\n");
    let mut config = compat(&[&busy]);
    config.policy.request_stats_window = Duration::from_secs(64);
    let router = start(config);
    busy.wait_probed();
    let mut client = Client::connect(router.addr());
    client.send(post("/v1/completions", r#"{"model":"m","stream":true,"prompt":"p"}"#));
    client.head();
    wait::until("the stream has begun", || metric(&router, "vllm:num_decoding_requests", "") == 1.0);
    let url = format!("http://{}", busy.addr());
    let text = ask(router.addr(), get("/metrics")).text();
    for line in [
        format!("vllm:num_requests_running{{server=\"{url}\"}} 1.0"),
        format!("vllm:num_prefill_requests{{server=\"{url}\"}} 0.0"),
        format!("vllm:num_decoding_requests{{server=\"{url}\"}} 1.0"),
        format!("vllm:healthy_pods_total{{server=\"{url}\"}} 1.0"),
        format!("vllm:current_qps{{server=\"{url}\"}} 0.015625"),
        "vllm:num_incoming_requests_total{model=\"m\"} 1".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
    for unknown in ["vllm:avg_latency{", "vllm:avg_decoding_length{", "vllm:num_requests_swapped"] {
        assert!(!text.contains(unknown), "{unknown} is not known yet");
    }
    gate.open();
    assert!(client.is_answered() || client.is_closed());
    wait_idle(&router);
    assert!(metric(&router, "vllm:avg_latency", &url) > 0.0);
    assert!(metric(&router, "vllm:avg_decoding_length", &url) > 0.0);
}

/// An engine that knows no name but its own.
fn strict() -> Backend {
    Backend::start(|request, exchange| {
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let knows = body["model"] == "m";
        if knows { exchange.answer("200 OK", "{}") } else { exchange.answer("404 Not Found", "{}") }
    })
}

#[test]
fn an_alias_of_the_router_reaches_the_engine_as_the_models_name() {
    let engine = strict();
    let mut config = config(&[engine.addr()]);
    config.model_aliases = vec![("gpt4".into(), "m".into()), ("lost".into(), "nowhere".into())];
    let router = start(config);
    let body = "{ \"temperature\": 1.50, \"model\":\"gpt4\",\"prompt\":\"gpt4 \\u00e9\" }";
    assert_eq!(ask(router.addr(), post("/v1/completions", body)).status, 200);
    let received = engine.only();
    assert_eq!(String::from_utf8_lossy(&received.body), body.replacen("\"gpt4\"", "\"m\"", 1));
    assert_eq!(received.header("content-length"), Some(&*received.body.len().to_string()));
    let lost = ask(router.addr(), post("/v1/completions", r#"{"model":"lost","prompt":"p"}"#));
    assert_eq!((lost.status, engine.received().len()), (404, 1), "its model is nowhere");
    let models = json(&ask(router.addr(), get("/v1/models")).text());
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["gpt4", "m"]);
}

#[test]
fn a_backends_type_decides_which_paths_it_gets() {
    let (chat, embed) = (Backend::ok(), Backend::ok());
    let mut config = config(&[chat.addr(), embed.addr()]);
    for (backend, types) in config.backends.iter_mut().zip([[ModelType::Chat], [ModelType::Embeddings]]) {
        backend.spec.tasks = ModelType::tasks(&types);
    }
    let router = start(config);
    for (path, is_chat) in [
        ("/v1/chat/completions", true),
        ("/v1/completions", true),
        ("/v1/messages", true),
        ("/v1/embeddings", false),
        ("/v1/rerank", false),
        ("/score", false),
    ] {
        let before = [chat.received().len(), embed.received().len()];
        for _ in 0..4 {
            assert_eq!(ask(router.addr(), post(path, r#"{"model":"m","input":"x"}"#)).status, 200, "{path}");
        }
        let gained = [chat.received().len() - before[0], embed.received().len() - before[1]];
        assert_eq!(gained, if is_chat { [4, 0] } else { [0, 4] }, "{path}");
    }
    let speech = ask(router.addr(), post("/v1/audio/transcriptions", r#"{"model":"m"}"#));
    assert_eq!(
        (speech.status, &json(&speech.text())["error"]["code"]),
        (404, &"unsupported_by_model".into())
    );
}

#[test]
fn a_request_is_placed_anew_as_often_as_it_may_be() {
    for (reroutes, answered) in [(0, false), (1, false), (2, true)] {
        let (a, b, c) = (Backend::ok(), Backend::ok(), Backend::ok());
        let mut config = config(&[a.addr(), b.addr(), c.addr()]);
        config.policy.policy = router_policy::PolicyName::RoundRobin;
        config.limits.reroutes_max = reroutes;
        (config.limits.backoff_min, config.limits.backoff_max) =
            (Duration::from_secs(3600), Duration::from_secs(3600));
        let router = start(config);
        for engine in [&a, &b, &c] {
            engine.wait_probed();
        }
        let dead = [a.die(), b.die()];
        let answer = ask(router.addr(), chat());
        assert_eq!(answer.status == 200, answered, "{reroutes}: {answer:?}");
        if !answered {
            assert_eq!(json(&answer.text())["error"]["code"], "backends_unreachable", "{reroutes}");
        }
        assert_eq!(c.received().len(), usize::from(answered), "{reroutes}");
        drop(dead);
    }
}
