//! What requests count.
//!
//! Handles are made once for each backend and looked up by row: a request formats no label. Labels come from
//! configuration and closed sets, never from a client, so that the number of series is bounded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use router_common::limits::MAX_BACKENDS;
use router_policy::{BackendId, Outcome, Reason};

use super::refusal::Refusal;

mod totals;

/// From a short answer to a long one; whole requests and first bytes alike.
const SECONDS: [f64; 14] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0];

/// Closing a socket takes microseconds, on a busy worker milliseconds.
const CANCEL_SECONDS: [f64; 8] = [1e-5, 1e-4, 1e-3, 5e-3, 0.01, 0.02, 0.1, 1.0];

/// A decision takes microseconds.
const DECISION_SECONDS: [f64; 9] = [1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4, 1e-3, 1e-2, 0.1];

/// Why a request was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// No connection came about: it went to the next backend.
    ConnectFailed,
    /// A kept connection was closed before a byte of the answer: it went over a fresh one.
    ConnectionClosed,
    /// The engine refused it: it went to another.
    Status,
}

impl Retry {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ConnectFailed, Self::ConnectionClosed, Self::Status];

    /// The reason as one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConnectFailed => "connect_failed",
            Self::ConnectionClosed => "connection_closed",
            Self::Status => "status",
        }
    }
}

type Labels<const N: usize> = [(&'static str, Arc<str>); N];

/// What requests count. Every method is lock-free or holds one short lock of a histogram.
#[derive(Debug)]
pub struct RequestMetrics {
    /// By row.
    backends: Box<[ArcSwapOption<PerBackend>]>,
    refused: [Counter; Refusal::ALL.len()],
    retries: [Counter; Retry::ALL.len()],
    matched_tokens: Counter,
    prompt_tokens: Counter,
    moved: Counter,
    ttft: Histogram,
    cancel: Histogram,
    retries_refused: Counter,
    gone_cut: Counter,
    drain_cut: Counter,
    decision: Histogram,
    decisions: Family<Labels<3>, Counter>,
    request: Family<Labels<3>, Histogram, Buckets>,
}

/// Handles of one backend, made at first use and kept.
#[derive(Debug)]
struct PerBackend {
    pool: Arc<str>,
    url: Arc<str>,
    decisions: [OnceLock<Counter>; Reason::ALL.len()],
    request: [OnceLock<Histogram>; Outcome::ALL.len()],
    ended: [AtomicU64; Outcome::ALL.len()],
    completed_micros: AtomicU64,
}

/// What the requests of one backend came to since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Placements.
    pub placed: u64,
    /// Answers that ended as they should.
    pub completed: u64,
    /// Answers that broke off or never came.
    pub failed: u64,
    /// Placements that no request followed, or that the engine refused.
    pub never_sent: u64,
    /// All seconds of the completed ones together.
    pub completed_seconds: f64,
}

impl Totals {
    /// Placements that a request followed.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.placed.saturating_sub(self.never_sent)
    }
}

#[derive(Clone, Debug)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(SECONDS)
    }
}

impl RequestMetrics {
    /// Registers the metrics; backends are added later.
    #[must_use]
    pub fn new(registry: &mut Registry) -> Self {
        let refused = Family::<Labels<1>, Counter>::default();
        let retries = Family::<Labels<1>, Counter>::default();
        let metrics = Self {
            backends: (0..MAX_BACKENDS).map(|_| ArcSwapOption::empty()).collect(),
            refused: Refusal::ALL.map(|r| refused.get_or_create_owned(&[("reason", r.as_str().into())])),
            retries: Retry::ALL.map(|r| retries.get_or_create_owned(&[("reason", r.as_str().into())])),
            matched_tokens: Counter::default(),
            prompt_tokens: Counter::default(),
            moved: Counter::default(),
            ttft: Histogram::new(SECONDS),
            cancel: Histogram::new(CANCEL_SECONDS),
            retries_refused: Counter::default(),
            gone_cut: Counter::default(),
            drain_cut: Counter::default(),
            decision: Histogram::new(DECISION_SECONDS),
            decisions: Family::default(),
            request: Family::new_with_constructor(Buckets),
        };
        registry.register("unlatch_refused", "Requests the router answered with an error itself", refused);
        registry.register("unlatch_retries", "Requests that were sent again", retries);
        let help = "Prompt tokens believed cached at the backend chosen";
        registry.register("unlatch_prefix_matched_tokens", help, metrics.matched_tokens.clone());
        registry.register(
            "unlatch_prompt_tokens",
            "Prompt tokens placed, estimated",
            metrics.prompt_tokens.clone(),
        );
        let help =
            "Requests placed anew because another router process chose the same backend at the same moment";
        registry.register("unlatch_decisions_moved", help, metrics.moved.clone());
        let help = "From dispatch to the first byte of the answer's body";
        registry.register("unlatch_ttft_seconds", help, metrics.ttft.clone());
        let help = "From a client's leaving to the close of the connection to the engine";
        registry.register("unlatch_cancel_seconds", help, metrics.cancel.clone());
        let help = "Answers passed on that another engine might have given, for lack of retry budget";
        registry.register("unlatch_retries_refused", help, metrics.retries_refused.clone());
        let help = "Silent connections ended because their backend's port refuses connections";
        registry.register("unlatch_gone_connections_ended", help, metrics.gone_cut.clone());
        let help = "Connections ended because the drain of their backend was over";
        registry.register("unlatch_drain_connections_ended", help, metrics.drain_cut.clone());
        registry.register("unlatch_decision_seconds", "Choosing a backend", metrics.decision.clone());
        registry.register("unlatch_decisions", "Requests placed", metrics.decisions.clone());
        registry.register("unlatch_request_seconds", "From dispatch to the end", metrics.request.clone());
        metrics
    }

