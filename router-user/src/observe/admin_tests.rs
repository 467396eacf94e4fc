use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use router_common::BackendLoad;
use router_policy::{
    BackendId, BackendSnapshot, BackendSpec, InFlight, Models, Nanos, Outcome, PolicyName, Reason, Report,
    Seats, Signal, Why,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Admin, serve};
use crate::account::{KernelRow, Sign, Suspicion};
use crate::backends::Heard;
use crate::backends::metrics_text::Engine;
use crate::observe::IndexStatus;
use crate::observe::metrics::encode;
use crate::observe::status::{BackendStatus, KernelStatus, Status, StatusSource, pool};
use crate::proxy::metrics::{RequestMetrics, Retry};
use crate::proxy::refusal::Refusal;

const NOW: Nanos = Nanos(10_000_000_000);

struct Fixed(Mutex<Status>);

impl StatusSource for Fixed {
    fn status(&self) -> Status {
        self.0.lock().clone()
    }
}

fn id(row: usize) -> BackendId {
    BackendId::new(row).unwrap()
}

fn backend(row: usize) -> BackendStatus {
    let snapshot = BackendSnapshot {
        spec: BackendSpec::default(),
        streaming: 1,
        ready: true,
        trust: router_policy::Trust::Full,
        models: Models::Listed(vec!["m".to_owned()], NOW),
        own: InFlight { requests: 3, q_tokens: 100, c_tokens: 900 },
        others: InFlight { requests: 2, ..InFlight::default() },
        foreign: Signal::Unknown(Why::NeverHeard),
        in_band: Signal::known(6, Nanos(9_000_000_000)),
        report: Report { running: Signal::known(4, Nanos(8_000_000_000)), ..Report::default() },
        seats: Seats::ProvenByUse(4),
        kv_tokens: 400_000,
        decode_seconds: Some((1.5, 7)),
        prefill_rate: None,
        chars_per_token: None,
        index_blocks: 12,
    };
    BackendStatus {
        id: id(row),
        url: format!("http://b{row}"),
        pool: pool(Some("m\"x\\")).to_owned(),
        snapshot,
        backoff_until: Nanos(0),
        scrape_failures: [0, 1, 0, 0],
        heard: Heard { engine: Some(Engine::Vllm), problem: Some("x is missing".to_owned()), asleep: false },
        held_against: None,
        kernel: Some(KernelRow { load: KERNEL, has_phases: true }),
        suspect: Some(Suspicion { sign: Sign::Silent, seconds: 31.25, requests: 7 }),
    }
}

const KERNEL: BackendLoad =
    BackendLoad { conns: 6, awaiting: 3, streaming: 4, foreign_streaming: 1, ..BackendLoad::ZERO };

/// A ready backend, and one that is backed off and never told anything.
fn source() -> Arc<Fixed> {
    let mut silent = backend(1);
    silent.snapshot.ready = false;
    silent.snapshot.models = Models::Unknown;
    silent.snapshot.report = Report::default();
    silent.snapshot.in_band = Signal::default();
    silent.backoff_until = Nanos(12_000_000_000);
    silent.kernel = None;
    silent.suspect = None;
    silent.heard = Heard { asleep: true, ..Heard::default() };
    let kernel = KernelStatus { line: "counts".to_owned(), programs: vec![("track_conns", true)] };
    let (policy, uptime) = (PolicyName::PrefixCost, Duration::from_secs(5));
    Arc::new(Fixed(Mutex::new(Status {
        now: NOW,
        policy,
        uptime,
        is_draining: false,
        kernel,
        index: IndexStatus::default(),
        backends: vec![backend(0), silent],
    })))
}

