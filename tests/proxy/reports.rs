//! What engines say of their load, through the whole router: read, shown, and never taken for more than it is. The
//! cases M01 to M09 but for M08.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use router_policy::{PolicyConfig, PolicyName};
use router_tests::backend::{Backend, Exchange, Received, Then};
use router_tests::client::{Client, ask, chat, post};
use router_tests::fixture::metrics;
use router_tests::router::{config, in_flight, metric, start, status, wait_idle};
use router_tests::wait;
use router_user::app::RunningRouter;
use router_user::backends::metrics_text::Engine;
use router_user::config::{Config, Secret};
use serde_json::{Value, json};

/// Asks these engines ten times a second.
fn asking(engines: &[&Backend]) -> Config {
    let mut config = config(&engines.iter().map(|e| e.addr()).collect::<Vec<_>>());
    config.policy.scrape_interval = Duration::from_millis(100);
    config
}

/// An engine whose metrics, at `/m`, are a script's, and that answers all else.
fn with_metrics(metrics: impl Fn(&Received, &mut Exchange) -> Then + Send + Sync + 'static) -> Backend {
    Backend::start(move |request, exchange| match request.line().starts_with("GET /m ") {
        true => metrics(request, exchange),
        false => exchange.answer("200 OK", "{}"),
    })
}

/// Running, waiting and KV use as `/status` shows them.
fn shown(router: &RunningRouter, row: usize) -> [Value; 3] {
    let status = status(router, row);
    ["running", "waiting", "kv_use"].map(|name| status[name]["value"].clone())
}

#[track_caller]
fn wait_shown(router: &RunningRouter, expected: [Value; 3], what: &str) {
    let is_near = |a: &Value, b: &Value| match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() < 1e-9,
        _ => a == b,
    };
    wait::until(what, || shown(router, 0).iter().zip(&expected).all(|(a, b)| is_near(a, b)));
}

/// M01. Each name of the KV gauge; of two the new one.
#[test]
fn m01_every_generation_of_names_says_the_same() {
    let engine = Backend::ok();
    engine.say("vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n");
    let router = start(asking(&[&engine]));
    for name in ["vllm_v0.prom", "vllm_v1_both_names.prom", "vllm_v1_new_name_only.prom"] {
        engine.say("vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n");
        wait_shown(&router, [json!(1), json!(1), Value::Null], "the text between");
        engine.say(&metrics(name));
        wait_shown(&router, [json!(7), json!(3), json!(0.625)], name);
    }
    engine.say(
        &(metrics("vllm_v1_both_names.prom")
            .replace("gpu_cache_usage_perc{", "gpu_cache_usage_perc{x=\"y\",")
            + "vllm:gpu_cache_usage_perc 0.1\n"),
    );
    wait_shown(&router, [json!(7), json!(3), json!(0.625)], "the old name has no say");
    assert_eq!(metric(&router, "unlatch_backend_reported_kv_use", ""), 0.625);
}

/// M02.
#[test]
fn m02_engines_behind_one_address_are_added_up_in_any_order() {
    let text = metrics("vllm_v1_dp2.prom");
    let reversed: Vec<&str> = text.lines().rev().collect();
    for text in [text.clone(), reversed.join("\n")] {
        let engine = Backend::ok();
        engine.say(&text);
        let router = start(asking(&[&engine]));
        // Documented: the mean.
        wait_shown(&router, [json!(14), json!(7), json!(0.525)], &text);
    }
}

/// M03. The router starts anew for each text, as llama.cpp is asked every two seconds only.
#[test]
fn m03_what_is_no_number_is_unknown_and_stops_nothing() {
    let text = metrics("llamacpp_idle_nan.prom");
    for value in ["-nan", "nan", "NaN", "+Inf", "-Inf", "inf", "-1", "1e400", "87.5"] {
        let engine = Backend::ok();
        engine.say(&text.replace("kv_cache_usage_ratio -nan", &format!("kv_cache_usage_ratio {value}")));
        let router = start(asking(&[&engine]));
        wait_shown(&router, [json!(0), json!(0), Value::Null], value);
        assert_eq!(status(&router, 0)["kv_use"]["why"], "malformed", "{value}");
        assert!((0..12).all(|_| ask(router.addr(), chat()).status == 200), "{value}");
    }
}

/// So many requests, in a closed loop of eight, and how many came to each engine.
fn closed_loop(router: SocketAddr, engines: &[&Backend], count: u32) -> Vec<usize> {
    let left = AtomicU32::new(count);
    let next = || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).ok();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(n) = next() {
                    let prompt = format!("{n} unrelated ").repeat(60);
                    let body = json!({"model": "m", "prompt": prompt}).to_string();
                    assert_eq!(ask(router, post("/v1/completions", &body)).status, 200);
                }
            });
        }
    });
    engines.iter().map(|e| e.received().len()).collect()
}

