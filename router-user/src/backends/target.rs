//! One engine as requests and probes need it: where it is, and what they found of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use router_policy::{BackendId, Nanos};
use tokio::sync::Notify;

use super::engine_id::EngineId;
use super::health::Rules;
use super::metrics_text::Engine;
use super::vitals::Vitals;
use crate::config::{HEALTH_PATH, HealthConfig, ModelType, ProbeConfig};

/// One engine as the data plane needs it.
#[derive(Debug)]
pub struct Target {
    /// Its row.
    pub id: BackendId,
    /// Its URL, for people and labels; without credentials.
    pub url: String,
    /// Its name for machines, which follows from that.
    pub engine_id: EngineId,
    /// When it was taken in, Unix time.
    pub added_unix_seconds: u64,
    /// Where to connect.
    pub addr: SocketAddr,
    /// `Host` header of requests sent there.
    pub authority: hyper::header::HeaderValue,
    /// Put before every request's path; no trailing slash.
    pub base_path: String,
    /// Sent as `Authorization` instead of the client's.
    pub authorization: Option<hyper::header::HeaderValue>,
    /// Configured model (it makes the engine ready without being asked).
    pub has_configured_model: bool,
    /// What its model is for, if that is configured.
    pub model_type: Option<ModelType>,
    /// Where it tells its load.
    pub metrics: MetricsAt,
    /// Where it tells how it does.
    pub health: HealthAt,
    /// How it does.
    pub vitals: Arc<Vitals>,
    found: Arc<Found>,
}

/// What was found of an engine, whatever is configured of it.
#[derive(Debug, Default)]
struct Found {
    is_cut: AtomicBool,
    /// A model that it serves, as it lists.
    first_model: Mutex<Option<String>>,
    heard: Mutex<Heard>,
    backoff: Mutex<Backoff>,
    failed: Notify,
    scrape_failures: [AtomicU64; ScrapeFailure::ALL.len()],
    /// Since when its port refuses connections, nanoseconds; 0 = it does not.
    refuses_since: AtomicU64,
    /// Until when the engine asked to be left alone, nanoseconds.
    rest_until: AtomicU64,
    /// When an operator put it to sleep, nanoseconds; 0 = it is awake, `u64::MAX` = it is being told.
    slept_at: AtomicU64,
    process_start: Mutex<Option<f64>>,
}

/// Where an engine tells its load, and with which key.
#[derive(Clone, Debug, Default)]
pub struct MetricsAt {
    /// Whose names they are, if that is configured.
    pub engine: Option<Engine>,
    /// The whole path, if it is configured.
    pub path: Option<String>,
    /// Where to connect and what `Host` to send, if not as for requests.
    pub port_of_its_own: Option<(SocketAddr, hyper::header::HeaderValue)>,
    /// Sent as `Authorization`.
    pub authorization: Option<hyper::header::HeaderValue>,
}

/// Where an engine tells how it does, and which answers are good.
#[derive(Clone, Debug)]
pub struct HealthAt {
    /// The path, below the base path; `None` = it is not asked.
    pub path: Option<String>,
    /// Statuses that are good.
    pub statuses: Vec<u16>,
    /// Whether nobody named the path: the engine may lack it.
    pub is_usual: bool,
}

impl Default for HealthAt {
    fn default() -> Self {
        Self { path: Some(HEALTH_PATH.to_owned()), statuses: vec![200], is_usual: true }
    }
}

impl HealthAt {
    /// As configured for an engine, else for all.
    #[must_use]
    pub fn new(own: &HealthConfig, all: &ProbeConfig) -> Self {
        let path = own.path.clone().or_else(|| all.path.clone());
        let is_usual = own.path.is_none() && path.as_deref() == Some(HEALTH_PATH);
        Self { path, statuses: own.statuses.clone().unwrap_or_else(|| all.statuses.clone()), is_usual }
    }
}

/// What is known of an engine's reports, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Whose names its text has.
    pub engine: Option<Engine>,
    /// What is wrong with it; `None` = nothing.
    pub problem: Option<String>,
    /// It says that it sleeps.
    pub asleep: bool,
}

#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
    until: Nanos,
    /// When the last of them was noticed.
    failed_at: Nanos,
}

/// Why a question for an engine's load brought no usable report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrapeFailure {
    /// No connection, or no answer in time.
    Unreachable,
    /// A status other than 200.
    Refused,
    /// The answer is larger than is read.
    TooLarge,
    /// Running or waiting are missing or no numbers.
    Incomplete,
}

