//! Each fault as a client sees it, and that nothing else changes.

use std::time::Duration;

use engine_sim::faults::{CutEnd, Delay, On, SlowStart};
use engine_sim::{Config, Fault, Faults, Handle, Rule};
use http_body_util::BodyExt;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::{Client, chat, events, fast, json_body, start, text, wait_until};
use crate::wire::{End, Wire, events_of, has_last_chunk};

async fn with(rules: Vec<Rule>) -> Handle {
    start(Config { faults: Faults { rules, ..Faults::default() }, ..fast() }).await
}

fn cut(after_tokens: u32, end: CutEnd) -> Rule {
    Rule::always(Fault::Cut { after_tokens, end })
}

#[tokio::test]
async fn a_status_is_given_to_the_next_so_many_and_counted() {
    let engine = with(vec![
        Rule::next(Fault::Status { code: 429, retry_after_s: Some(7) }, 1),
        Rule::next(Fault::Status { code: 503, retry_after_s: None }, 1),
    ])
    .await;
    let mut client = Client::connect(&engine).await;
    for (status, retry_after) in [(429, Some("7")), (503, None), (200, None)] {
        let response = client.send(chat("hello", 1, json!({}))).await;
        let header = response.headers().get("retry-after").map(|v| v.to_str().unwrap().to_owned());
        assert_eq!((response.status().as_u16(), header.as_deref()), (status, retry_after));
        assert_eq!(response.headers()["x-engine-name"], "e1", "a fault has its engine's name, too");
        let body: Value = serde_json::from_str(&text(response).await.1).unwrap();
        assert_eq!(body["error"]["message"].is_string(), status != 200, "{body}");
    }
    let stats: Value = serde_json::from_str(&client.get("/stats").await.1).unwrap();
    assert_eq!((&stats["faults"]["status"], &stats["served"]), (&json!(2), &json!(1)));
}

#[tokio::test]
async fn a_rate_hits_some_of_the_requests() {
    let engine = with(vec![Rule::rate(Fault::Status { code: 500, retry_after_s: None }, 0.5)]).await;
    let mut client = Client::connect(&engine).await;
    let mut failed = 0;
    for _ in 0..40 {
        failed += u64::from(text(client.send(chat("hello", 1, json!({}))).await).await.0 != StatusCode::OK);
    }
    assert!((8..=32).contains(&failed), "{failed} of 40");
    assert_eq!(engine.faults().given().status, failed);
}

#[tokio::test]
async fn probes_have_faults_of_their_own() {
    let engine =
        with(vec![Rule { on: On::Probe, ..Rule::always(Fault::Status { code: 500, retry_after_s: None }) }])
            .await;
    let mut client = Client::connect(&engine).await;
    for (path, status) in [("/health", 500), ("/v1/models", 500), ("/metrics", 200), ("/stats", 200)] {
        assert_eq!(client.get(path).await.0.as_u16(), status, "{path}");
    }
    json_body(client.send(chat("hello", 1, json!({}))).await).await;
}

#[tokio::test]
async fn a_connection_ends_before_headers_by_rst_or_fin() {
    for (fault, end) in [(Fault::Reset, End::Reset), (Fault::Close, End::Closed)] {
        let engine = with(vec![Rule::next(fault, 2)]).await;
        for is_stream in [true, false] {
            let heard = Wire::chat(&engine, 3, is_stream).await.hear().await;
            assert_eq!((heard.end, heard.text.as_str()), (end, ""), "{fault:?}");
        }
        json_body(Client::connect(&engine).await.send(chat("hello", 1, json!({}))).await).await;
        let given = engine.faults().given();
        assert_eq!(given.reset + given.closed, 2);
    }
}

#[tokio::test]
async fn a_hang_gives_not_a_byte_and_takes_no_seat() {
    let engine = with(vec![Rule::next(Fault::Hang, 1)]).await;
    let mut hanging = Wire::chat(&engine, 1, true).await;
    let heard = hanging.hear_until(|_| true).await;
    assert_eq!((heard.end, heard.text.as_str()), (End::Open, ""));
    assert_eq!((engine.stats().live(), engine.faults().given().hung), (0, 1));
    json_body(Client::connect(&engine).await.send(chat("hello", 1, json!({}))).await).await;
}

