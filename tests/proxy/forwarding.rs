//! What goes on unchanged and what ends here, in both directions.

use router_tests::backend::{Backend, Then};
use router_tests::client::{Client, ask, chat, post};
use router_tests::fixture;
use router_tests::router::{config, start};
use router_user::config::Secret;

#[test]
fn the_body_is_forwarded_byte_for_byte() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let body = "{\"model\" : \"m\",\n\t\"prompt\":\"\\u00e9\\ud83d\\ude00 é😀\",\"unknown_field\":[1e400,-0,{}],\"n\":1}  ";
    let answer = ask(router.addr(), post("/v1/completions?x=%20y", body));
    assert_eq!((answer.status, &*answer.text()), (200, r#"{"ok":true}"#));
    let received = engine.only();
    assert_eq!(received.body, body.as_bytes());
    assert_eq!(received.line(), "POST /v1/completions?x=%20y HTTP/1.1");
    assert_eq!(received.header("host"), Some(&*engine.addr().to_string()));
}

#[test]
fn a_chunked_body_arrives_whole_and_with_its_length() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send("POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n");
    for piece in ["{\"model\":\"m\",", "\"prompt\"", ":\"hi\"}"] {
        client.send(format!("{:x}\r\n{piece}\r\n", piece.len()));
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    let received = engine.only();
    assert_eq!(received.body, br#"{"model":"m","prompt":"hi"}"#);
    assert_eq!(received.header("content-length"), Some("27"));
    assert_eq!(received.header("transfer-encoding"), None);
}

#[test]
fn a_large_body_arrives_whole() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "0123456789abcdef".repeat(5 << 16));
    assert_eq!(ask(router.addr(), post("/v1/completions", &body)).status, 200);
    assert!(engine.only().body == body.as_bytes(), "5 MiB must arrive unchanged");
}

/// P09.
#[test]
fn p09_hop_by_hop_headers_of_the_client_end_here() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    // Each has a pool of its own.
    config.workers = 1;
    let router = start(config);
    let mut client = Client::connect(router.addr());
    client.send(fixture::http("hop_by_hop.http"));
    assert_eq!(client.answer().status, 200);
    assert!(client.is_closed(), "it asked for that");
    let received = engine.only();
    for gone in [
        "connection",
        "x-drop-me",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "upgrade",
        "http2-settings",
    ] {
        assert_eq!(received.header(gone), None, "{gone}");
    }
    assert_eq!(received.header("x-keep-me"), Some("1"));
    assert_eq!(received.header("authorization"), Some("Bearer client-key"));
    assert_eq!(received.header("content-length"), Some("57"));
    assert_eq!(ask(router.addr(), chat()).status, 200);
    assert!(engine.received().iter().all(|r| r.connection == 0), "the client's close is not the engine's");
}

/// P09.
#[test]
fn p09_connection_cannot_take_framing_nor_credentials_away() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    assert_eq!(ask(router.addr(), fixture::http("connection_nominates_framing.http")).status, 200);
    let received = engine.only();
    assert_eq!(received.header("host"), Some(&*engine.addr().to_string()));
    assert_eq!(received.header("content-length"), Some("57"));
    assert_eq!(received.header("authorization"), Some("Bearer client-key"));
    assert_eq!(received.body.len(), 57);
}

/// P09.
#[test]
fn p09_hop_by_hop_headers_of_the_engine_end_here_and_the_rest_is_unchanged() {
    let engine = Backend::start(|_, exchange| {
        exchange.send(
            "HTTP/1.1 418 Short\r\nconnection: x-resp-drop, close\r\nkeep-alive: timeout=5\r\nx-resp-drop: 1\r\n\
             proxy-authenticate: x\r\nupgrade: h2c\r\nx-accel-buffering: no\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
             content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x01\x02",
        );
        Then::Close
    });
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(chat());
    let answer = client.answer();
    assert_eq!(answer.status, 418);
    for gone in ["connection", "keep-alive", "x-resp-drop", "proxy-authenticate", "upgrade"] {
        assert_eq!(answer.header(gone), None, "{gone}");
    }
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    assert_eq!(answer.head.matches("set-cookie").count(), 2);
    assert_eq!(answer.body, b"\x1f\x01\x02");
    client.send(chat());
    assert_eq!(client.answer().status, 418, "the engine's `close` does not close the client's connection");
}

#[test]
fn a_request_id_is_honoured_or_made_and_sent_both_ways() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let own = ask(router.addr(), chat().replacen("\r\n\r\n", "\r\nx-request-id: mine-1\r\n\r\n", 1));
    assert_eq!(own.header("x-request-id"), Some("mine-1"));
    let made = ask(router.addr(), chat());
    let made = made.header("x-request-id").unwrap().to_owned();
    assert!(made.len() == 32 && made.bytes().all(|b| b.is_ascii_hexdigit()), "{made}");
    let too_long = "x".repeat(129);
    let replaced =
        ask(router.addr(), chat().replacen("\r\n\r\n", &format!("\r\nx-request-id: {too_long}\r\n\r\n"), 1));
    assert_ne!(replaced.header("x-request-id"), Some(&*too_long));
    let seen: Vec<_> =
        engine.received().iter().map(|r| r.header("x-request-id").unwrap().to_owned()).collect();
    assert_eq!(seen[..2], ["mine-1".to_owned(), made]);
    let error = ask(router.addr(), "GET /nope HTTP/1.1\r\nhost: h\r\nx-request-id: e\r\n\r\n");
    assert_eq!((error.status, error.header("x-request-id")), (404, Some("e")), "errors carry it too");
}