/// An engine that takes 10 ms.
fn slow() -> Backend {
    Backend::start(|_, exchange| {
        std::thread::sleep(Duration::from_millis(10));
        exchange.answer("200 OK", "{}")
    })
}

/// M04; and the same where the first engine's gauges of requests are missing too: what it has nobody knows then, and it
/// is taken to be as busy as the other.
#[test]
fn m04_a_missing_gauge_makes_no_favourite() {
    let llama = metrics("llamacpp_no_kv.prom");
    for policy in [PolicyName::LeastInFlight, PolicyName::PrefixCost] {
        for (text, kv_why, most) in [
            (llama.clone(), "missing", 20),
            (llama.replace("requests_", "reqs_"), "missing", 28),
            ("<html>".to_owned(), "missing", 28),
        ] {
            let engines = [slow(), slow()];
            engines[0].say(&text);
            engines[1].say(&metrics("vllm_v1_new_name_only.prom"));
            let both = [&engines[0], &engines[1]];
            let mut config = asking(&both);
            config.policy =
                PolicyConfig { policy, scrape_interval: Duration::from_secs(60), ..config.policy };
            let router = start(config);
            wait::until("both were asked", || {
                [0, 1].iter().all(|row| status(&router, *row)["report"]["state"] != "never_heard")
            });
            assert_eq!(status(&router, 0)["kv_use"]["why"], kv_why);
            let went = closed_loop(router.addr(), &both, 40);
            assert!(
                went[0] <= most && went.iter().sum::<usize>() == 40,
                "{policy:?}: {went:?} with {text:.40}"
            );
        }
    }
}