#[tokio::test]
async fn a_stream_is_cut_after_its_tokens_in_each_way() {
    for (end, events, connection, ends_well) in [
        (CutEnd::Close, 3, End::Closed, false),
        (CutEnd::Reset, 3, End::Reset, false),
        (CutEnd::Stall, 3, End::Open, false),
        (CutEnd::End, 3, End::Open, true),
        (CutEnd::Done, 4, End::Open, true),
    ] {
        let engine = with(vec![cut(3, end)]).await;
        let is_enough = |text: &str| match end {
            CutEnd::Close | CutEnd::Reset => false,
            CutEnd::Stall => events_of(text) == events,
            CutEnd::End | CutEnd::Done => has_last_chunk(text),
        };
        let heard = Wire::chat(&engine, 1000, true).await.hear_until(is_enough).await;
        assert!(heard.text.starts_with("HTTP/1.1 200 OK\r\n"), "{end:?}: {}", heard.text);
        assert_eq!((heard.events(), heard.end), (events, connection), "{end:?}: {}", heard.text);
        assert_eq!(heard.has_last_chunk(), ends_well, "{end:?}: {}", heard.text);
        assert_eq!(heard.text.contains("[DONE]"), end == CutEnd::Done, "{end:?}");
        assert!(!heard.text.contains(r#""finish_reason":"length""#), "{end:?}: no answer ended");
        assert_eq!(engine.faults().given().cut, 1);
    }
}

#[tokio::test]
async fn a_cut_frees_the_seat_and_a_stall_does_when_the_client_leaves() {
    for end in [CutEnd::Close, CutEnd::Reset, CutEnd::End, CutEnd::Done, CutEnd::Stall] {
        let mut config = fast();
        config.time_scale = 1.0;
        config.faults.rules = vec![cut(1, end)];
        let engine = start(config).await;
        let mut wire = Wire::chat(&engine, 50_000, true).await;
        wire.hear_until(|text| events_of(text) > 0).await;
        if end == CutEnd::Stall {
            assert_eq!(engine.stats().running, 1, "the engine goes on");
            drop(wire);
        }
        wait_until(&engine, "the seat is free", |s| s.live() == 0 && s.aborted == 1).await;
    }
}

#[tokio::test]
async fn a_shorter_answer_is_cut_after_its_last_token() {
    let engine = with(vec![cut(100, CutEnd::Close)]).await;
    let heard = Wire::chat(&engine, 2, true).await.hear().await;
    assert_eq!((heard.events(), heard.text.contains("[DONE]")), (2, false), "{}", heard.text);
}

#[tokio::test]
async fn a_plain_answer_breaks_off_in_its_middle() {
    for (end, connection) in [
        (CutEnd::Close, End::Closed),
        (CutEnd::Done, End::Closed),
        (CutEnd::Reset, End::Reset),
        (CutEnd::Stall, End::Open),
    ] {
        let engine = with(vec![cut(1, end)]).await;
        let is_half = |text: &str| body_and_promise(text).is_some_and(|(body, whole)| body == whole / 2);
        let is_enough = |text: &str| end == CutEnd::Stall && is_half(text);
        let heard = Wire::chat(&engine, 5, false).await.hear_until(is_enough).await;
        assert!(is_half(&heard.text), "{end:?}: half of what was promised, {}", heard.text);
        assert_eq!(heard.end, connection, "{end:?}");
    }
}

/// Length of the body so far, and the length in the header.
fn body_and_promise(text: &str) -> Option<(usize, usize)> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    Some((body.len(), length.parse().expect("a number")))
}

#[tokio::test]
async fn an_answer_is_late_by_its_delays_and_otherwise_the_same() {
    let delay = Delay { first_byte_ms: 60, between_chunks_ms: 20 };
    let engine = with(vec![Rule::next(Fault::Delay(delay), 2)]).await;
    let mut client = Client::connect(&engine).await;
    let began = Instant::now();
    json_body(client.send(chat("hello", 3, json!({}))).await).await;
    assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
    let began = Instant::now();
    let extra = json!({"stream": true, "stream_options": {"include_usage": true}});
    let response = client.send(chat("hello", 3, extra)).await;
    assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
    let (_, body) = text(response).await;
    // Three tokens, usage and [DONE].
    assert!(began.elapsed() >= Duration::from_millis(60 + 4 * 20), "{:?}", began.elapsed());
    assert_eq!(events(&body).len(), 5);
    assert!(
        body.contains(r#""finish_reason":"length""#) && body.contains(r#""completion_tokens":3"#),
        "{body}"
    );
    assert_eq!(engine.faults().given().delayed, 2);
}

#[tokio::test]
async fn a_new_connection_waits_and_an_old_one_does_not() {
    let engine = start(fast()).await;
    let mut old = Client::connect(&engine).await;
    old.get("/health").await;
    engine.faults().set(Faults { connect_delay_ms: 80, ..Faults::default() }).unwrap();
    let began = Instant::now();
    Client::connect(&engine).await.get("/health").await;
    assert!(began.elapsed() >= Duration::from_millis(80), "{:?}", began.elapsed());
    old.get("/health").await;
    assert_eq!(engine.faults().given().connections_delayed, 1);
}

#[tokio::test]
async fn connections_are_refused_until_the_port_is_open_again() {
    let engine = start(fast()).await;
    let mut old = Client::connect(&engine).await;
    old.get("/health").await;
    for _ in 0..3 {
        engine.faults().set(Faults { refuse_connections: true, ..Faults::default() }).unwrap();
        let refused = TcpStream::connect(engine.addr()).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        assert_eq!(old.get("/health").await.0, StatusCode::OK, "open connections go on");
        engine.faults().clear().unwrap();
        assert_eq!(Client::connect(&engine).await.get("/health").await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_slow_start_stretches_time_to_first_token_and_then_ends() {
    let mut config = fast();
    config.time_scale = 1.0;
    let engine = start(config).await;
    let mut client = Client::connect(&engine).await;
    // One step of 7.4 ms, 20 times as long.
    let slow_start = Some(SlowStart { factor: 20.0, for_ms: 86_400_000 });
    engine.faults().set(Faults { slow_start, ..Faults::default() }).unwrap();
    let began = Instant::now();
    json_body(client.send(chat("hello", 1, json!({}))).await).await;
    assert!(began.elapsed() >= Duration::from_millis(140), "{:?}", began.elapsed());
    client.send_in_background(chat("hello", 200, json!({}))).await;
    wait_until(&engine, "it runs", |s| s.running == 1).await;
    engine.faults().clear().unwrap();
    // It would take 30 s if it were still slow.
    wait_until(&engine, "what is under way speeds up, too", |s| s.served == 2).await;
}

#[tokio::test]
async fn a_fault_set_while_a_stream_runs_leaves_it_alone() {
    let mut config = fast();
    config.time_scale = 1.0;
    let engine = start(config).await;
    let mut client = Client::connect(&engine).await;
    let mut body = client.send(chat("hello", 20, json!({"stream": true}))).await.into_body();
    body.frame().await.unwrap().unwrap();
    engine.faults().set(Faults { rules: vec![cut(0, CutEnd::Reset)], ..Faults::default() }).unwrap();
    let rest = body.collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"));
}
