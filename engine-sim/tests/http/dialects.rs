//! `/metrics` in other dialects, and wrong.

use std::time::Duration;

use engine_sim::faults::{Dialect, MetricsFaults, Page};
use engine_sim::{Config, Faults, Handle};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Client, chat, fast, json_body, start, wait_until};

const RUNNING: &str = "vllm:num_requests_running";

/// An engine with one seat taken and one request waiting, and the clients of both.
async fn busy(dialect: Dialect) -> (Handle, [Client; 2]) {
    let mut config = Config { dialect, ..fast() };
    config.time_scale = 1.0;
    config.engine.max_num_seqs = 1;
    let engine = start(config).await;
    let mut clients = [Client::connect(&engine).await, Client::connect(&engine).await];
    for client in &mut clients {
        client.send_in_background(chat(&"r".repeat(1000), 50_000, json!({"stream": true}))).await;
    }
    wait_until(&engine, "one runs and one waits", |s| s.running == 1 && s.waiting == 1).await;
    (engine, clients)
}

/// The value of the one series of this name.
fn sample(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.split(['{', ' ']).next() == Some(name))?;
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok())
}

async fn metrics(engine: &Handle, path: &str) -> String {
    let (status, text) = Client::connect(engine).await.get(path).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    text
}

#[tokio::test]
async fn each_dialect_tells_running_and_waiting_by_its_own_names() {
    for (dialect, path, running, waiting, capacity) in [
        (Dialect::Vllm, "/metrics", RUNNING, "vllm:num_requests_waiting", None),
        (
            Dialect::Sglang,
            "/metrics",
            "sglang:num_running_reqs",
            "sglang:num_queue_reqs",
            Some(("sglang:max_total_num_tokens", 432_000.0)),
        ),
        (
            Dialect::Tgi,
            "/metrics",
            "tgi_batch_current_size",
            "tgi_queue_size",
            Some(("tgi_batch_max_total_tokens", 432_000.0)),
        ),
        (Dialect::LlamaCpp, "/metrics", "llamacpp:requests_processing", "llamacpp:requests_deferred", None),
        (
            Dialect::TrtLlm,
            "/prometheus/metrics",
            "trtllm_num_requests_running",
            "trtllm_num_requests_waiting",
            Some(("trtllm_kv_cache_max_blocks", 27_000.0)),
        ),
    ] {
        let (engine, _clients) = busy(dialect).await;
        let text = metrics(&engine, path).await;
        assert_eq!((sample(&text, running), sample(&text, waiting)), (Some(1.0), Some(1.0)), "{text}");
        if let Some((name, value)) = capacity {
            assert_eq!(sample(&text, name), Some(value), "{text}");
        }
        assert_eq!(text.contains("vllm:"), dialect == Dialect::Vllm, "{text}");
    }
}

#[tokio::test]
async fn trtllm_has_json_where_others_have_text() {
    let (engine, _clients) = busy(Dialect::TrtLlm).await;
    let latest: Value = serde_json::from_str(&metrics(&engine, "/metrics").await).unwrap();
    assert_eq!((&latest[0]["numActiveRequests"], &latest[0]["numQueuedRequests"]), (&json!(1), &json!(1)));
    assert_eq!(latest[0]["kvCacheStats"]["maxNumBlocks"], 27_000);
}

#[tokio::test]
async fn llamacpp_has_slots_and_fails_without_a_free_one_if_asked() {
    let (engine, clients) = busy(Dialect::LlamaCpp).await;
    let slots: Value = serde_json::from_str(&metrics(&engine, "/slots").await).unwrap();
    assert_eq!((slots.as_array().unwrap().len(), &slots[0]["is_processing"]), (1, &json!(true)));
    let full = Client::connect(&engine).await.get("/slots?fail_on_no_slot=1").await;
    assert_eq!(full.0, StatusCode::SERVICE_UNAVAILABLE);
    drop(clients);
    wait_until(&engine, "the slot is free", |s| s.live() == 0).await;
    metrics(&engine, "/slots?fail_on_no_slot=1").await;
    let other = start(fast()).await;
    assert_eq!(Client::connect(&other).await.get("/slots").await.0, StatusCode::NOT_FOUND, "vLLM has none");
}

