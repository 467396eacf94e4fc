use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use router_common::BackendLoad;
use router_policy::{
    BackendId, BackendSnapshot, BackendSpec, InFlight, Models, Nanos, Outcome, PolicyName, Reason, Report,
    Seats, Signal, Trust, Why,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::auth::Via;
use super::{
    Admin, AdminToken, AnswerBody, Listener, Operate, OperateError, Operation, Reloaded, UnixSocket, serve,
};
use crate::account::{KernelRow, Sign, Suspicion};
use crate::backends::Heard;
use crate::backends::metrics_text::Engine;
use crate::config::BackendConfig;
use crate::discovery::SourceStatus;
use crate::observe::metrics::encode;
use crate::observe::status::{BackendStatus, DrainStatus, KernelStatus, Status, StatusSource, pool};
use crate::observe::{IndexStatus, Requests};
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
        draining: false,
        spec: BackendSpec::default(),
        streaming: 1,
        ready: true,
        trust: Trust::Full,
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
        arrivals: Some(6),
    };
    BackendStatus {
        id: id(row),
        url: format!("http://b{row}"),
        pool: pool(Some("m\"x\\")).to_owned(),
        snapshot,
        placed: 5,
        backoff_until: Nanos(0),
        scrape_failures: [0, 1, 0, 0],
        heard: Heard { engine: Some(Engine::Vllm), problem: Some("x is missing".to_owned()), asleep: false },
        held_against: None,
        kernel: Some(KernelRow { load: KERNEL, has_phases: true }),
        suspect: Some(Suspicion { sign: Sign::Silent, seconds: 31.25, requests: 7 }),
        source: Some("configuration".into()),
        drain: None,
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
        requests: Requests {
            decisions: vec![("prefix_match", 5)],
            ttft_buckets: vec![(Some(0.5), 2), (None, 3)],
        },
        sources: vec![SourceStatus {
            name: "dns:e".to_owned(),
            size: 2,
            changes: 3,
            failures: 1,
            cut: 0,
            good_age: None,
            error: Some("there is no such name".to_owned()),
        }],
        backends: vec![backend(0), silent],
    })))
}

/// Notes what it is asked for, and does it unless the row is none of the two.
#[derive(Default)]
struct Noting(Mutex<Vec<String>>);

impl Noting {
    fn note<T: Send + 'static>(&self, id: BackendId, what: &str, result: T) -> Operation<T> {
        if id.index() > 1 {
            return Box::pin(std::future::ready(Err(OperateError::NoSuchBackend)));
        }
        self.0.lock().push(what.to_owned());
        Box::pin(std::future::ready(Ok(result)))
    }
}

impl Operate for Noting {
    fn add(&self, backend: BackendConfig) -> Operation<Vec<BackendId>> {
        self.note(id(0), &format!("add {}", backend.spec.url), vec![id(2)])
    }

    fn remove(&self, id: BackendId, deadline: Option<Duration>) -> Operation<()> {
        self.note(id, &format!("remove {} {deadline:?}", id.index()), ())
    }

    fn drain(&self, id: BackendId, deadline: Option<Duration>) -> Operation<()> {
        self.note(id, &format!("drain {} {deadline:?}", id.index()), ())
    }

    fn undrain(&self, id: BackendId) -> Operation<()> {
        self.note(id, &format!("undrain {}", id.index()), ())
    }

    fn reload(&self) -> Operation<Reloaded> {
        self.note(id(0), "reload", Reloaded::default())
    }

    fn ask(&self, id: BackendId, request: Request<Bytes>) -> Operation<Response<Bytes>> {
        let body = String::from_utf8_lossy(request.body()).into_owned();
        let names: Vec<_> = request.headers().keys().map(|name| name.as_str()).collect();
        let asked = format!("{} {} {} {names:?} {body}", id.index(), request.method(), request.uri());
        let answer =
            Response::builder().status(418).header("content-type", "text/html").header("set-cookie", "a=b");
        self.note(id, &asked, answer.body("<script>".into()).unwrap())
    }
}

