//! The watch against scripted engines on loopback.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use router_policy::{BackendId, Models, Report, Signal, Trust, Why};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Inference, ReportSink, WatchConfig, watch};
use crate::backends::health::Rules;
use crate::backends::{HealthAt, Mark, ScrapeFailure, Target};

pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const MODELS: &str = r#"{"object":"list","data":[{"id":"m"}]}"#;
pub(super) const VLLM: &str = "vllm:num_requests_running 4\nvllm:num_requests_waiting 6\n\
                    vllm:cache_config_info{num_gpu_blocks=\"10\",block_size=\"16\"} 1\n";
const LLAMA: &str = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n";

#[derive(Clone)]
pub(super) enum Reply {
    Text(u16, String),
    /// 200, packed by gzip.
    Packed(Vec<u8>),
    /// 302 to a login.
    Login,
    Hang,
    /// Waits for the permit, then the models.
    Held(Arc<tokio::sync::Semaphore>),
    Endless,
}

pub(super) fn text(status: u16, body: &str) -> Reply {
    Reply::Text(status, body.to_owned())
}

/// What a scripted engine answers, and what it was asked.
pub(super) struct Script {
    pub(super) models: Mutex<Reply>,
    pub(super) metrics: Mutex<Reply>,
    slots: Mutex<Reply>,
    /// Metrics at another path.
    pub(super) elsewhere: Mutex<Option<(&'static str, Reply)>>,
    /// Path, `Host`, `Authorization` of each request.
    pub(super) asked: Mutex<Vec<(String, String, Option<String>)>>,
    close_after_answer: bool,
}

impl Script {
    pub(super) fn new(models: Reply, metrics: Reply) -> Arc<Self> {
        let (slots, asked) = (Mutex::new(text(404, "")), Mutex::default());
        let (models, metrics) = (Mutex::new(models), Mutex::new(metrics));
        let elsewhere = Mutex::default();
        Arc::new(Self { models, metrics, slots, elsewhere, asked, close_after_answer: false })
    }

    pub(super) fn count(&self, path: &str) -> usize {
        self.asked.lock().iter().filter(|(p, ..)| p == path).count()
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
        let header = |name| request.headers().get(name).map(|v: &HeaderValue| v.to_str().unwrap().to_owned());
        let path = request.uri().path().to_owned();
        let elsewhere = self.elsewhere.lock().clone().filter(|(at, _)| *at == path);
        let reply = match path.trim_start_matches("/base") {
            _ if elsewhere.is_some() => elsewhere.unwrap().1,
            "/v1/models" => self.models.lock().clone(),
            "/metrics" => self.metrics.lock().clone(),
            _ => self.slots.lock().clone(),
        };
        self.asked.lock().push((path, header(HOST).unwrap_or_default(), header(AUTHORIZATION)));
        Ok(match reply {
            Reply::Text(status, body) => {
                Response::builder().status(status).body(Full::from(body).boxed()).unwrap()
            }
            Reply::Packed(body) => {
                Response::builder().header("content-encoding", "gzip").body(Full::from(body).boxed()).unwrap()
            }
            Reply::Login => Response::builder()
                .status(302)
                .header("location", "/login")
                .body(Full::default().boxed())
                .unwrap(),
            Reply::Hang => std::future::pending().await,
            Reply::Held(until) => {
                until.acquire().await.unwrap().forget();
                Response::new(Full::from(MODELS).boxed())
            }
            Reply::Endless => {
                let line = Bytes::from(format!("{}\n", "x 1\n".repeat(16_384)));
                Response::new(BodyExt::boxed(Endless(line)))
            }
        })
    }
}

/// A body of one frame for ever.
struct Endless(Bytes);

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(Some(Ok(Frame::data(self.0.clone()))))
    }
}

