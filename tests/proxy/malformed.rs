//! Bad input: the right status, an OpenAI-style body, nothing in flight, nothing learned.

use router_tests::backend::Backend;
use router_tests::client::{Answer, Client, ask, chat, post};
use router_tests::router::{config, start};

#[track_caller]
fn assert_error(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(json["error"]["code"], code, "{answer:?}");
    assert!(json["error"]["message"].is_string() && json["error"]["type"].is_string(), "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
}

#[test]
fn bodies_that_are_no_closed_json_object_are_400() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    for body in ["", " ", "[]", "\"x\"", "{", r#"{"model":"m","#, r#"{"model":"m","prompt":"x"#, "nope", "\0"]
    {
        client.send(post("/v1/chat/completions", body));
        assert_error(&client.answer(), 400, "invalid_json");
    }
    assert_eq!(router.in_flight(), 0);
    assert!(engine.received().is_empty());
    client.send(chat());
    assert_eq!(client.answer().status, 200, "the connection is as good as before");
}

#[test]
fn an_unknown_model_is_404() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let answer = ask(router.addr(), post("/v1/completions", r#"{"model":"other","prompt":"x"}"#));
    assert_error(&answer, 404, "model_not_found");
    assert!(answer.text().contains("`other`"), "{answer:?}");
    assert!(engine.received().is_empty());
}

#[test]
fn without_backends_every_request_is_503_and_nothing_is_inserted() {
    let router = start(config(&[]));
    for request in [chat(), "GET /v1/other HTTP/1.1\r\nhost: h\r\n\r\n".to_owned()] {
        let answer = ask(router.addr(), request);
        assert_error(&answer, 503, "no_backend");
        assert!(answer.text().contains("there is no backend"), "{answer:?}");
    }
    // What the requests would have left shows on a backend that comes later.
    let id = router_policy::BackendId::new(0).unwrap();
    router.ledger().set_backend(id, router_policy::BackendSpec::default());
    let snapshot = router.ledger().snapshot(id).unwrap();
    assert_eq!((snapshot.index_blocks, snapshot.own.requests), (0, 0));
}

#[test]
fn engine_administration_and_unknown_paths_are_404() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    for path in [
        "/sleep",
        "/wake_up",
        "/metrics",
        "/slots",
        "/props",
        "/v1/load_lora_adapter",
        "/",
        "/v2/x",
        "*",
        "/v1/../sleep",
        "/v1/%2e%2e/sleep",
        "//sleep",
    ] {
        client.send(format!("POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{{}}"));
        assert_error(&client.answer(), 404, "unknown_path");
    }
    assert!(engine.received().is_empty());
}

#[test]
fn a_named_path_is_proxied() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.proxy_paths = vec!["/inference".into()];
    let router = start(config);
    assert_eq!(ask(router.addr(), post("/inference/v1/generate", "{}")).status, 200);
    assert_eq!(engine.only().body, b"{}");
}

#[test]
fn bytes_that_are_no_http_close_the_connection_only() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    for bytes in ["\x16\x03\x01\x02\0\x01\0\x01\u{fc}", "GET\r\n\r\n"] {
        let mut client = Client::connect(router.addr());
        client.send(bytes);
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        assert!(client.is_closed());
    }
    let mut http2 = Client::connect(router.addr());
    http2.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(http2.is_closed(), "HTTP/2 is not spoken, and an answer in HTTP/1 would be noise");
    assert_eq!(ask(router.addr(), chat()).status, 200);
}

#[test]
fn every_refusal_is_counted_under_its_reason() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.limits.body_bytes_max = 1000;
    let router = start(config);
    for (request, status) in [
        (post("/v1/completions", "{"), 400),
        (post("/v1/completions", &"x".repeat(1001)), 413),
        (post("/v1/completions", r#"{"model":"other"}"#), 404),
        (post("/sleep", "{}"), 404),
        (chat(), 200),
    ] {
        assert_eq!(ask(router.addr(), request).status, status);
    }
    let metrics = ask(router.admin_addr(), "GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n").text();
    for line in [
        r#"unlatch_refused_total{reason="bad_body"} 1"#,
        r#"unlatch_refused_total{reason="body_too_large"} 1"#,
        r#"unlatch_refused_total{reason="unknown_model"} 1"#,
        r#"unlatch_refused_total{reason="unknown_path"} 1"#,
        r#"unlatch_refused_total{reason="body_budget"} 0"#,
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} must be in\n{metrics}");
    }
    let decided = metrics.lines().find(|l| l.starts_with("unlatch_decisions_total{")).unwrap();
    assert!(decided.contains(r#"pool="m""#) && decided.ends_with("} 1"), "{decided}");
    assert!(metrics.contains("unlatch_accept_errors_total 0"), "{metrics}");
}