struct Plane {
    admin: Arc<Admin>,
    source: Arc<Fixed>,
    operate: Arc<Noting>,
}

const TOKEN: &str = "0123456789abcdef";

/// An admin plane with a token.
fn plane() -> Plane {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let token = AdminToken::open(Some(&file)).unwrap();
    plane_with(token)
}

fn plane_with(token: AdminToken) -> Plane {
    let (source, operate) = (source(), Arc::new(Noting::default()));
    let admin = Admin::new(Registry::default(), source.clone(), operate.clone(), Arc::new(token));
    Plane { admin: Arc::new(admin), source, operate }
}

fn request(method: &Method, path: &str, body: &str) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(path).body(Full::from(body.to_owned())).unwrap()
}

impl Plane {
    async fn send(&self, request: Request<Full<Bytes>>, via: Via) -> (u16, String) {
        let response = self.admin.answer(request, via).await;
        let status = response.status().as_u16();
        if let AnswerBody::Events(_) = response.body() {
            return (status, "events".to_owned());
        }
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.send(request(&Method::GET, path, ""), Via::Loopback).await
    }

    /// Over the Unix socket: what it answered, and what was asked of the fleet.
    async fn change(&self, method: Method, path: &str, body: &str) -> (u16, serde_json::Value, Vec<String>) {
        let (status, text) = self.send(request(&method, path, body), Via::Unix).await;
        let done = std::mem::take(&mut *self.operate.0.lock());
        (status, serde_json::from_str(&text).unwrap_or_default(), done)
    }
}

#[tokio::test]
async fn gauges_are_there_where_known_and_absent_where_not() {
    let (status, text) = plane().get("/metrics").await;
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
    let (_, text) = plane().get("/status").await;
    let v: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&v["policy"], &v["ready"]), (&"prefix-cost".into(), &true.into()));
    let source = &v["sources"][0];
    assert_eq!(
        (&source["name"], &source["failures"], &source["good_age_seconds"]),
        (&"dns:e".into(), &1.into(), &serde_json::Value::Null)
    );
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
async fn ready_is_who_has_a_ready_backend_in_every_pool() {
    let plane = plane();
    assert_eq!(plane.get("/readyz").await, (200, "ready\n".to_owned()));
    let lacks = |why: &str| (503, format!("not ready: {why}\n"));
    plane.source.0.lock().backends[1].pool = "other".to_owned();
    assert_eq!(plane.get("/readyz").await, lacks("no backend is ready in: other"));
    let shown: serde_json::Value = serde_json::from_str(&plane.get("/status").await.1).unwrap();
    assert_eq!(
        (&shown["ready"], &shown["pools_without_ready"]),
        (&false.into(), &serde_json::json!(["other"]))
    );
    let drain =
        |is_leaving| Some(DrainStatus { seconds: 1.0, left_seconds: Some(9.0), is_leaving, is_done: false });
    plane.source.0.lock().backends[1].drain = drain(true);
    assert_eq!(plane.get("/readyz").await.0, 200, "a pool that leaves is none any more");
    plane.source.0.lock().backends[0].snapshot.trust = Trust::Ejected;
    assert_eq!(plane.get("/readyz").await.0, 503, "what is ejected gets nothing");
    plane.source.0.lock().backends[0].snapshot.trust = Trust::Suspect;
    assert_eq!(plane.get("/readyz").await.0, 200, "a suspect is the last resort");
    plane.source.0.lock().backends[0].snapshot.draining = true;
    plane.source.0.lock().backends[0].drain = drain(false);
    assert_eq!(plane.get("/readyz").await, lacks("no backend is ready in: m\"x\\"), "nothing new goes there");
    plane.source.0.lock().is_draining = true;
    assert_eq!(plane.get("/readyz").await, lacks("the router is ending"));
    plane.source.0.lock().is_draining = false;
    plane.source.0.lock().backends.clear();
    assert_eq!(plane.get("/readyz").await, lacks("there is no backend"));
    assert_eq!(plane.get("/healthz").await, (200, "ok\n".to_owned()), "it lives all the same");
}