/// Serves the script until dropped.
pub(super) fn serve(listener: TcpListener, script: Arc<Script>) -> JoinSet<()> {
    let mut set = JoinSet::new();
    set.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let script = Arc::clone(&script);
            connections.spawn(async move {
                let mut http = hyper::server::conn::http1::Builder::new();
                http.keep_alive(!script.close_after_answer);
                let service = service_fn(|request| {
                    let script = Arc::clone(&script);
                    async move { script.answer(request).await }
                });
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    set
}

pub(super) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

#[derive(Default)]
pub(super) struct Told {
    pub(super) reports: Mutex<Vec<Report>>,
    models: Mutex<Vec<Models>>,
    pub(super) ready: Mutex<Vec<bool>>,
    begun: Mutex<usize>,
    pub(super) trust: Mutex<Vec<&'static str>>,
    pub(super) lost: Mutex<usize>,
}

impl ReportSink for Told {
    fn report_begins(&self, _: BackendId) {
        *self.begun.lock() += 1;
    }
    fn report(&self, _: BackendId, report: Report) -> Report {
        self.reports.lock().push(report.clone());
        report
    }
    fn models(&self, _: BackendId, models: Models) {
        self.models.lock().push(models);
    }
    fn ready(&self, _: BackendId, ready: bool) {
        self.ready.lock().push(ready);
    }
    fn trust(&self, _: BackendId, trust: Trust) {
        self.trust.lock().push(trust.as_str());
    }
    fn cache_lost(&self, _: BackendId) {
        *self.lost.lock() += 1;
    }
}

pub(super) fn target(addr: SocketAddr, model: bool) -> Arc<Target> {
    Arc::new(plain_target(addr, model))
}

pub(super) fn plain_target(addr: SocketAddr, model: bool) -> Target {
    let key = Some(HeaderValue::from_static("Bearer k"));
    let host = HeaderValue::from_static("engine");
    let id = BackendId::new(5).unwrap();
    let target = Target::new(id, "http://engine".into(), addr, host, "/base".into(), key, model);
    // Models alone are asked for, and one good answer is enough.
    let rules = Rules { healthy_threshold: 1, ..Rules::default() };
    target.with_health(HealthAt { path: None, ..HealthAt::default() }).with_rules(rules)
}

pub(super) fn config(interval_ms: u64) -> WatchConfig {
    WatchConfig {
        interval: Duration::from_millis(interval_ms),
        timeout: Duration::from_secs(5),
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(20),
        inference: None,
        mark: None,
    }
}

/// A watch of one target, and what it told.
pub(super) fn start(target: &Arc<Target>, config: &WatchConfig) -> (JoinSet<()>, Arc<Told>) {
    let told = Arc::new(Told::default());
    let sink: Arc<dyn ReportSink> = told.clone();
    let mut set = JoinSet::new();
    set.spawn(watch(Arc::clone(target), sink, config.clone()));
    (set, told)
}

pub(super) async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn the_first_round_comes_at_once_and_tells_models_readiness_and_load() {
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), text(200, VLLM));
    let _engine = serve(listener, Arc::clone(&script));
    let (_watch, told) = start(&target(addr, false), &WatchConfig { interval: HOUR, ..config(0) });
    wait_until("a report", || !told.reports.lock().is_empty()).await;
    let report = told.reports.lock()[0].clone();
    assert_eq!((report.running.value(), report.waiting.value()), (Some(4), Some(6)));
    assert_eq!((report.kv_tokens.value(), report.seats), (Some(160), Signal::Unknown(Why::NeverHeard)));
    assert_eq!((*told.begun.lock(), *told.lost.lock()), (1, 0));
    assert_eq!(*told.ready.lock(), [true]);
    assert!(matches!(&told.models.lock()[..], [Models::Listed(ids, _)] if ids == &["m"]));
    let key = Some("Bearer k".to_owned());
    let asked =
        ["/base/v1/models", "/base/metrics"].map(|p| (p.to_owned(), "engine".to_owned(), key.clone()));
    assert_eq!(*script.asked.lock(), asked, "below the base path, with the backend's host and key");
}

