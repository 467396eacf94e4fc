//! S02: the configured key goes with everything that goes to an engine, whatever its path and content.

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, post};
use router_tests::fixture;
use router_tests::router::{config, start, wait_idle};
use router_tests::wait;
use router_user::config::Secret;
use serde_json::json;

const METRICS: &str = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n";

/// A form with a file of a megabyte, and a boundary that must stand in quotes.
fn upload() -> (String, Vec<u8>) {
    let file: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    let part = |head: &str| format!("--a b:(c)\r\nContent-Disposition: form-data; {head}\r\n\r\n");
    let (model, file_head) = (part("name=\"model\""), part("name=\"file\"; filename=\"a.wav\""));
    let body = [model.as_bytes(), b"m\r\n", file_head.as_bytes(), &file, b"\r\n--a b:(c)--\r\n"].concat();
    let head = format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer client\r\n\
         content-type: multipart/form-data; boundary=\"a b:(c)\"\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head, body)
}

#[test]
fn s02_the_key_goes_with_every_request_upload_socket_probe_and_scrape() {
    let engine = Backend::start(|request, exchange| match request.header("upgrade") {
        Some(_) => {
            exchange.send(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
            );
            Then::Close
        }
        None => exchange.answer("200 OK", "{}"),
    });
    engine.demand("engine-key");
    engine.say(METRICS);
    let mut config = config(&[engine.addr()]);
    // Its models are known only to those who have the key.
    config.backends[0].spec.model = None;
    config.backends[0].api_key = Some(Secret::new("engine-key".to_owned()));
    // An upload is not held: it is more than all that may be.
    config.limits.bodies_total_bytes_max = 256 << 10;
    let router = start(config);
    let client_key = |request: String| request.replacen("\r\n", "\r\nauthorization: Bearer client\r\n", 1);
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/some/new/thing"] {
        let body = json!({"model": "m", "prompt": "x", "messages": [], "input": "x"}).to_string();
        for request in [post(path, &body), client_key(post(path, &body))] {
            assert_eq!(ask(router.addr(), request).status, 200, "{path}");
        }
    }
    let (head, body) = upload();
    let mut client = Client::connect(router.addr());
    client.send(&head);
    client.send(&body);
    assert_eq!(client.answer().status, 200);
    let received = engine.received().pop().unwrap();
    assert!(received.body == body, "unchanged");
    assert_eq!(received.header("content-type"), Some("multipart/form-data; boundary=\"a b:(c)\""));
    let mut socket = Client::connect(router.addr());
    socket.send(client_key(fixture::http("ws_realtime.http")));
    assert!(socket.head().starts_with("HTTP/1.1 101 "));
    drop(socket);
    wait_idle(&router);
    assert_eq!(engine.received().len(), 10);
    for request in engine.received() {
        assert_eq!(request.all("authorization"), ["Bearer engine-key"], "{}", request.line());
    }
    wait::until("it is scraped", || engine.probes().iter().any(|probe| probe.line().contains("/metrics ")));
    let probes = engine.probes();
    assert!(probes.iter().any(|probe| probe.line().contains("/v1/models ")));
    assert!(probes.iter().all(|probe| probe.all("authorization") == ["Bearer engine-key"]));
    let models = ask(router.addr(), "GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n");
    assert!(models.text().contains("\"m\""), "{}", models.text());
    assert!(!models.text().contains("key"));
}