/// M05, and of S02 what is about scrapes.
#[test]
fn m05_an_engine_whose_metrics_are_refused_serves_and_the_scrape_key_goes_to_it_alone() {
    let refuses = with_metrics(|_, exchange| exchange.answer("401 Unauthorized", r#"{"error":"no"}"#));
    let wants_key =
        with_metrics(|request, exchange| match request.all("authorization")[..] == ["Bearer scrape-key"] {
            true => exchange.answer("200 OK", &metrics("vllm_v1_new_name_only.prom")),
            false => exchange.answer("401 Unauthorized", "{}"),
        });
    let mut config = asking(&[&refuses, &wants_key]);
    for backend in &mut config.backends {
        backend.metrics.path = Some("/m".to_owned());
    }
    config.backends[1].metrics.key = Some(Secret::new("scrape-key".to_owned()));
    let router = start(config);
    wait::until("the key is used", || shown(&router, 1)[0] == json!(7));
    for _ in 0..40 {
        let with_key = chat().replacen("\r\n\r\n", "\r\nauthorization: Bearer client-key\r\n\r\n", 1);
        assert_eq!(ask(router.addr(), with_key).status, 200);
    }
    let first = status(&router, 0);
    assert_eq!((&first["state"], &first["report"]["state"]), (&json!("ready"), &json!("refused")));
    assert_eq!(first["report"]["problem"], "status 401");
    assert!(
        metric(&router, "unlatch_scrape_failures_total", &format!("{}\",reason=\"refused", refuses.addr()))
            >= 1.0
    );
    assert_eq!(
        metric(&router, "unlatch_backend_report_state", &format!("{}\",state=\"refused", refuses.addr())),
        1.0
    );
    for (engine, key) in [(&refuses, None), (&wants_key, Some("Bearer scrape-key"))] {
        let received = engine.received();
        let (scrapes, requests): (Vec<_>, Vec<_>) =
            received.iter().partition(|r| r.line().starts_with("GET /m "));
        assert!(!requests.is_empty(), "it serves: a monitoring failure is no other");
        assert!(scrapes.iter().all(|r| r.header("authorization") == key), "no client's key, and no other's");
        assert!(requests.iter().all(|r| r.header("authorization") == Some("Bearer client-key")));
    }
}

/// M06, as far as reports go: zeros that cannot be true are unknown, and do not make it the favourite. That an engine
/// that never answers is found out by its silence is no matter of reports.
#[test]
fn m06_zeros_of_an_engine_that_hangs_do_not_attract() {
    let hangs = Backend::start(|_, exchange| exchange.wait_closed());
    let works = slow();
    hangs.say("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n");
    works.say("vllm:num_requests_running 6\nvllm:num_requests_waiting 1\n");
    let router = start(asking(&[&hangs, &works]));
    let mut held: Vec<Client> = (0..6)
        .map(|n| {
            let mut client = Client::connect(router.addr());
            client.send(chat());
            wait::until("it arrives", || hangs.received().len() + works.received().len() > n);
            client
        })
        .collect();
    assert!(in_flight(&router, 0) >= 2, "it looked idle, and nobody knows better yet");
    wait::until("the zeros are not believed", || status(&router, 0)["report"]["state"] == "contradicted");
    assert!(status(&router, 0)["report"]["problem"].as_str().unwrap().contains("nothing runs or waits"));
    assert_eq!(shown(&router, 0), [Value::Null, Value::Null, Value::Null]);
    let before = works.received().len();
    for _ in 0..30 {
        assert_eq!(ask(router.addr(), chat()).status, 200);
    }
    assert_eq!(
        works.received().len(),
        before + 30,
        "what it has of ours counts, beside what the other tells"
    );
    held.clear();
    wait_idle(&router);
    wait::until("zeros are believed again", || status(&router, 0)["report"]["state"] == "known");
}

/// M07.
#[test]
fn m07_legal_but_unusual_texts_are_read() {
    for (name, kind, kv) in [
        ("syntax_legal.prom", "text/plain; version=0.0.4", json!(0.5)),
        (
            "openmetrics_exemplar.prom",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            json!(0.5),
        ),
        ("no_final_newline.prom", "text/plain", json!(0.5)),
    ] {
        let text = metrics(name);
        let engine = with_metrics(move |_, exchange| {
            let head = format!("content-type: {kind}\r\ncontent-length: {}", text.len());
            exchange.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{text}"));
            Then::KeepAlive
        });
        let mut config = asking(&[&engine]);
        config.backends[0].metrics.path = Some("/m".to_owned());
        let router = start(config);
        wait_shown(&router, [json!(4), json!(2), kv], name);
    }
}

/// M09. Each by its text and as configured; Triton's metrics have a port of their own.
#[test]
fn m09_each_engine_is_read_by_its_own_names() {
    for (name, engine, expected) in [
        ("tgi.prom", Engine::Tgi, [json!(12), json!(6), Value::Null]),
        ("triton_trtllm.prom", Engine::Triton, [json!(33), json!(9), json!(0.4875)]),
        ("trtllm_serve.prom", Engine::TrtLlm, [json!(6), json!(1), json!(0.33)]),
        ("sglang_single.prom", Engine::Sglang, [json!(5), json!(2), json!(0.28)]),
    ] {
        for configured in [None, Some(engine)] {
            let (serves, tells) = (Backend::ok(), Arc::new(Backend::ok()));
            tells.say(&metrics(name));
            let mut config = asking(&[&serves]);
            let at = &mut config.backends[0].metrics;
            (at.engine, at.port, at.path) =
                (configured, Some(tells.addr().port()), Some("/metrics".to_owned()));
            let router = start(config);
            wait_shown(&router, expected.clone(), name);
            assert_eq!(status(&router, 0)["report"]["engine"], engine.as_str());
        }
    }
}

#[test]
fn an_engine_that_sleeps_gets_nothing() {
    let engines = [Backend::ok(), Backend::ok()];
    let awake = |n| {
        format!(
            "{}vllm:engine_sleep_state{{sleep_state=\"awake\"}} {n}\n",
            metrics("vllm_v1_new_name_only.prom")
        )
    };
    engines[0].say(&awake(1));
    engines[1].say(&awake(1));
    let router = start(asking(&[&engines[0], &engines[1]]));
    engines[0].say(&awake(0));
    wait::until("it is asleep", || status(&router, 0)["state"] == "asleep");
    let before = engines[0].received().len();
    assert!((0..40).all(|_| ask(router.addr(), chat()).status == 200));
    assert_eq!((engines[0].received().len(), engines[1].received().len()), (before, 40));
    assert_eq!(
        metric(&router, "unlatch_backend_state", &format!("{}\",state=\"asleep", engines[0].addr())),
        1.0
    );
    engines[0].say(&awake(1));
    wait::until("it is awake", || status(&router, 0)["state"] == "ready");
    wait::until("it gets requests again", || {
        assert_eq!(ask(router.addr(), chat()).status, 200);
        engines[0].received().len() > before
    });
}

/// S03, for what engines make up: their names and labels are in no series of ours.
#[test]
fn s03_what_engines_say_makes_no_series() {
    let engine = Backend::ok();
    engine.say(&metrics("vllm_v1_new_name_only.prom"));
    let router = start(asking(&[&engine]));
    wait::until("it has reported", || shown(&router, 0)[0] == json!(7));
    let series = || {
        let text = ask(router.admin_addr(), "GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n").text();
        text.lines().filter(|line| !line.starts_with('#')).count()
    };
    let before = series();
    let made_up: String = (0..2000)
        .map(|n| format!("vllm:made_up_{n} 1\nvllm:num_requests_running{{engine=\"{n}\",x=\"{n}\"}} 1\n"))
        .collect();
    engine.say(&made_up);
    wait::until("it is read", || status(&router, 0)["report"]["state"] == "missing");
    assert_eq!(status(&router, 0)["running"]["value"], 2000);
    // The gauge of what waits is unknown now, and so is the KV use.
    assert!(series() <= before, "{before} series, then {}", series());
    let problem = status(&router, 0)["report"]["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("vllm:num_requests_waiting is missing") && problem.len() < 1000, "{problem}");
}