#[tokio::test]
async fn a_refusing_engine_is_not_ready_and_its_cache_is_lost_when_it_answers_again() {
    let (listener, addr) = listen().await;
    drop(listener);
    let target = target(addr, true);
    let (_watch, told) = start(&target, &config(10));
    wait_until("not ready", || told.ready.lock().last() == Some(&false)).await;
    assert_eq!(told.reports.lock()[0].running, Signal::Unknown(Why::Unreachable));
    assert_eq!(*told.lost.lock(), 0);
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(addr).unwrap();
    let _engine = serve(socket.listen(16).unwrap(), Script::new(text(200, MODELS), text(200, VLLM)));
    wait_until("ready", || told.ready.lock().last() == Some(&true)).await;
    assert_eq!(*told.lost.lock(), 1, "once for each return");
    assert!(target.may_try(crate::clock::now()), "an answer ends the back-off");
}

#[tokio::test]
async fn an_answer_does_not_undo_a_back_off_that_began_while_it_was_on_its_way() {
    let (listener, addr) = listen().await;
    let until = Arc::new(tokio::sync::Semaphore::new(0));
    let script = Script::new(Reply::Held(Arc::clone(&until)), text(404, ""));
    let _engine = serve(listener, Arc::clone(&script));
    let target = target(addr, false);
    let (_watch, told) = start(&target, &WatchConfig { interval: HOUR, ..config(0) });
    wait_until("a question", || script.count("/base/v1/models") == 1).await;
    target.connect_failed(crate::clock::now(), Duration::from_secs(2), HOUR);
    until.add_permits(1);
    wait_until("a round", || !told.ready.lock().is_empty()).await;
    assert!(!told.ready.lock()[0], "the failed connection is the newer word");
    until.add_permits(1);
    wait_until("ready", || told.ready.lock().last() == Some(&true)).await;
    assert_eq!(
        script.count("/base/v1/models"),
        2,
        "asked again when the back-off ended, not at the interval"
    );
}

#[tokio::test]
async fn an_engine_that_loads_is_not_ready_even_if_its_model_is_configured() {
    for configured in [false, true] {
        let (listener, addr) = listen().await;
        let script = Script::new(text(503, "{}"), text(200, VLLM));
        let _engine = serve(listener, Arc::clone(&script));
        let (_watch, told) = start(&target(addr, configured), &config(10));
        wait_until("rounds", || told.ready.lock().len() > 3).await;
        // Until it is asked, what has its model configured is hoped for.
        assert_eq!(told.ready.lock().iter().filter(|ready| **ready).count(), usize::from(configured));
        *script.models.lock() = text(200, MODELS);
        wait_until("ready", || told.ready.lock().last() == Some(&true)).await;
        assert_eq!(*told.lost.lock(), 0, "loading is no restart");
    }
}

#[tokio::test]
async fn an_engine_that_keeps_its_list_to_itself_is_ready_for_any_model() {
    let (listener, addr) = listen().await;
    let _engine = serve(listener, Script::new(text(401, "{}"), text(404, "")));
    let target = target(addr, false);
    let (_watch, told) = start(&target, &config(10));
    wait_until("reports", || told.reports.lock().len() > 1).await;
    assert!(told.ready.lock()[0]);
    assert_eq!(told.models.lock()[0], Models::Unknown);
    assert_eq!(told.reports.lock()[0].running, Signal::Unknown(Why::Refused));
    assert!(target.scrape_failures(ScrapeFailure::Refused) > 0);
}

#[tokio::test]
async fn answers_that_do_not_come_in_time_take_no_readiness_away() {
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), text(200, VLLM));
    let _engine = serve(listener, Arc::clone(&script));
    let timeout = Duration::from_millis(500);
    let (_watch, told) = start(&target(addr, false), &WatchConfig { timeout, ..config(10) });
    wait_until("ready", || told.ready.lock().last() == Some(&true)).await;
    let before = script.count("/base/v1/models");
    *script.models.lock() = Reply::Hang;
    wait_until("questions", || script.count("/base/v1/models") > before + 3).await;
    assert!(told.ready.lock().iter().all(|ready| *ready), "a busy engine is not dead");
    assert_eq!(*told.lost.lock(), 0);
}

