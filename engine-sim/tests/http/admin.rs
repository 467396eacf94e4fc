//! The switches: faults over HTTP, restart, sleep, readiness.

use std::time::Duration;

use engine_sim::{Config, Fault, Faults, Handle, Rule};
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

use crate::support::{Client, DEADLINE, chat, fast, json_body, start, text, wait_until};
use crate::wire::{End, Wire};

fn value(body: &str) -> Value {
    serde_json::from_str(body).expect("JSON")
}

async fn delete(client: &mut Client, path: &str) -> (StatusCode, String) {
    text(client.send(Request::delete(path).body(Full::default()).expect("a valid request")).await).await
}

#[tokio::test]
async fn faults_are_set_shown_and_cleared_over_http() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let faults = r#"{"seed":3,"rules":[{"fault":{"status":{"code":500}},"next":2}]}"#;
    let (status, shown) = client.post("/admin/faults", faults).await;
    assert_eq!((status, &value(&shown)["rules"][0]["next"]), (StatusCode::OK, &json!(2)));
    assert_eq!(text(client.send(chat("x", 1, json!({}))).await).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    let (_, shown) = client.get("/admin/faults").await;
    assert_eq!(value(&shown)["rules"][0]["next"], 1, "what is left is shown");
    assert_eq!(delete(&mut client, "/admin/faults").await.0, StatusCode::OK);
    json_body(client.send(chat("x", 1, json!({}))).await).await;
    assert_eq!(engine.faults().get(), Faults::default());
}

#[tokio::test]
async fn bad_faults_are_refused_and_change_nothing() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let good = Faults { rules: vec![Rule::always(Fault::Hang)], ..Faults::default() };
    engine.faults().set(good.clone()).unwrap();
    for bad in ["", "[1]", r#"{"rulez":[]}"#, r#"{"rules":[{"fault":"hang","rate":2}]}"#] {
        let (status, body) = client.post("/admin/faults", bad).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}: {body}");
        assert!(value(&body)["error"]["message"].is_string());
    }
    assert_eq!(engine.faults().get(), good);
}

#[tokio::test]
async fn the_second_port_opens_the_first_again() {
    let engine = start(Config { admin_listen: Some(([127, 0, 0, 1], 0).into()), ..fast() }).await;
    let told = value(&Client::connect(&engine).await.get("/stats").await.1);
    assert_eq!(told["admin_listen"], json!(engine.admin_addr()), "for who asked for any port");
    let mut admin = Client::connect_to(engine.admin_addr().unwrap()).await;
    let all =
        r#"{"refuse_connections":true,"connect_delay_ms":86400000,"rules":[{"fault":"hang","on":"all"}]}"#;
    assert_eq!(admin.post("/admin/faults", all).await.0, StatusCode::OK);
    tokio::net::TcpStream::connect(engine.addr()).await.unwrap_err();
    assert_eq!(admin.get("/health").await.0, StatusCode::OK, "no fault reaches the second port");
    let mut another = Client::connect_to(engine.admin_addr().unwrap()).await;
    assert_eq!(delete(&mut another, "/admin/faults").await.0, StatusCode::OK);
    assert_eq!(Client::connect(&engine).await.get("/health").await.0, StatusCode::OK);
    assert_eq!(another.post("/admin/restart", "").await.0, StatusCode::OK);
    assert_eq!(another.get("/health").await.0, StatusCode::OK, "it outlives a restart");
}

fn process_start(metrics: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix("process_start_time_seconds "));
    line.expect("vLLM tells it").parse().expect("a number")
}

#[tokio::test]
async fn a_restart_empties_cache_and_counters_and_cuts_what_runs() {
    let mut config = fast();
    config.time_scale = 1.0;
    let engine = start(config).await;
    let prompt = "x".repeat(1000);
    let mut admin = Client::connect(&engine).await;
    json_body(admin.send(chat(&prompt, 1, json!({}))).await).await;
    let before = process_start(&admin.get("/metrics").await.1);
    let mut idle = Wire::connect(&engine).await;
    let mut running = Wire::chat(&engine, 50_000, true).await;
    let mut plain = Wire::chat(&engine, 50_000, false).await;
    wait_until(&engine, "both run", |s| s.running == 2).await;
    let (status, body) = admin.post("/admin/restart", "").await;
    assert_eq!((status, &value(&body)["restarts"]), (StatusCode::OK, &json!(1)));
    let stats = engine.stats();
    assert_eq!((stats.live(), stats.served, stats.prompt_tokens, stats.used_blocks), (0, 0, 0, 0));
    assert_eq!(idle.hear().await.end, End::Closed);
    assert_eq!((plain.hear().await.text.as_str(), running.hear().await.has_last_chunk()), ("", false));
    let mut client = Client::connect(&engine).await;
    assert!(process_start(&client.get("/metrics").await.1) > before);
    let answer = json_body(client.send(chat(&prompt, 1, json!({}))).await).await;
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "the cache is gone");
    assert_eq!(value(&client.get("/stats").await.1)["aborted"], 0);
}

