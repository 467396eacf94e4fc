//! What the watch makes of engines' metrics: where they are, what is wrong with them, and who sleeps.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use flate2::{Compression, write::GzEncoder};
use hyper::header::HeaderValue;
use parking_lot::Mutex;
use router_policy::{Signal, Why};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::WatchConfig;
use super::tests::{
    HOUR, MODELS, Reply, Script, VLLM, config, listen, plain_target, serve, start, target, text, wait_until,
};
use crate::backends::metrics_text::Engine;
use crate::backends::{MetricsAt, ScrapeFailure};

const SGLANG: &str = "sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\n";

/// Keeps warnings and notes as text, of the thread that it is set for.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Fields(String);
        impl Visit for Fields {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                let _ = write!(self.0, "{}={value:?} ", field.name());
            }
        }
        let mut fields = Fields(format!("{} ", event.metadata().level()));
        event.record(&mut fields);
        self.0.lock().push(fields.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Log {
    fn with(&self, part: &str) -> Vec<String> {
        self.0.lock().iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

fn asleep(awake: u8) -> Reply {
    let state = format!("vllm:engine_sleep_state{{sleep_state=\"awake\"}} {awake}\n");
    let idle = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n";
    text(200, &format!("{idle}{state}"))
}

#[tokio::test]
async fn an_engine_that_sleeps_gets_nothing_until_it_is_awake_and_has_lost_its_cache() {
    for model in [false, true] {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let (listener, addr) = listen().await;
        let script = Script::new(text(200, MODELS), asleep(0));
        let _engine = serve(listener, Arc::clone(&script));
        let target = target(addr, model);
        let (_watch, told) = start(&target, &config(10));
        wait_until("reports", || told.reports.lock().len() > 2).await;
        let ready = told.ready.lock().clone();
        // What has its model configured is ready before anybody asks.
        assert_eq!(ready.iter().filter(|ready| **ready).count(), usize::from(model), "{ready:?}");
        assert!(target.heard().asleep);
        assert_eq!(*told.lost.lock(), 1, "sleep discards the cache, once");
        *script.metrics.lock() = asleep(1);
        wait_until("ready", || told.ready.lock().last() == Some(&true)).await;
        wait_until("awake", || !target.heard().asleep).await;
        *script.metrics.lock() = asleep(0);
        wait_until("not ready", || told.ready.lock().last() == Some(&false)).await;
        // It says nothing else any more: it is not awake for that.
        *script.metrics.lock() = text(401, "");
        let before = told.ready.lock().len();
        wait_until("rounds", || told.ready.lock().len() > before + 3).await;
        assert!(told.ready.lock()[before..].iter().all(|ready| !ready));
        assert_eq!((log.with("sleeps").len(), log.with("awake again").len()), (2, 1));
    }
}

/// M05, and of S02 what is about scrapes.
#[tokio::test]
async fn m05_a_key_path_and_port_of_the_metrics_are_used_there_and_nowhere_else() {
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), text(401, "{}"));
    let _engine = serve(listener, Arc::clone(&script));
    let (other_listener, other) = listen().await;
    let metrics = Script::new(text(404, ""), text(404, ""));
    *metrics.elsewhere.lock() = Some(("/m", text(200, SGLANG)));
    let _metrics = serve(other_listener, Arc::clone(&metrics));
    let at = MetricsAt {
        engine: Some(Engine::Sglang),
        path: Some("/m".to_owned()),
        port_of_its_own: Some((other, HeaderValue::from_static("engine:8002"))),
        authorization: Some(HeaderValue::from_static("Bearer scrape-key")),
    };
    let target = Arc::new(plain_target(addr, false).with_metrics(at));
    let (_watch, told) = start(&target, &WatchConfig { interval: HOUR, ..config(0) });
    wait_until("a report", || !told.reports.lock().is_empty()).await;
    let report = told.reports.lock()[0].clone();
    assert_eq!((report.running.value(), report.waiting.value()), (Some(3), Some(1)));
    let key = |key: &str| Some(format!("Bearer {key}"));
    assert_eq!(*script.asked.lock(), [("/base/v1/models".to_owned(), "engine".to_owned(), key("k"))]);
    assert_eq!(*metrics.asked.lock(), [("/m".to_owned(), "engine:8002".to_owned(), key("scrape-key"))]);
}

/// M05.
#[tokio::test]
async fn m05_metrics_that_are_refused_take_no_readiness_and_are_said_once() {
    for (reply, failure, why, part) in [
        (text(401, "{\"error\":\"no\"}"), ScrapeFailure::Refused, Why::Refused, "status 401"),
        (text(404, ""), ScrapeFailure::Refused, Why::Refused, "status 404"),
        (text(501, ""), ScrapeFailure::Refused, Why::Refused, "status 501"),
        (Reply::Login, ScrapeFailure::Refused, Why::Refused, "status 302"),
        (Reply::Hang, ScrapeFailure::Unreachable, Why::Unreachable, "no answer in time"),
        (text(200, "<html>log in</html>"), ScrapeFailure::Incomplete, Why::Missing, "HTML"),
        (text(200, ""), ScrapeFailure::Incomplete, Why::Missing, "empty"),
        (text(200, "[]"), ScrapeFailure::Incomplete, Why::Missing, "JSON"),
    ] {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let (listener, addr) = listen().await;
        let script = Script::new(text(200, MODELS), reply);
        let _engine = serve(listener, Arc::clone(&script));
        let target = target(addr, false);
        let timeout = Duration::from_millis(200);
        let (_watch, told) = start(&target, &WatchConfig { timeout, ..config(5) });
        wait_until("reports", || told.reports.lock().len() > 2).await;
        assert!(told.reports.lock().iter().all(|r| r.running == Signal::Unknown(why)), "{part}");
        assert!(told.ready.lock().iter().all(|ready| *ready), "{part}: no serving failure");
        assert!(target.scrape_failures(failure) > 2);
        let said = log.with("load is unknown");
        assert!(said.len() == 1 && said[0].contains(part), "{part}: {said:?}");
        assert!(target.heard().problem.unwrap().contains(part));
        assert_eq!(script.count("/login"), 0, "redirects are not followed");
        *script.metrics.lock() = text(200, VLLM);
        wait_until("a report", || told.reports.lock().last().unwrap().running.value() == Some(4)).await;
        wait_until("that is said", || log.with("reports its load again").len() == 1).await;
        assert_eq!(target.heard().problem, None);
    }
}

#[tokio::test]
async fn a_renamed_gauge_is_said_once_with_the_names_there_and_the_nearest() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), text(200, VLLM));
    let _engine = serve(listener, Arc::clone(&script));
    let target = target(addr, false);
    let (_watch, told) = start(&target, &config(5));
    wait_until("a report", || !told.reports.lock().is_empty()).await;
    *script.metrics.lock() = text(200, &VLLM.replace("requests_running", "reqs_running"));
    wait_until("unknown", || told.reports.lock().last().unwrap().running.why() == Some(Why::Missing)).await;
    let before = told.reports.lock().len();
    wait_until("reports", || told.reports.lock().len() > before + 3).await;
    let said = log.with("load is unknown");
    assert_eq!(said.len(), 1, "{said:?}");
    for part in [
        "WARN",
        "vllm:num_requests_running is missing",
        "nearest to vllm:num_requests_running is vllm:num_reqs_running",
        "names there: vllm:num_reqs_running, vllm:num_requests_waiting",
    ] {
        assert!(said[0].contains(part), "{said:?}");
    }
    *script.metrics.lock() = text(200, "vllm:num_requests_running 4\n");
    wait_until("another change is said", || log.with("load is unknown").len() == 2).await;
    assert!(log.with("num_requests_waiting is missing").len() == 1);
}