async fn get(admin: &Admin, method: &Method, path: &str) -> (u16, String) {
    let response = admin.answer(method, path);
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn gauges_are_there_where_known_and_absent_where_not() {
    let admin = Admin::new(Registry::default(), source());
    let (status, text) = get(&admin, &Method::GET, "/metrics").await;
    assert_eq!(status, 200);
    let labels = r#"{pool="m\"x\\",backend="http://b0"}"#;
    for line in [
        format!("unlatch_backend_in_flight{labels} 5"),
        format!("unlatch_backend_reported_running{labels} 4"),
        format!("unlatch_backend_report_age_seconds{labels} 2"),
        format!("unlatch_backend_in_band_in_flight{labels} 6"),
        format!("unlatch_backend_in_band_age_seconds{labels} 1"),
        format!("unlatch_backend_kernel_connections{labels} 6"),
        format!("unlatch_backend_kernel_awaiting{labels} 3"),
        format!("unlatch_backend_kernel_streaming{labels} 4"),
        format!("unlatch_backend_kernel_unknown{labels} 0"),
        format!("unlatch_backend_kernel_foreign{labels} 1"),
        r#"unlatch_count_drift{backend="http://b0"} 1"#.to_owned(),
        r#"unlatch_backend_suspect{backend="http://b0",sign="silent"} 1"#.to_owned(),
        r#"unlatch_backend_suspect{backend="http://b0",sign="reset"} 0"#.to_owned(),
        r#"unlatch_backend_state{backend="http://b0",state="ready"} 1"#.to_owned(),
        r#"unlatch_backend_state{backend="http://b1",state="ready"} 0"#.to_owned(),
        r#"unlatch_backend_state{backend="http://b1",state="backed_off"} 1"#.to_owned(),
        r#"unlatch_backend_report_state{backend="http://b0",state="never_heard"} 1"#.to_owned(),
        r#"unlatch_backend_report_state{backend="http://b0",state="known"} 0"#.to_owned(),
        r#"unlatch_backend_report_state{backend="http://b1",state="asleep"} 1"#.to_owned(),
        r#"unlatch_kernel_attached{program="track_conns"} 1"#.to_owned(),
        r#"unlatch_scrape_failures_total{backend="http://b0",reason="refused"} 1"#.to_owned(),
    ] {
        assert!(text.lines().any(|l| l.trim_end_matches(".0") == line), "no {line} in\n{text}");
    }
    for name in [
        "reported_running",
        "reported_waiting",
        "reported_kv_use",
        "report_age_seconds",
        "in_band_in_flight",
        "in_band_age_seconds",
        "kernel_connections",
        "kernel_awaiting",
        "kernel_streaming",
        "kernel_unknown",
    ] {
        let unknown =
            |l: &&str| l.starts_with(&format!("unlatch_backend_{name}{{")) && l.contains("http://b1");
        assert_eq!(text.lines().find(unknown), None, "unknown is never a number");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn status_tells_every_backend_and_why_a_value_is_unknown() {
    let admin = Admin::new(Registry::default(), source());
    let (_, text) = get(&admin, &Method::GET, "/status").await;
    let v: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&v["policy"], &v["ready"]), (&"prefix-cost".into(), &true.into()));
    let (a, b) = (&v["backends"][0], &v["backends"][1]);
    assert_eq!(a["in_flight"], serde_json::json!({"own": 3, "others": 2}));
    assert_eq!(a["running"], serde_json::json!({"value": 4, "age_seconds": 2.0}));
    assert_eq!(a["waiting"], serde_json::json!({"value": null, "why": "never_heard"}));
    assert_eq!(
        a["report"],
        serde_json::json!({"state": "never_heard", "engine": "vllm", "problem": "x is missing"}),
        "one of two gauges is unknown"
    );
    assert_eq!(b["report"]["state"], "asleep");
    assert_eq!(a["seats"], serde_json::json!({"value": 4, "source": "proven_by_use"}));
    assert_eq!((&a["kernel"]["conns"], &a["models"]), (&6.into(), &serde_json::json!(["m"])));
    assert_eq!((&b["state"], &b["backoff_seconds"]), (&"backed_off".into(), &2.0.into()));
    assert!(b["kernel"].is_null() && b["models"].is_null() && b["prefill_tokens_per_second"].is_null());
}

#[tokio::test]
async fn readiness_follows_the_backends_and_health_does_not() {
    let source = source();
    let admin = Admin::new(Registry::default(), source.clone());
    assert_eq!(get(&admin, &Method::GET, "/readyz").await.0, 200);
    source.0.lock().backends.remove(0);
    assert_eq!(get(&admin, &Method::GET, "/readyz").await.0, 503);
    assert_eq!(get(&admin, &Method::GET, "/healthz").await.0, 200);
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let admin = Admin::new(Registry::default(), source());
    for path in ["/", "/backends", "/metrics/", "/../metrics"] {
        assert_eq!(get(&admin, &Method::GET, path).await.0, 404, "{path}");
    }
    let response = admin.answer(&Method::POST, "/metrics");
    assert_eq!(
        (response.status().as_u16(), response.headers()["allow"].to_str().unwrap()),
        (405, "GET, HEAD")
    );
}

#[tokio::test]
async fn requests_are_counted_by_closed_sets() {
    let mut registry = Registry::default();
    let m = RequestMetrics::new(&mut registry, [(id(0), "p", "http://b0"), (id(7), "p", "http://b7")]);
    m.placed(id(7), Reason::PrefixMatch, 60, 100);
    m.placed(id(7), Reason::PrefixMatch, 0, 50);
    m.finished(id(7), Outcome::Completed, Duration::from_secs(2));
    m.finished(id(0), Outcome::NeverSent, Duration::ZERO);
    m.first_byte(Duration::from_millis(300));
    m.retried(Retry::ConnectionClosed);
    m.refused(Refusal::BodyTooLarge);
    let text = encode(&registry);
    for line in [
        r#"unlatch_decisions_total{pool="p",backend="http://b7",reason="prefix_match"} 2"#,
        "unlatch_prefix_matched_tokens_total 60",
        "unlatch_prompt_tokens_total 150",
        r#"unlatch_request_seconds_count{pool="p",backend="http://b7",outcome="completed"} 1"#,
        r#"unlatch_request_seconds_bucket{le="2.5",pool="p",backend="http://b7",outcome="completed"} 1"#,
        r#"unlatch_request_seconds_count{pool="p",backend="http://b0",outcome="never_sent"} 1"#,
        "unlatch_ttft_seconds_count 1",
        r#"unlatch_retries_total{reason="connection_closed"} 1"#,
        r#"unlatch_refused_total{reason="body_too_large"} 1"#,
        r#"unlatch_refused_total{reason="bad_body"} 0"#,
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
}

#[test]
fn sets_are_indexed_by_their_order() {
    assert!(Refusal::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
    assert!(Retry::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
    assert!(Reason::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
}

#[tokio::test]
async fn the_listener_answers_get_and_head_over_one_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, Arc::new(Admin::new(Registry::default(), source()))));
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let requests = "HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2);
    assert_eq!(answer.matches("ok\n").count(), 1, "HEAD has no body");
    server.abort();
}