#[tokio::test]
async fn backends_are_read_alone_and_together() {
    let plane = plane();
    let read = |text: (u16, String)| -> serde_json::Value { serde_json::from_str(&text.1).unwrap() };
    let all = read(plane.get("/backends").await);
    assert_eq!(all["backends"].as_array().unwrap().len(), 2);
    assert_eq!(read(plane.get("/backends/1").await), all["backends"][1]);
    let engine_id = all["backends"][1]["engine_id"].as_str().unwrap();
    assert_eq!(read(plane.get(&format!("/backends/{engine_id}")).await), all["backends"][1]);
    let (_, _, asked) = plane.change(Method::POST, &format!("/backends/{engine_id}/drain"), "").await;
    assert_eq!(asked, ["drain 1 None"]);
    for nobody in ["/backends/2", "/backends/x", "/backends/0123456789abcdef"] {
        let (status, text) = plane.get(nobody).await;
        assert_eq!(
            (status, &read((status, text))["error"]["code"]),
            (404, &"no_such_backend".into()),
            "{nobody}"
        );
    }
}

#[tokio::test]
async fn the_snapshot_of_the_page_has_what_is_known_and_why_the_rest_is_not() {
    let plane = plane();
    let shown = super::snapshot::snapshot(&plane.source.status(), 3);
    assert_eq!((&shown["decisions"]["prefix_match"], &shown["subscribers"]), (&5.into(), &3.into()));
    assert_eq!(shown["ttft_buckets"], serde_json::json!([[0.5, 2], [null, 3]]));
    let (a, b) = (&shown["backends"][0], &shown["backends"][1]);
    assert_eq!(
        (&a["own"], &a["kernel"]["awaiting"], &a["running"]["value"]),
        (&3.into(), &3.into(), &4.into())
    );
    assert_eq!(a["waiting"], serde_json::json!({"value": null, "why": "never_heard"}));
    assert!(b["kernel"].is_null() && b["running"]["value"].is_null() && b["suspect"].is_null());
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let plane = plane();
    for path in ["/x", "/backends/", "/metrics/", "/../metrics"] {
        assert_eq!(plane.get(path).await.0, 404, "{path}");
    }
    for (method, path, allow) in [
        (Method::POST, "/metrics", "GET, HEAD, OPTIONS"),
        (Method::DELETE, "/backends", "GET, HEAD, POST, OPTIONS"),
        (Method::GET, "/reload", "POST, OPTIONS"),
        (Method::PUT, "/backends/0", "GET, HEAD, DELETE, OPTIONS"),
        (Method::GET, "/backends/0/drain", "POST, OPTIONS"),
    ] {
        let response = plane.admin.answer(request(&method, path, ""), Via::Unix).await;
        let allowed = response.headers()["allow"].to_str().unwrap();
        assert_eq!((response.status().as_u16(), allowed), (405, allow), "{method} {path}");
        let response = plane.admin.answer(request(&Method::OPTIONS, path, ""), Via::Network).await;
        let allowed = response.headers()["allow"].to_str().unwrap();
        assert_eq!((response.status().as_u16(), allowed), (204, allow), "{path}");
        assert!(!response.headers().contains_key("access-control-allow-origin"));
    }
    assert!(plane.operate.0.lock().is_empty());
}

