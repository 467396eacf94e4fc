//! A request that two recipients could cut differently is refused, and nothing of it reaches an engine.

use router_tests::backend::Backend;
use router_tests::client::{Client, ask, chat};
use router_tests::router::{config, start};

const BODY: &str = r#"{"model":"m","prompt":"x"}"#;

/// The status of a request of these header lines, after a good one on the same connection.
fn second(router: std::net::SocketAddr, headers: &str, body: &str) -> u16 {
    let mut client = Client::connect(router);
    client.send(chat());
    assert_eq!(client.answer().status, 200);
    client.send(format!("POST /v1/completions HTTP/1.1\r\nHost: h\r\n{headers}\r\n\r\n{body}"));
    let status = client.answer().status;
    assert!(status != 400 || client.is_closed(), "{headers:?}: what follows could be anything");
    status
}

#[test]
fn ambiguous_framing_is_400_and_closes() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let length = BODY.len();
    let cases = [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}"),
        format!("Content-Length: {length}\r\nContent-Length: {length}"),
        format!("Content-Length: {length}\r\nContent-Length: 3"),
        format!("Content-Length: +{length}"),
        format!("Content-Length: {length}, {length}"),
        format!("Content-Length : {length}"),
        format!("Content-Length: {length}\r\nX-A: b\r\n folded"),
        format!("Content-Length: {length}\r\nX-A: b\nX-C: d"),
        "Transfer-Encoding: gzip, chunked".to_owned(),
        "Transfer-Encoding: identity".to_owned(),
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked".to_owned(),
    ];
    for headers in &cases {
        assert_eq!(second(router.addr(), headers, BODY), 400, "{headers:?}");
    }
    assert_eq!(engine.received().len(), cases.len(), "only the good ones arrived");
    let well_framed = format!("Content-Length: {length}");
    assert_eq!(second(router.addr(), &well_framed, BODY), 200);
    let metrics = ask(router.admin_addr(), "GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n").text();
    let counted = format!("unlatch_client_malformed_total {}", cases.len());
    assert!(metrics.lines().any(|l| l == counted), "{counted} must be in\n{metrics}");
}

#[test]
fn chunks_that_are_none_break_the_request_off() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let chunked = "Transfer-Encoding: chunked";
    for body in [
        "5\r\nabcdefg\r\n0\r\n\r\n",
        "5\nabcde\n0\n\n",
        "-5\r\nabcde\r\n0\r\n\r\n",
        "0x5\r\nabcde\r\n0\r\n\r\n",
    ] {
        assert_eq!(second(router.addr(), chunked, body), 400, "{body:?}");
    }
    let good = format!("{:x};note=\"a\"\r\n{BODY}\r\n0\r\nX-Trailer: v\r\n\r\n", BODY.len());
    assert_eq!(second(router.addr(), chunked, &good), 200);
    assert_eq!(engine.received().last().unwrap().body, BODY.as_bytes());
}

#[test]
fn requests_that_come_in_one_piece_are_all_answered_in_order() {
    let engine = Backend::ok();
    let router = start(config(&[engine.addr()]));
    let mut client = Client::connect(router.addr());
    client.send(chat().repeat(5));
    for _ in 0..5 {
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(engine.received().len(), 5);
}