    /// A backend is at this row from now on. Under the labels it had before, its counts go on.
    pub fn add(&self, id: BackendId, pool: &str, url: &str) {
        let is_same = |b: &PerBackend| *b.pool == *pool && *b.url == *url;
        if self.backends[id.index()].load().as_deref().is_some_and(is_same) {
            return;
        }
        self.remove(id);
        let (decisions, request, ended, completed_micros) = Default::default();
        let (pool, url) = (pool.into(), url.into());
        let backend = PerBackend { pool, url, decisions, request, ended, completed_micros };
        self.backends[id.index()].store(Some(Arc::new(backend)));
    }

    /// The backend at this row is gone, and its series with it. What ends there later is not counted.
    pub fn remove(&self, id: BackendId) {
        let Some(b) = self.backends[id.index()].swap(None) else { return };
        for reason in Reason::ALL {
            self.decisions.remove(&b.labels("reason", reason.as_str()));
        }
        for outcome in Outcome::ALL {
            self.request.remove(&b.labels("outcome", outcome.as_str()));
        }
    }

    /// A choice was made, which took `took`.
    pub fn decided(&self, took: Duration) {
        self.decision.observe(took.as_secs_f64());
    }

    /// A backend was chosen.
    pub fn placed(&self, id: BackendId, reason: Reason, matched_tokens: u64, prompt_tokens: u64) {
        self.matched_tokens.inc_by(matched_tokens);
        self.prompt_tokens.inc_by(prompt_tokens);
        let row = self.backends[id.index()].load();
        let Some(b) = row.as_deref() else { return };
        let make = || self.decisions.get_or_create_owned(&b.labels("reason", reason.as_str()));
        b.decisions[reason as usize].get_or_init(make).inc();
    }

    /// The first byte of an answer's body came, so long after it was dispatched.
    pub fn first_byte(&self, ttft: Duration) {
        self.ttft.observe(ttft.as_secs_f64());
    }

    /// A dispatched request ended, so long after it was dispatched.
    pub fn finished(&self, id: BackendId, outcome: Outcome, took: Duration) {
        let row = self.backends[id.index()].load();
        let Some(b) = row.as_deref() else { return };
        let make = || self.request.get_or_create_owned(&b.labels("outcome", outcome.as_str()));
        let at = Outcome::ALL.iter().position(|o| *o == outcome).expect("invariant: ALL lists every outcome");
        b.request[at].get_or_init(make).observe(took.as_secs_f64());
        b.ended[at].fetch_add(1, Ordering::Relaxed);
        if outcome == Outcome::Completed {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            b.completed_micros.fetch_add(micros, Ordering::Relaxed);
        }
    }

    /// What the requests of a backend came to; nothing at a row without one.
    #[must_use]
    pub fn totals(&self, id: BackendId) -> Totals {
        let backend = self.backends[id.index()].load();
        let Some(b) = backend.as_deref() else { return Totals::default() };
        let ended = |outcome| {
            let at = Outcome::ALL.iter().position(|o| *o == outcome);
            at.map_or(0, |at| b.ended[at].load(Ordering::Relaxed))
        };
        Totals {
            placed: b.decisions.iter().filter_map(OnceLock::get).map(Counter::get).sum(),
            completed: ended(Outcome::Completed),
            failed: ended(Outcome::UpstreamFailed),
            never_sent: ended(Outcome::NeverSent),
            completed_seconds: b.completed_micros.load(Ordering::Relaxed) as f64 / 1e6,
        }
    }

    /// A request was cancelled at its engine, so long after its client left.
    pub fn cancelled(&self, took: Duration) {
        self.cancel.observe(took.as_secs_f64());
    }

    /// A retry was not made for lack of budget.
    pub fn retry_refused(&self) {
        self.retries_refused.inc();
    }

    /// Silent connections to a backend whose port refuses connections were ended.
    pub fn gone_cut(&self, connections: usize) {
        self.gone_cut.inc_by(connections as u64);
    }

    /// Connections were ended because the drain of their backend was over.
    pub fn drain_cut(&self, count: usize) {
        self.drain_cut.inc_by(count as u64);
    }

    /// The router answered with an error itself.
    pub fn refused(&self, why: Refusal) {
        self.refused[why as usize].inc();
    }

    /// A request was placed anew, as another process had chosen the same.
    pub fn moved(&self) {
        self.moved.inc();
    }

    /// A request is sent again.
    pub fn retried(&self, why: Retry) {
        self.retries[why as usize].inc();
    }
}

impl PerBackend {
    fn labels(&self, key: &'static str, value: &'static str) -> Labels<3> {
        [("pool", Arc::clone(&self.pool)), ("backend", Arc::clone(&self.url)), (key, value.into())]
    }
}