#[tokio::test]
async fn changes_are_passed_to_the_fleet() {
    let plane = plane();
    for (method, path, body, status, done) in [
        (Method::POST, "/backends", r#"{"backend":"http://h:1,model=m"}"#, 201, "add http://h:1"),
        (Method::DELETE, "/backends/1", "", 202, "remove 1 None"),
        (Method::DELETE, "/backends/1?deadline=30s", "", 202, "remove 1 Some(30s)"),
        (Method::POST, "/backends/0/drain", "", 202, "drain 0 None"),
        (Method::POST, "/backends/0/drain?deadline=0", "", 202, "drain 0 Some(0ns)"),
        (Method::POST, "/backends/0/undrain", "", 202, "undrain 0"),
        (Method::POST, "/reload", "", 200, "reload"),
        (Method::POST, "/backends/1/sleep?level=2", "", 418, "1 POST /sleep?level=2 [] "),
        (Method::POST, "/backends/1/wake_up", "", 418, "1 POST /wake_up [] "),
        (Method::GET, "/backends/1/is_sleeping", "", 418, "1 GET /is_sleeping [] "),
        (Method::GET, "/backends/1/engine/slots?a=b", "", 418, "1 GET /slots?a=b [] "),
        (
            Method::POST,
            "/backends/1/engine/v1/load_lora_adapter",
            "{}",
            418,
            "1 POST /v1/load_lora_adapter [] {}",
        ),
    ] {
        let (answered, value, asked) = plane.change(method.clone(), path, body).await;
        assert_eq!((answered, asked), (status, vec![done.to_owned()]), "{method} {path}: {value}");
    }
    for (method, path, body, status, code) in [
        (Method::POST, "/backends", "{}", 400, "bad_backend"),
        (Method::POST, "/backends", r#"{"backend":"http://h,modle=m"}"#, 400, "bad_backend"),
        (Method::POST, "/backends/0/drain?deadline=soon", "", 400, "bad_query"),
        (Method::POST, "/backends/0/drain?dead=1s", "", 400, "bad_query"),
        (Method::DELETE, "/backends/0?deadline=999h", "", 400, "bad_query"),
        (Method::DELETE, "/backends/2", "", 404, "no_such_backend"),
        (Method::POST, "/backends/none/drain", "", 404, "no_such_backend"),
        (Method::POST, "/backends/2/sleep", "", 404, "no_such_backend"),
        (Method::GET, "/backends/2/engine/slots", "", 404, "no_such_backend"),
    ] {
        let (answered, value, asked) = plane.change(method.clone(), path, body).await;
        assert_eq!((answered, &value["error"]["code"]), (status, &code.into()), "{method} {path}: {value}");
        assert!(value["error"]["message"].is_string() && value["error"]["type"].is_string());
        assert!(asked.is_empty(), "{method} {path}: {asked:?}");
    }
    let large = "x".repeat(super::BODY_BYTES_MAX + 1);
    let (status, value, asked) = plane.change(Method::POST, "/backends", &large).await;
    assert_eq!((status, &value["error"]["code"], asked.len()), (413, &"body_too_large".into(), 0));
}

#[tokio::test]
async fn an_engine_gets_nothing_of_the_callers_and_its_answer_does_not_run_here() {
    let plane = plane();
    let mut asking = request(&Method::POST, "/backends/0/engine/x", "body");
    for (name, value) in [
        ("authorization", format!("Bearer {TOKEN}")),
        ("cookie", "c=d".to_owned()),
        ("content-type", "application/json".to_owned()),
        ("connection", "keep-alive, x-hop".to_owned()),
        ("x-hop", "1".to_owned()),
        ("accept", "*/*".to_owned()),
    ] {
        let name: hyper::header::HeaderName = name.parse().unwrap();
        asking.headers_mut().insert(name, value.parse().unwrap());
    }
    let answer = plane.admin.answer(asking, Via::Network).await;
    let asked = plane.operate.0.lock().pop().unwrap();
    assert_eq!(asked, r#"0 POST /x ["accept", "content-type"] body"#);
    let header = |name: &str| answer.headers().get(name).map(|v| v.to_str().unwrap());
    assert_eq!(header("content-security-policy"), Some("sandbox; default-src 'none'"));
    assert_eq!((header("content-type"), header("set-cookie")), (Some("text/html"), None));
}

#[tokio::test]
async fn what_changes_something_is_refused_without_the_right_and_asks_nobody() {
    let (with, without) = (plane(), plane_with(AdminToken::open(None).unwrap()));
    for (method, path) in [
        (Method::POST, "/backends"),
        (Method::DELETE, "/backends/0"),
        (Method::POST, "/backends/0/drain"),
        (Method::POST, "/backends/0/undrain"),
        (Method::POST, "/backends/0/sleep"),
        (Method::POST, "/backends/0/wake_up"),
        (Method::POST, "/reload"),
        (Method::GET, "/backends/0/engine/slots"),
        (Method::OPTIONS, "/backends/0/engine/slots"),
    ] {
        for via in [Via::Loopback, Via::Network] {
            let (status, text) = without.send(request(&method, path, ""), via).await;
            assert_eq!(status, 403, "{method} {path}");
            assert!(text.contains("--admin-token-file") && text.contains("unix:PATH"), "it says how: {text}");
            let (status, text) = with.send(request(&method, path, ""), via).await;
            assert!(status == 401 && text.contains("authentication_error"), "{method} {path}: {text}");
            let mut right = request(&method, path, "{}");
            right.headers_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
            right.headers_mut().insert("sec-fetch-site", "cross-site".parse().unwrap());
            assert_eq!(with.send(right, via).await.0, 403, "{method} {path} from another site");
        }
    }
    assert!(with.operate.0.lock().is_empty() && without.operate.0.lock().is_empty());
    let (_, metrics) = with.get("/metrics").await;
    for line in [
        r#"unlatch_admin_refused_total{reason="denied"} 18"#,
        r#"unlatch_admin_refused_total{reason="other_site"} 18"#,
        r#"unlatch_admin_refused_total{reason="body"} 0"#,
        r#"unlatch_admin_refused_total{reason="subscribers"} 0"#,
    ] {
        assert!(metrics.lines().any(|l| l == line), "no {line} in\n{metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_given_up() {
    struct Never;
    impl hyper::body::Body for Never {
        type Data = Bytes;
        type Error = std::convert::Infallible;
        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }
    let plane = plane();
    let request = Request::post("/backends").body(Never).unwrap();
    assert_eq!(plane.admin.answer(request, Via::Unix).await.status().as_u16(), 408);
}

#[tokio::test]
async fn requests_are_counted_by_closed_sets() {
    let mut registry = Registry::default();
    let m = RequestMetrics::new(&mut registry);
    m.add(id(0), "p", "http://b0");
    m.add(id(7), "p", "http://b7");
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
    m.add(id(7), "p", "http://b7");
    assert!(encode(&registry).contains("http://b7"), "added again it goes on");
    m.remove(id(7));
    m.finished(id(7), Outcome::Completed, Duration::from_secs(2));
    let text = encode(&registry);
    assert!(!text.contains("http://b7") && text.contains("http://b0"), "a ghost in\n{text}");
}

#[test]
fn sets_are_indexed_by_their_order() {
    assert!(Refusal::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
    assert!(Retry::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
    assert!(Reason::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
}

/// What a server answers to these bytes, which end with `Connection: close`.
async fn talk(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, requests: &str) -> String {
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn the_listener_answers_get_and_head_over_one_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(Listener::Tcp(listener.into_std().unwrap()), plane().admin));
    let requests = "HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = talk(TcpStream::connect(addr).await.unwrap(), requests).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2);
    assert_eq!(answer.matches("ok\n").count(), 1, "HEAD has no body");
    let drain = "POST /backends/0/drain HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = talk(TcpStream::connect(addr).await.unwrap(), drain).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    server.abort();
}

#[tokio::test]
async fn over_the_socket_no_token_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    let plane = plane_with(AdminToken::open(None).unwrap());
    let server =
        tokio::spawn(serve(Listener::Unix(UnixSocket::bind(&path).unwrap()), Arc::clone(&plane.admin)));
    let drain = "POST /backends/0/drain HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = talk(UnixStream::connect(&path).await.unwrap(), drain).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    assert_eq!(*plane.operate.0.lock(), ["drain 0 None"]);
    server.abort();
    let _aborted = server.await;
    assert!(!path.exists(), "the end removes its file");
}