#[tokio::test]
async fn gauges_go_wrong_one_by_one_and_come_right_again() {
    let (engine, clients) = busy(Dialect::Vllm).await;
    let set = |metrics| engine.faults().set(Faults { metrics, ..Faults::default() }).unwrap();
    let name = || vec![RUNNING.to_owned()];
    let none = MetricsFaults::default;
    set(MetricsFaults { missing: name(), ..none() });
    let text = metrics(&engine, "/metrics").await;
    assert!(!text.contains(RUNNING) && sample(&text, "vllm:num_requests_waiting") == Some(1.0), "{text}");
    set(MetricsFaults { renamed: [(RUNNING.to_owned(), "vllm:busy".to_owned())].into(), ..none() });
    let text = metrics(&engine, "/metrics").await;
    assert_eq!((sample(&text, RUNNING), sample(&text, "vllm:busy")), (None, Some(1.0)));
    set(MetricsFaults { nan: name(), ..none() });
    assert!(sample(&metrics(&engine, "/metrics").await, RUNNING).unwrap().is_nan());
    set(MetricsFaults { all_zero: true, ..none() });
    let text = metrics(&engine, "/metrics").await;
    let mut values = text.lines().filter(|l| !l.starts_with('#')).map(|l| l.rsplit(' ').next().unwrap());
    assert!(values.all(|value| value == "0"), "{text}");
    set(MetricsFaults { dialect: Some(Dialect::Tgi), ..none() });
    assert_eq!(sample(&metrics(&engine, "/metrics").await, "tgi_queue_size"), Some(1.0));
    set(MetricsFaults { frozen: name(), ..none() });
    drop(clients);
    wait_until(&engine, "all have left", |s| s.live() == 0).await;
    let text = metrics(&engine, "/metrics").await;
    assert_eq!((sample(&text, RUNNING), sample(&text, "vllm:num_requests_waiting")), (Some(1.0), Some(0.0)));
    engine.faults().clear().unwrap();
    assert_eq!(sample(&metrics(&engine, "/metrics").await, RUNNING), Some(0.0));
    assert_eq!(engine.faults().given().metrics, 5, "each wrong answer; another dialect is not wrong");
}

#[tokio::test]
async fn another_page_comes_in_place_of_metrics() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    for (page, status, begins) in [
        (Page::Html, 200, "<!doctype html>"),
        (Page::Empty, 200, ""),
        (Page::Unauthorized, 401, "{"),
        (Page::Error, 500, "{"),
    ] {
        let metrics = MetricsFaults { page: Some(page), ..MetricsFaults::default() };
        engine.faults().set(Faults { metrics, ..Faults::default() }).unwrap();
        let (got, body) = client.get("/metrics").await;
        assert_eq!((got.as_u16(), body.is_empty()), (status, begins.is_empty()), "{page:?}: {body}");
        assert!(body.starts_with(begins), "{page:?}: {body}");
        json_body(client.send(chat("x", 1, json!({}))).await).await;
    }
}

#[tokio::test]
async fn slow_metrics_make_nothing_else_slow() {
    let engine = start(fast()).await;
    let metrics = MetricsFaults { delay_ms: 1000, ..MetricsFaults::default() };
    engine.faults().set(Faults { metrics, ..Faults::default() }).unwrap();
    let mut slow = Client::connect(&engine).await;
    let began = Instant::now();
    let read = async {
        slow.get("/metrics").await;
        began.elapsed()
    };
    let mut client = Client::connect(&engine).await;
    let (metrics_after, answered_after) = tokio::join!(read, async {
        json_body(client.send(chat("x", 1, json!({}))).await).await;
        began.elapsed()
    });
    assert!(metrics_after >= Duration::from_millis(1000), "{metrics_after:?}");
    assert!(answered_after < metrics_after, "{answered_after:?}");
}
