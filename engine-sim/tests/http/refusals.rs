//! What a bad request gets: the right status and an OpenAI-style error, and nothing is queued.

use engine_sim::{Config, EngineConfig, Profile, Server, StartError};
use http_body_util::Full;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

use crate::support::{Client, chat, fast, post, start, text, wait_until};

fn error(body: &str) -> Value {
    let body: Value = serde_json::from_str(body).expect("errors are JSON");
    assert!(body["error"]["message"].is_string() && body["error"]["type"].is_string(), "{body}");
    body["error"].clone()
}

#[tokio::test]
async fn bad_bodies_paths_and_methods_are_refused_by_their_status() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let messages = r#""messages":[{"role":"user","content":"x"}]"#;
    for (path, body, status) in [
        ("/v1/chat/completions", "{".to_owned(), 400),
        ("/v1/chat/completions", String::new(), 400),
        ("/v1/chat/completions", r#"{"model":"m"}"#.to_owned(), 400),
        ("/v1/completions", r#"{"model":"m"}"#.to_owned(), 400),
        ("/v1/chat/completions", format!(r#"{{{messages},"max_tokens":500000}}"#), 400),
        ("/v1/chat/completions", format!(r#"{{"model":"other",{messages}}}"#), 404),
        ("/v1/nowhere", "{}".to_owned(), 404),
        ("/health", "{}".to_owned(), 405),
    ] {
        let (got, answer) = client.post(path, &body).await;
        assert_eq!(got.as_u16(), status, "{path} {body}: {answer}");
        error(&answer);
    }
    assert_eq!(client.get("/v1/chat/completions").await.0, StatusCode::METHOD_NOT_ALLOWED);
    let stats = engine.stats();
    assert_eq!((stats.live(), stats.prompt_tokens, stats.refused), (0, 0, 1));
}

#[tokio::test]
async fn an_unknown_model_is_named_in_the_error() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let (_, body) = client.post("/v1/chat/completions", r#"{"model":"other","messages":[]}"#).await;
    let error = error(&body);
    assert_eq!(error["code"], "model_not_found");
    assert!(error["message"].as_str().unwrap().contains("`other`"));
}

#[tokio::test]
async fn a_key_guards_the_api_and_nothing_else() {
    let engine = start(Config { api_key: Some("sk-1".to_owned()), ..fast() }).await;
    let mut client = Client::connect(&engine).await;
    for (authorization, status) in [(None, 401), (Some("Bearer sk-2"), 401), (Some("Bearer sk-1"), 200)] {
        let mut request = chat("hello", 1, json!({}));
        if let Some(authorization) = authorization {
            request.headers_mut().insert("authorization", authorization.parse().unwrap());
        }
        let (got, body) = text(client.send(request).await).await;
        assert_eq!(got.as_u16(), status, "{authorization:?}: {body}");
        if status == 401 {
            assert_eq!(error(&body)["code"], "invalid_api_key");
        }
    }
    assert_eq!(client.get("/v1/models").await.0, StatusCode::UNAUTHORIZED);
    for path in ["/health", "/metrics", "/stats"] {
        assert_eq!(client.get(path).await.0, StatusCode::OK, "{path} needs no key");
    }
}

#[tokio::test]
async fn a_full_queue_is_503_and_counted() {
    let mut config = fast();
    config.time_scale = 0.001;
    config.engine.max_waiting = 1;
    let engine = start(config).await;
    let (mut first, mut second) = (Client::connect(&engine).await, Client::connect(&engine).await);
    first.send_in_background(chat("a", 10, json!({}))).await;
    wait_until(&engine, "the first runs", |s| s.running == 1).await;
    second.send_in_background(chat("b", 10, json!({}))).await;
    wait_until(&engine, "the second waits for the end of the step", |s| s.arriving == 1).await;
    let mut third = Client::connect(&engine).await;
    let (status, body) = text(third.send(chat("c", 10, json!({}))).await).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    error(&body);
    assert_eq!(engine.stats().refused, 1);
}

#[tokio::test]
async fn a_body_over_the_limit_is_413() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let (status, body) = text(client.send(post("/v1/completions", &"x".repeat((64 << 20) + 1))).await).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    error(&body);
}

#[tokio::test]
async fn a_body_of_200_kb_is_taken() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let (status, _) = text(client.send(chat(&"x".repeat(205_000), 1, json!({}))).await).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn settings_that_cannot_work_do_not_start() {
    let seats = EngineConfig { max_num_seqs: 0, ..EngineConfig::of(Profile::H100_8B) };
    let start = |config| async { Server::start(config).await.map(|_| ()).unwrap_err() };
    assert!(matches!(start(Config { engine: seats, ..fast() }).await, StartError::Engine(_)));
    for scale in [0.0, -1.0, 1e9, f64::NAN] {
        assert!(matches!(start(Config { time_scale: scale, ..fast() }).await, StartError::TimeScale(_)));
    }
    assert!(matches!(start(Config { name: "a\nb".to_owned(), ..fast() }).await, StartError::Name(_)));
}

#[tokio::test]
async fn a_port_in_use_is_said_to_be() {
    let engine = start(fast()).await;
    let second = Server::start(Config { listen: engine.addr(), ..fast() }).await;
    assert!(matches!(second, Err(StartError::Bind { addr, .. }) if addr == engine.addr()));
}

#[tokio::test]
async fn head_of_an_unknown_path_has_no_body() {
    let engine = start(fast()).await;
    let mut client = Client::connect(&engine).await;
    let request = Request::head("/nowhere").body(Full::default()).unwrap();
    assert_eq!(text(client.send(request).await).await, (StatusCode::NOT_FOUND, String::new()));
    assert_eq!(client.get("/health").await.0, StatusCode::OK, "and the connection goes on");
}