impl ScrapeFailure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Unreachable, Self::Refused, Self::TooLarge, Self::Incomplete];

    /// The failure as one word, for labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::TooLarge => "too_large",
            Self::Incomplete => "incomplete",
        }
    }
}

impl Target {
    /// A target without back-off.
    #[must_use]
    pub fn new(
        id: BackendId,
        url: String,
        addr: SocketAddr,
        authority: hyper::header::HeaderValue,
        base_path: String,
        authorization: Option<hyper::header::HeaderValue>,
        has_configured_model: bool,
    ) -> Self {
        let vitals = Arc::new(Vitals::new(url.clone(), Rules::default()));
        let metrics = MetricsAt { authorization: authorization.clone(), ..MetricsAt::default() };
        Self {
            id,
            engine_id: EngineId::of(&url),
            added_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            url,
            addr,
            authority,
            base_path,
            authorization,
            has_configured_model,
            model_type: None,
            metrics,
            health: HealthAt::default(),
            vitals,
            found: Arc::default(),
        }
    }

    /// An operator tells it to sleep.
    pub fn falls_asleep(&self) {
        self.found.slept_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// An operator told it to sleep, and it does.
    pub fn sleeps(&self, now: Nanos) {
        self.found.slept_at.store(now.0.max(1), Ordering::Relaxed);
    }

    /// It is awake, or gone: another one may come back.
    pub fn wakes(&self) {
        self.found.slept_at.store(0, Ordering::Relaxed);
    }

    /// It was asked at a time and says that it is awake: somebody woke it if it slept then.
    pub fn seen_awake(&self, asked: Nanos) {
        let slept_at = self.found.slept_at.load(Ordering::Relaxed);
        if slept_at < asked.0 {
            // Told to sleep meanwhile: that is the newer word.
            let (newer, older) = (Ordering::Relaxed, Ordering::Relaxed);
            let _newer = self.found.slept_at.compare_exchange(slept_at, 0, newer, older);
        }
    }

    /// Whether it sleeps by an operator's order, or is about to.
    #[must_use]
    pub fn is_put_to_sleep(&self) -> bool {
        self.found.slept_at.load(Ordering::Relaxed) != 0
    }

    /// The same, of a model for something.
    #[must_use]
    pub fn with_type(self, model_type: Option<ModelType>) -> Self {
        Self { model_type, ..self }
    }

    /// The same, with its metrics elsewhere.
    #[must_use]
    pub fn with_metrics(self, metrics: MetricsAt) -> Self {
        Self { metrics, ..self }
    }

    /// The same engine, configured anew: what was found of it goes on.
    #[must_use]
    pub fn in_place_of(self, before: &Self) -> Self {
        let (found, vitals) = (Arc::clone(&before.found), Arc::clone(&before.vitals));
        Self { found, vitals, ..self }
    }

    /// Whether what is in flight there is to be cut: its drain is over.
    pub fn set_cut(&self, is_cut: bool) {
        self.found.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Whether what is in flight there is to be cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.found.is_cut.load(Ordering::Relaxed)
    }

    /// The same, which tells elsewhere how it does.
    #[must_use]
    pub fn with_health(self, health: HealthAt) -> Self {
        Self { health, ..self }
    }

    /// A model that it lists, if it does.
    #[must_use]
    pub fn first_model(&self) -> Option<String> {
        self.found.first_model.lock().clone()
    }

    /// Keeps a model that it lists.
    pub fn set_first_model(&self, model: Option<&String>) {
        let mut first = self.found.first_model.lock();
        if first.as_ref() != model {
            *first = model.cloned();
        }
    }

    /// The same, judged by these rules.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { vitals: Arc::new(Vitals::new(self.url.clone(), rules)), ..self }
    }

    /// What is known of its reports.
    #[must_use]
    pub fn heard(&self) -> Heard {
        self.found.heard.lock().clone()
    }

    /// Keeps what is known of its reports.
    pub fn set_heard(&self, heard: Heard) {
        *self.found.heard.lock() = heard;
    }

    /// When the engine's process started, as it said last, Unix seconds; of another router before, until it says it
    /// to this one.
    #[must_use]
    pub fn process_start(&self) -> Option<f64> {
        *self.found.process_start.lock()
    }

    /// Keeps when the engine's process started; returns what was known before.
    pub fn set_process_start(&self, seconds: f64) -> Option<f64> {
        self.found.process_start.lock().replace(seconds)
    }