#[tokio::test]
async fn a_missing_gauge_is_unknown_and_counted() {
    let (listener, addr) = listen().await;
    let _engine = serve(listener, Script::new(text(200, MODELS), text(200, "vllm:num_requests_running 4\n")));
    let target = target(addr, false);
    let (_watch, told) = start(&target, &config(10));
    wait_until("a report", || !told.reports.lock().is_empty()).await;
    let report = told.reports.lock()[0].clone();
    assert_eq!((report.running.value(), report.waiting), (Some(4), Signal::Unknown(Why::Missing)));
    assert!(told.ready.lock()[0], "a monitoring failure is no serving failure");
    assert!(target.scrape_failures(ScrapeFailure::Incomplete) > 0);
}

#[tokio::test]
async fn an_endless_text_is_given_up() {
    let (listener, addr) = listen().await;
    let _engine = serve(listener, Script::new(text(200, MODELS), Reply::Endless));
    let target = target(addr, false);
    let (_watch, told) = start(&target, &WatchConfig { timeout: Duration::from_secs(20), ..config(10) });
    wait_until("a report", || !told.reports.lock().is_empty()).await;
    assert_eq!(told.reports.lock()[0].running, Signal::Unknown(Why::Malformed));
    assert!(target.scrape_failures(ScrapeFailure::TooLarge) > 0);
}

#[tokio::test]
async fn llama_cpp_tells_its_seats_once_and_is_scraped_slowly() {
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), text(200, LLAMA));
    *script.slots.lock() = text(200, r#"[{"id":0},{"id":1}]"#);
    let _engine = serve(listener, Arc::clone(&script));
    let (_watch, told) = start(&target(addr, false), &config(10));
    let started = std::time::Instant::now();
    wait_until("two scrapes", || told.reports.lock().len() > 1).await;
    assert!(started.elapsed() > Duration::from_millis(1_800), "the second scrape came too early");
    assert!(script.count("/base/v1/models") > 5, "models are asked at the interval");
    assert_eq!(script.count("/base/slots"), 1);
    for report in told.reports.lock().iter() {
        assert_eq!(
            (report.running.value(), report.waiting.value(), report.seats.value()),
            (Some(2), Some(1), Some(2))
        );
    }
}

#[tokio::test]
async fn a_connection_closed_after_each_answer_is_replaced() {
    let (listener, addr) = listen().await;
    let mut script = Script::new(text(200, MODELS), text(200, VLLM));
    Arc::get_mut(&mut script).unwrap().close_after_answer = true;
    let _engine = serve(listener, script);
    let (_watch, told) = start(&target(addr, false), &config(5));
    wait_until("reports", || told.reports.lock().len() > 4).await;
    assert!(told.reports.lock().iter().all(|r| r.running.value() == Some(4)));
    assert!(told.ready.lock().iter().all(|ready| *ready));
}

#[tokio::test]
async fn another_start_time_of_the_process_is_a_lost_cache() {
    let (listener, addr) = listen().await;
    let at = |seconds: u32| text(200, &format!("{VLLM}process_start_time_seconds {seconds}\n"));
    let script = Script::new(text(200, MODELS), at(5));
    let _engine = serve(listener, Arc::clone(&script));
    let (_watch, told) = start(&target(addr, false), &config(5));
    wait_until("reports", || told.reports.lock().len() > 2).await;
    assert_eq!(*told.lost.lock(), 0);
    *script.metrics.lock() = at(6);
    wait_until("a lost cache", || *told.lost.lock() == 1).await;
}

#[tokio::test]
async fn a_failed_connection_of_the_data_plane_is_followed_by_a_question_when_the_backoff_ends() {
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), text(200, VLLM));
    let _engine = serve(listener, Arc::clone(&script));
    let target = target(addr, false);
    let (_watch, told) = start(&target, &WatchConfig { interval: HOUR, ..config(0) });
    wait_until("a report", || !told.reports.lock().is_empty()).await;
    target.connect_failed(crate::clock::now(), Duration::from_millis(200), Duration::from_secs(1));
    wait_until("a second round", || told.reports.lock().len() == 2).await;
    assert_eq!(*told.ready.lock(), [true, false, true]);
}

