//! S01: where a request goes is never a client's to say.

use std::net::TcpListener;

use router_tests::backend::Backend;
use router_tests::client::{ask, post};
use router_tests::fixture;
use router_tests::router::{config, start, wait_idle};

/// An address inside, at which nobody must ever knock.
struct Canary(TcpListener);

impl Canary {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn addr(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    #[track_caller]
    fn assert_untouched(&self, by: &str) {
        let knocked = self.0.accept();
        assert!(knocked.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock), "contacted by {by}");
    }
}

#[test]
fn s01_no_header_host_or_target_leads_anywhere_but_to_a_configured_backend() {
    let (engine, canary) = (Backend::ok(), Canary::new());
    let router = start(config(&[engine.addr()]));
    let to = canary.addr();
    let own = engine.addr().to_string();
    for (n, file) in ["client_routing_headers.http", "absolute_form_and_host.http"].into_iter().enumerate() {
        let request = fixture::http(file).replace("127.0.0.1:9999", &to);
        let answer = ask(router.addr(), &request);
        assert_eq!(answer.status, 200, "{file}: {}", answer.text());
        let received = engine.received();
        assert_eq!(received.len(), n + 1, "{file}");
        assert_eq!(received[n].line(), "POST /v1/chat/completions HTTP/1.1");
        assert_eq!(received[n].header("host"), Some(&*own));
        canary.assert_untouched(file);
    }
    let inside = format!(r#"{{"model":"m","api_base":"http://{to}","base_url":"http://{to}","prompt":"x"}}"#);
    assert_eq!(ask(router.addr(), post("/v1/completions", &inside)).status, 200);
    assert_eq!(engine.received()[2].body, inside.as_bytes());
    wait_idle(&router);
    for request in [
        format!("CONNECT {to} HTTP/1.1\r\nhost: {to}\r\n\r\n"),
        format!("GET http://{to}/secret HTTP/1.1\r\nhost: {to}\r\n\r\n"),
        format!("GET //{to}/v1/models HTTP/1.1\r\nhost: router\r\n\r\n"),
        format!("GET /{to}/v1/models HTTP/1.1\r\nhost: router\r\n\r\n"),
    ] {
        let answer = ask(router.addr(), &request);
        assert!([400, 404, 405].contains(&answer.status), "{request}: {}", answer.head);
        canary.assert_untouched(&request);
    }
    assert_eq!(engine.received().len(), 3);
    router.shutdown(router_tests::wait::DEADLINE);
    canary.assert_untouched("anything at all");
}
