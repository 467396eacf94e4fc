//! What the router answers itself on the data port.

use router_tests::backend::Backend;
use router_tests::client::{Client, ask};
use router_tests::fixture;
use router_tests::router::{config, start};

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n")
}

#[test]
fn models_are_the_union_over_the_backends() {
    let (a, b) = (Backend::ok(), Backend::ok());
    let mut config = config(&[a.addr(), b.addr()]);
    config.backends[0].spec.aliases = vec!["fast".into()];
    config.backends[1].spec.model = Some("big".into());
    let answer = ask(start(config).addr(), get("/v1/models"));
    let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let ids: Vec<_> = json["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!((answer.status, ids), (200, vec!["big", "fast", "m"]));
    assert_eq!((json["object"].as_str(), json["data"][0]["object"].as_str()), (Some("list"), Some("model")));
    assert!(a.received().is_empty());
}

#[test]
fn health_tells_whether_any_backend_is_ready() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    assert_eq!(ask(router.addr(), get("/health")).status, 200);
    assert_eq!(ask(start(config(&[])).addr(), get("/health")).status, 503);
    engine.wait_probed();
    let _dead = engine.die();
    assert_eq!(ask(router.addr(), router_tests::client::chat()).status, 503);
    assert_eq!(ask(router.addr(), get("/health")).status, 503, "its only backend is backed off");
}

#[test]
fn version_is_the_programs() {
    let answer = ask(start(config(&[])).addr(), get("/version"));
    assert_eq!(answer.text(), format!(r#"{{"version":"{}"}}"#, env!("CARGO_PKG_VERSION")));
}

/// P14.
#[test]
fn p14_head_has_the_status_of_get_and_other_methods_are_405() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    let files = [fixture::http("head_models.http"), "HEAD /version HTTP/1.1\r\nhost: h\r\n\r\n".to_owned()];
    for request in files {
        client.send(&request);
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 200 "), "{request}: {head}");
    }
    client.send("POST /health HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")));
    client.send(fixture::http("head_health.http"));
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert!(client.is_closed(), "no body, and it asked to close");
    let none = ask_head(&start(config(&[])), &fixture::http("head_health.http"));
    assert!(none.starts_with("HTTP/1.1 503 "), "as GET: {none}");
    assert!(engine.received().is_empty());
}

fn ask_head(router: &router_user::app::RunningRouter, request: &str) -> String {
    let mut client = Client::connect(router.addr());
    client.send(request);
    client.head()
}