    /// A connection failed: no requests there for a while, doubling from `min` to `max`. Returns until when.
    pub fn connect_failed(&self, now: Nanos, min: Duration, max: Duration) -> Nanos {
        let mut b = self.found.backoff.lock();
        b.failed_at = b.failed_at.max(now);
        // Failures of requests sent before the back-off began are one failure.
        if now >= b.until {
            let pause = min.saturating_mul(1 << b.failures.min(16)).min(max);
            b.failures += 1;
            b.until = now + pause;
        }
        let until = b.until;
        drop(b);
        self.found.failed.notify_one();
        until
    }

    /// Waits for the next failed connection; one that failed since the last wait counts. One waiter only. Dropping
    /// the future loses nothing.
    pub async fn failure(&self) {
        self.found.failed.notified().await;
    }

    /// A question or request that was sent at `sent` found the engine there: no back-off, unless a connection failed
    /// since, which is the newer word.
    pub fn connect_succeeded(&self, sent: Nanos) {
        let mut b = self.found.backoff.lock();
        if b.failed_at <= sent {
            b.failures = 0;
            b.until = Nanos::default();
            self.found.refuses_since.store(0, Ordering::Relaxed);
        }
    }

    /// Its port refused a connection.
    pub fn refused(&self, now: Nanos) {
        // The first of a row counts.
        let _later =
            self.found.refuses_since.compare_exchange(0, now.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How long its port has refused connections, as far as it was tried; zero: it does not.
    #[must_use]
    pub fn refuses_for(&self, now: Nanos) -> Duration {
        let since = self.found.refuses_since.load(Ordering::Relaxed);
        Duration::from_nanos(if since == 0 { 0 } else { now.0.saturating_sub(since) })
    }

    /// Whether the back-off is over (or never was).
    #[must_use]
    pub fn may_try(&self, now: Nanos) -> bool {
        now >= self.found.backoff.lock().until
    }

    /// When the back-off ends; in the past if there is none.
    #[must_use]
    pub fn backoff_until(&self) -> Nanos {
        self.found.backoff.lock().until
    }

    /// It asked to be left alone until then.
    pub(super) fn rest(&self, until: Nanos) {
        self.found.rest_until.fetch_max(until.0, Ordering::Relaxed);
    }

    /// Until when it asked to be left alone.
    pub(super) fn rests_until(&self) -> Nanos {
        Nanos(self.found.rest_until.load(Ordering::Relaxed))
    }

    /// Counts a scrape that brought no usable report.
    pub fn count_scrape_failure(&self, why: ScrapeFailure) {
        self.found.scrape_failures[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many scrapes failed so.
    #[must_use]
    pub fn scrape_failures(&self, why: ScrapeFailure) -> u64 {
        self.found.scrape_failures[why as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::Target;
    use router_policy::{BackendId, Nanos};
    use std::time::Duration;

    fn target() -> Target {
        let addr = "127.0.0.1:1".parse().unwrap();
        let host = hyper::header::HeaderValue::from_static("h");
        Target::new(BackendId::new(0).unwrap(), "http://h".into(), addr, host, String::new(), None, false)
    }

    #[test]
    fn backoff_doubles_to_its_maximum_and_ends_with_a_connection() {
        let t = target();
        let (min, max) = (Duration::from_millis(250), Duration::from_secs(10));
        let mut now = Nanos(1);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let until = t.connect_failed(now, min, max);
            pauses.push((until.0 - now.0) / 1_000_000);
            assert!(!t.may_try(Nanos(until.0 - 1)), "no try before the back-off ends");
            now = until;
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        let (failed_at, until) = (Nanos(now.0 + 1), t.backoff_until());
        t.connect_failed(failed_at, min, max);
        t.connect_succeeded(Nanos(failed_at.0 - 1));
        assert!(t.backoff_until() > until, "an answer to an older question does not end it");
        t.refused(Nanos(7));
        t.refused(Nanos(9));
        assert_eq!(t.refuses_for(Nanos(17)), Duration::from_nanos(10));
        t.connect_succeeded(failed_at);
        assert_eq!(t.refuses_for(Nanos(17)), Duration::ZERO);
        assert!(t.may_try(Nanos(1)), "a connection ends the back-off");
    }

    #[test]
    fn failures_of_one_burst_are_one_failure() {
        let t = target();
        let (min, max) = (Duration::from_millis(250), Duration::from_secs(10));
        let until = t.connect_failed(Nanos(0), min, max);
        assert_eq!(t.connect_failed(Nanos(5), min, max), until);
    }
}