#[test]
fn authorization_is_passed_on_unless_the_backend_has_its_own_key() {
    let (open, keyed) = (Backend::ok(), Backend::ok());
    for (engine, key, want) in [(&open, None, "Bearer client"), (&keyed, Some("k3y"), "Bearer k3y")] {
        let mut config = config(&[engine.addr()]);
        config.backends[0].api_key = key.map(|k| Secret::new(k.to_owned()));
        let router = start(config);
        let request = chat().replacen("\r\n\r\n", "\r\nauthorization: Bearer client\r\n\r\n", 1);
        assert_eq!(ask(router.addr(), request).status, 200);
        assert_eq!(engine.only().header("authorization"), Some(want));
    }
}

#[test]
fn the_clients_address_is_appended_to_x_forwarded_for() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    assert_eq!(ask(router.addr(), chat()).status, 200);
    let given = "\r\nx-forwarded-for: 10.0.0.1\r\nx-forwarded-for: 10.0.0.2\r\n\r\n";
    assert_eq!(ask(router.addr(), chat().replacen("\r\n\r\n", given, 1)).status, 200);
    let seen: Vec<_> =
        engine.received().iter().map(|r| r.header("x-forwarded-for").unwrap().to_owned()).collect();
    assert_eq!(seen, ["127.0.0.1", "10.0.0.1, 10.0.0.2, 127.0.0.1"]);
}

/// P09: the rules of docs/http.md.
#[test]
fn p09_x_forwarded_proto_and_host_are_set_where_they_are_missing() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let with = |lines: &str| chat().replacen("\r\n\r\n", &format!("\r\n{lines}\r\n\r\n"), 1);
    let own = "x-forwarded-proto: https\r\nx-forwarded-host: shop.test";
    let chain = "forwarded: for=10.0.0.1;proto=https\r\nvia: 1.1 edge";
    let absolute = chat().replacen("POST ", "POST http://u:p@other.test:8", 1);
    for (request, proto, host) in [
        (chat(), "http", "router"),
        (with(own), "https", "shop.test"),
        (with(chain), "http", "router"),
        (absolute, "http", "other.test:8"),
    ] {
        assert_eq!(ask(router.addr(), request).status, 200);
        let received = engine.received().pop().unwrap();
        assert_eq!(received.header("x-forwarded-proto"), Some(proto));
        assert_eq!(received.header("x-forwarded-host"), Some(host));
        assert_eq!(received.header("host"), Some(&*engine.addr().to_string()));
        let is_chain = received.header("forwarded").is_some();
        assert_eq!(is_chain, received.header("via") == Some("1.1 edge"), "both pass unchanged");
    }
    assert_eq!(engine.received()[2].header("forwarded"), Some("for=10.0.0.1;proto=https"));
}

#[test]
fn nothing_in_a_request_names_the_destination() {
    let (engine, canary) = (Backend::ok(), Backend::ok());
    let router = start(config(&[engine.addr()]));
    let to = canary.addr();
    let body = format!(r#"{{"model":"m","prompt":"x","api_base":"http://{to}"}}"#);
    let request = format!(
        "POST http://{to}/v1/completions HTTP/1.1\r\nhost: {to}\r\nx-gateway-destination-endpoint: {to}\r\n\
         x-unlatch-backend: http://{to}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(ask(router.addr(), request).status, 200);
    assert_eq!(engine.only().line(), "POST /v1/completions HTTP/1.1");
    let connect = ask(router.addr(), format!("CONNECT {to} HTTP/1.1\r\nhost: {to}\r\n\r\n"));
    assert_eq!(connect.status, 404);
    assert!(canary.received().is_empty());
}

#[test]
fn a_base_path_goes_before_the_path() {
    let engine = Backend::ok();
    let mut config = config(&[engine.addr()]);
    config.backends[0].base_path = "/engine/7".into();
    let router = start(config);
    assert_eq!(ask(router.addr(), chat()).status, 200);
    assert_eq!(engine.only().line(), "POST /engine/7/v1/chat/completions HTTP/1.1");
}

#[test]
fn unknown_paths_below_v1_are_forwarded_and_counted_while_they_run() {
    let engine = Backend::start(|_, exchange| exchange.wait_closed());
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send("PUT /v1/some/new/thing HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nabc");
    engine.wait_received(1);
    assert_eq!(router.in_flight(), 1, "load is counted on every path");
    assert_eq!(engine.only().body, b"abc");
    drop(client);
    engine.wait_closed(1);
}

#[test]
fn one_connection_of_a_client_serves_many_requests_on_one_connection_to_the_engine() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    for _ in 0..50 {
        client.send(chat());
        assert_eq!(client.answer().status, 200);
        assert_eq!(router.in_flight(), 0, "the count is given back before the client's next request");
    }
    assert!(engine.received().iter().all(|r| r.connection == 0));
}

#[test]
fn debug_headers_say_where_and_why() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let answer = ask(router.addr(), chat());
    assert_eq!(answer.header("x-unlatch-backend"), Some(&*format!("http://{}", engine.addr())));
    let decision = answer.header("x-unlatch-decision").unwrap();
    assert!(decision.starts_with("least_in_flight; matched=0; prompt="), "{decision}");
    let mut quiet = config(&[engine.addr()]);
    quiet.debug_headers = false;
    let answer = ask(start(quiet).addr(), chat());
    assert!(!answer.head.contains("x-unlatch"));
}
