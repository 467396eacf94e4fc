//! What the engine says of itself.

use std::collections::BTreeMap;

use http_body_util::Full;
use hyper::Request;
use serde_json::json;

use crate::support::{Client, chat, fast, json_body, start, wait_until};

/// Every series of an exposition, by its text up to the value; checks the format of each line.
fn series(exposition: &str) -> BTreeMap<&str, f64> {
    assert!(exposition.ends_with('\n'), "the last line is whole");
    let mut declared = Vec::new();
    let mut series = BTreeMap::new();
    for line in exposition.lines() {
        if let Some(declaration) = line.strip_prefix("# TYPE ") {
            declared.push(declaration.split(' ').next());
        } else if !line.starts_with("# HELP ") {
            let (key, value) = line.rsplit_once(' ').expect("key and value");
            let name = key.split('{').next();
            assert_eq!(declared.last(), Some(&name), "each series follows its type");
            assert!(series.insert(key, value.parse().expect("a number")).is_none(), "{key} is there once");
        }
    }
    series
}

#[tokio::test]
async fn metrics_have_the_names_and_labels_of_vllm() {
    let mut config = fast();
    config.time_scale = 1.0;
    config.engine.max_num_seqs = 1;
    let engine = start(config).await;
    let mut client = Client::connect(&engine).await;
    for _ in 0..2 {
        json_body(client.send(chat(&"x".repeat(1000), 2, json!({}))).await).await;
    }
    let (mut running, mut waiting) = (Client::connect(&engine).await, Client::connect(&engine).await);
    let _running = running.send(chat(&"r".repeat(1000), 50_000, json!({"stream": true}))).await;
    waiting.send_in_background(chat("w", 1, json!({}))).await;
    wait_until(&engine, "one runs and one waits", |s| s.running == 1 && s.waiting == 1).await;
    let (_, exposition) = client.get("/metrics").await;
    let series = series(&exposition);
    let of =
        |name: &str, extra: &str| series[format!(r#"{name}{{engine="0",model_name="m"{extra}}}"#).as_str()];
    assert_eq!(of("vllm:num_requests_running", ""), 1.0);
    assert_eq!(of("vllm:num_requests_waiting", ""), 1.0);
    assert_eq!(of("vllm:num_requests_waiting_by_reason", r#",reason="capacity""#), 1.0);
    assert_eq!(of("vllm:engine_sleep_state", r#",sleep_state="awake""#), 1.0);
    assert_eq!(of("vllm:request_success_total", r#",finished_reason="length""#), 2.0);
    assert_eq!(of("vllm:prefix_cache_queries_total", ""), 3.0 * 251.0);
    assert_eq!(of("vllm:prefix_cache_hits_total", ""), 240.0);
    assert!(of("vllm:generation_tokens_total", "") >= 4.0);
    let usage = of("vllm:kv_cache_usage_perc", "");
    assert!(usage > 0.0 && usage < 0.01, "16 blocks and a few of 27,000: {usage}");
    let config = series.keys().find(|key| key.starts_with("vllm:cache_config_info{")).unwrap();
    assert!(
        config.contains(r#"block_size="16""#) && config.contains(r#"num_gpu_blocks="27000""#),
        "{config}"
    );
    assert_eq!(series[config], 1.0);
}

#[tokio::test]
async fn a_model_name_with_quotes_is_escaped() {
    let mut config = fast();
    config.model = "a\"b\\c".to_owned();
    let engine = start(config).await;
    let (_, exposition) = Client::connect(&engine).await.get("/metrics").await;
    let key = r#"vllm:num_requests_running{engine="0",model_name="a\"b\\c"}"#;
    assert_eq!(series(&exposition)[key], 0.0);
}

#[tokio::test]
async fn stats_tell_peaks_until_they_are_reset() {
    let mut config = fast();
    config.time_scale = 1.0;
    config.engine.max_num_seqs = 2;
    let engine = start(config).await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = Client::connect(&engine).await;
        client.send_in_background(chat("hello", 50_000, json!({"stream": true}))).await;
        clients.push(client);
    }
    wait_until(&engine, "two run and three wait", |s| s.running == 2 && s.waiting == 3).await;
    drop(clients);
    wait_until(&engine, "all have left", |s| s.live() == 0).await;
    let mut client = Client::connect(&engine).await;
    let mut peaks = async |method, path| {
        let request = Request::builder().method(method).uri(path).body(Full::default()).unwrap();
        let stats = json_body(client.send(request).await).await;
        assert_eq!(
            (&stats["running"], &stats["aborted"], &stats["name"]),
            (&json!(0), &json!(5), &json!("e1"))
        );
        ["running_peak", "waiting_peak", "seat_queue_peak"].map(|name| stats[name].as_u64().unwrap())
    };
    assert_eq!(peaks("GET", "/stats").await, [2, 3, 3]);
    assert_eq!(peaks("POST", "/stats/reset_peaks").await, [0, 0, 0]);
    assert_eq!(peaks("GET", "/stats").await, [0, 0, 0]);
}