#[tokio::test]
async fn what_was_wrong_is_over_when_an_engine_that_was_away_reports_again() {
    let (listener, addr) = listen().await;
    let at = MetricsAt { engine: Some(Engine::Vllm), ..MetricsAt::default() };
    let target = Arc::new(plain_target(addr, false).with_metrics(at));
    let script = Script::new(text(200, MODELS), text(200, VLLM));
    let engine = serve(listener, Arc::clone(&script));
    let (_watch, told) = start(&target, &config(10));
    wait_until("a report", || told.reports.lock().last().is_some_and(|r| r.running.value() == Some(4))).await;
    drop(engine);
    wait_until("it is away", || target.heard().problem.is_some()).await;
    assert_eq!(told.reports.lock().last().unwrap().running.why(), Some(Why::Unreachable));
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(addr).unwrap();
    let _engine = serve(socket.listen(16).unwrap(), script);
    wait_until("nothing is wrong", || target.heard().problem.is_none()).await;
    wait_until("a report", || told.reports.lock().last().is_some_and(|r| r.running.value() == Some(4))).await;
}

#[tokio::test]
async fn trtllm_is_found_where_its_text_is_and_a_packed_text_is_read() {
    let trtllm = "trtllm_num_requests_running 6\ntrtllm_num_requests_waiting 1\n";
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), text(200, "[{\"numActiveRequests\":6}]"));
    *script.elsewhere.lock() = Some(("/base/prometheus/metrics", text(200, trtllm)));
    let _engine = serve(listener, Arc::clone(&script));
    let target = target(addr, false);
    let (_watch, told) = start(&target, &config(5));
    wait_until("reports", || told.reports.lock().len() > 3).await;
    assert!(told.reports.lock().iter().all(|r| (r.running.value(), r.waiting.value()) == (Some(6), Some(1))));
    assert_eq!(script.count("/base/metrics"), 1, "the JSON there is taken away by whoever reads it");
    assert_eq!(target.heard().engine, Some(Engine::TrtLlm));

    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(VLLM.as_bytes()).unwrap();
    let (listener, addr) = listen().await;
    let script = Script::new(text(200, MODELS), Reply::Packed(packed.finish().unwrap()));
    let _engine = serve(listener, script);
    let (_watch, told) = start(&self::target(addr, false), &config(5));
    wait_until("a report", || !told.reports.lock().is_empty()).await;
    assert_eq!(told.reports.lock()[0].running.value(), Some(4));
}