#[tokio::test]
async fn faults_outlive_a_restart() {
    let engine = start(fast()).await;
    let faults = Faults { rules: vec![Rule::next(Fault::Reset, 5)], ..Faults::default() };
    engine.faults().set(faults.clone()).unwrap();
    engine.restart();
    assert_eq!(engine.faults().get(), faults);
    assert_eq!(Wire::chat(&engine, 1, true).await.hear().await.end, End::Reset);
}

async fn ready(engine: &Handle) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while Client::connect(engine).await.get("/health").await.0 != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("it becomes ready");
}

#[tokio::test]
async fn an_engine_that_starts_is_503_but_for_the_simulators_own() {
    let engine = start(Config { start_delay: Duration::from_secs(3600), ..fast() }).await;
    let mut client = Client::connect(&engine).await;
    for path in ["/health", "/metrics", "/v1/models"] {
        assert_eq!(client.get(path).await.0, StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
    let (status, body) = text(client.send(chat("x", 1, json!({}))).await).await;
    assert_eq!((status, value(&body)["error"].is_object()), (StatusCode::SERVICE_UNAVAILABLE, true));
    assert_eq!(client.get("/stats").await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_engine_becomes_ready_and_starts_again_after_a_restart() {
    let engine = start(Config { start_delay: Duration::from_secs(2), ..fast() }).await;
    ready(&engine).await;
    json_body(Client::connect(&engine).await.send(chat("x", 1, json!({}))).await).await;
    engine.restart();
    assert_eq!(Client::connect(&engine).await.get("/health").await.0, StatusCode::SERVICE_UNAVAILABLE);
    ready(&engine).await;
}

fn value_of(line: &str) -> f64 {
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).expect("a value")
}

fn sleep_state(metrics: &str, state: &str) -> f64 {
    let label = format!(r#"sleep_state="{state}"}} "#);
    let line = metrics.lines().find(|l| l.starts_with("vllm:engine_sleep_state{") && l.contains(&label));
    value_of(line.expect("a series"))
}

#[tokio::test]
async fn an_engine_asleep_looks_idle_and_healthy_and_answers_nobody() {
    let mut config = fast();
    config.time_scale = 1.0;
    let engine = start(config).await;
    let mut client = Client::connect(&engine).await;
    let mut body = client.send(chat("hello", 50_000, json!({"stream": true}))).await.into_body();
    body.frame().await.unwrap().unwrap();
    let mut other = Client::connect(&engine).await;
    for (level, state) in
        [("?level=1", "weights_offloaded"), ("?level=2", "discard_all"), ("", "weights_offloaded")]
    {
        assert_eq!(other.post(&format!("/sleep{level}"), "").await.0, StatusCode::OK);
        assert_eq!(value(&other.get("/is_sleeping").await.1), json!({"is_sleeping": true}));
        assert_eq!(other.get("/health").await.0, StatusCode::OK);
        let metrics = other.get("/metrics").await.1;
        assert_eq!((sleep_state(&metrics, "awake"), sleep_state(&metrics, state)), (0.0, 1.0));
        for gauge in ["num_requests_running", "num_requests_waiting"] {
            assert!(
                metrics.contains(&format!("vllm:{gauge}{{engine=\"0\",model_name=\"m\"}} 0\n")),
                "{metrics}"
            );
        }
    }
    assert_eq!(other.post("/sleep?level=3", "").await.0, StatusCode::BAD_REQUEST);
    let mut asleep = Wire::chat(&engine, 1, false).await;
    wait_until(&engine, "it came in", |s| s.arriving == 1).await;
    assert_eq!(asleep.hear_until(|_| true).await.end, End::Open);
    assert_eq!(other.post("/wake_up", "").await.0, StatusCode::OK);
    assert_eq!(value(&other.get("/is_sleeping").await.1), json!({"is_sleeping": false}));
    let answer = asleep.hear_until(|text| text.ends_with('}')).await.text;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert_eq!(sleep_state(&other.get("/metrics").await.1, "awake"), 1.0);
    // What ran before it slept is not lost: another token comes.
    while body.frame().await.unwrap().unwrap().is_trailers() {}
}

#[tokio::test]
async fn sleep_forgets_the_cache() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let prompt = "x".repeat(1000);
    for (cached, sleeps) in [(0, false), (240, true), (0, false)] {
        let answer = json_body(client.send(chat(&prompt, 1, json!({}))).await).await;
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
        if sleeps {
            engine.sleep();
            engine.wake_up();
        }
    }
}