#[tokio::test]
async fn sockets_are_marked_before_they_connect() {
    use std::os::fd::AsRawFd;
    let (listener, addr) = listen().await;
    let _engine = serve(listener, Script::new(text(200, MODELS), text(200, VLLM)));
    let marked: Arc<Mutex<Vec<(BackendId, bool)>>> = Arc::default();
    let seen = Arc::clone(&marked);
    let mark: Mark = Arc::new(move |fd, id| {
        let connected = rustix::net::getpeername(fd).is_ok();
        assert!(fd.as_raw_fd() >= 0);
        seen.lock().push((id, connected));
    });
    let (_watch, told) = start(&target(addr, false), &WatchConfig { mark: Some(mark), ..config(10) });
    wait_until("reports", || told.reports.lock().len() > 3).await;
    assert_eq!(*marked.lock(), [(BackendId::new(5).unwrap(), false)], "one connection serves all questions");
}

/// The one question that a wedged engine does not answer; not asked while requests show that it lives.
#[tokio::test]
async fn an_inference_of_our_own_finds_a_wedged_engine_and_brings_it_back() {
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), text(404, ""));
    *script.elsewhere.lock() = Some(("/base/v1/completions", Reply::Hang));
    let _engine = serve(listener, Arc::clone(&script));
    let target = target(addr, false);
    let inference = Inference { interval: Duration::from_millis(20), timeout: Duration::from_millis(100) };
    let config = WatchConfig { inference: Some(inference), ..config(10) };
    let (_watch, told) = start(&target, &config);
    wait_until("suspect", || told.trust.lock().contains(&"suspect")).await;
    assert!(told.ready.lock().iter().all(|ready| *ready), "its models are listed all the while");
    *script.elsewhere.lock() = Some(("/base/v1/completions", text(200, "{}")));
    wait_until("trusted", || matches!(told.trust.lock().last(), Some(&"ready" | &"slow_start"))).await;
    // Bytes of requests: no question is needed, from the one that may be on its way on.
    let asked = || script.count("/base/v1/completions");
    let begun = tokio::time::Instant::now();
    let mut before = usize::MAX;
    while begun.elapsed() < Duration::from_millis(300) {
        target.vitals.saw_bytes();
        if begun.elapsed() > Duration::from_millis(100) && before == usize::MAX {
            before = asked();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(asked(), before, "a busy engine is left alone");
}

/// H06, over the wire: not ready while it loads; and an engine that served is trusted less, not taken away.
#[tokio::test]
async fn h06_a_probe_that_fails_in_a_row_is_told_as_trust_once_it_has_served() {
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), text(404, ""));
    *script.elsewhere.lock() = Some(("/base/health", text(503, "{}")));
    let _engine = serve(listener, Arc::clone(&script));
    let key = HealthAt::default();
    let target = Arc::new(plain_target(addr, true).with_health(key));
    let (_watch, told) = start(&target, &config(10));
    wait_until("rounds", || told.ready.lock().len() > 4).await;
    assert!(told.ready.lock()[1..].iter().all(|ready| !ready), "it loads");
    *script.elsewhere.lock() = Some(("/base/health", text(200, "OK")));
    wait_until("ready", || told.ready.lock().last() == Some(&true)).await;
    *script.elsewhere.lock() = Some(("/base/health", Reply::Login));
    wait_until("another service", || told.ready.lock().last() == Some(&false)).await;
    *script.elsewhere.lock() = Some(("/base/health", text(200, "OK")));
    wait_until("ready", || told.ready.lock().last() == Some(&true)).await;
    let before = told.ready.lock().len();
    *script.elsewhere.lock() = Some(("/base/health", text(401, "")));
    wait_until("ejected", || told.trust.lock().last() == Some(&"ejected")).await;
    assert!(told.ready.lock()[before..].iter().all(|ready| *ready), "better it than nobody");
}
