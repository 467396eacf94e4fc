//! What the proxy counts. Handles are resolved when a backend is registered, so that a request costs additions.
//!
//! Labels come from configuration and closed sets only, never from a client.

use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use router_policy::{BackendId, Outcome, Reason};

use crate::account::Placed;
use crate::error::{CODES, ProxyError};

type Labels = Vec<(&'static str, String)>;

const OUTCOMES: [Outcome; 4] =
    [Outcome::Completed, Outcome::ClientGone, Outcome::UpstreamFailed, Outcome::NeverSent];

/// Why a request was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The connection did not come about; another backend was asked.
    Connect,
    /// An idle connection had been closed; the same backend was asked on a fresh one.
    IdleConnectionClosed,
}

/// Metrics of all requests.
#[derive(Debug)]
pub struct ProxyMetrics {
    decisions: Family<Labels, Counter>,
    requests: Family<Labels, Histogram, LongSeconds>,
    backends: ArcSwap<Vec<Option<Arc<BackendMetrics>>>>,
    matched_tokens: Counter,
    prompt_tokens: Counter,
    ttft: Histogram,
    decision: Histogram,
    retries: Family<Labels, Counter>,
    retries_connect: Counter,
    retries_idle: Counter,
    refused: Family<Labels, Counter>,
    refused_by_code: [Counter; CODES.len()],
    other_paths: Counter,
}

/// Metrics of one backend.
#[derive(Debug)]
pub struct BackendMetrics {
    decisions: [Counter; Reason::ALL.len()],
    seconds: [Histogram; OUTCOMES.len()],
}

/// Seconds from a millisecond to the minutes that agents wait.
#[derive(Clone, Copy, Debug)]
struct LongSeconds;

impl MetricConstructor<Histogram> for LongSeconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new([
            0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
        ])
    }
}

impl Default for ProxyMetrics {
    fn default() -> Self {
        let retries = Family::<Labels, Counter>::default();
        let retry = |reason: &str| retries.get_or_create_owned(&vec![("reason", reason.to_owned())]);
        let refused = Family::<Labels, Counter>::default();
        let refused_by_code = CODES.map(|code| refused.get_or_create_owned(&vec![("code", code.to_owned())]));
        Self {
            decisions: Family::default(),
            requests: Family::new_with_constructor(LongSeconds),
            backends: ArcSwap::default(),
            matched_tokens: Counter::default(),
            prompt_tokens: Counter::default(),
            ttft: LongSeconds.new_metric(),
            decision: Histogram::new([1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 5e-4, 1e-3, 1e-2]),
            retries_connect: retry("connect"),
            retries_idle: retry("idle_connection_closed"),
            retries,
            refused_by_code,
            refused,
            other_paths: Counter::default(),
        }
    }
}

impl ProxyMetrics {
    /// Registers all metrics; the registry adds the product's prefix.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("decisions", "Placements by backend and reason", self.decisions.clone());
        registry.register_with_unit(
            "request",
            "From the placement to the end, by outcome",
            Unit::Seconds,
            self.requests.clone(),
        );
        registry.register(
            "prefix_matched_tokens",
            "Prompt tokens that were believed cached where they were placed",
            self.matched_tokens.clone(),
        );
        registry.register("prompt_tokens", "Prompt tokens placed, estimated", self.prompt_tokens.clone());
        registry.register_with_unit(
            "ttft",
            "From the placement to the first byte of the answer's body",
            Unit::Seconds,
            self.ttft.clone(),
        );
        registry.register_with_unit("decision", "Time of a placement", Unit::Seconds, self.decision.clone());
        registry.register("retries", "Requests sent again, by reason", self.retries.clone());
        registry.register("refused", "Requests answered with the router's own error", self.refused.clone());
        registry.register(
            "unshaped_requests",
            "Requests placed by load alone, because their path has no known shape",
            self.other_paths.clone(),
        );
    }

    /// Makes the handles of a backend. `pool` and `backend` are its labels.
    pub fn set_backend(&self, id: BackendId, pool: &str, backend: &str) {
        let labels = |name, value: &str| {
            vec![("pool", pool.to_owned()), ("backend", backend.to_owned()), (name, value.to_owned())]
        };
        let decisions =
            Reason::ALL.map(|r| self.decisions.get_or_create_owned(&labels("reason", r.as_str())));
        let seconds = OUTCOMES.map(|o| self.requests.get_or_create_owned(&labels("outcome", o.as_str())));
        let handles = Arc::new(BackendMetrics { decisions, seconds });
        self.backends.rcu(|rows| {
            let mut rows = Vec::clone(rows);
            if rows.len() <= id.index() {
                rows.resize(id.index() + 1, None);
            }
            rows[id.index()] = Some(Arc::clone(&handles));
            rows
        });
    }

    /// A request was placed.
    pub(super) fn placed(&self, placed: &Placed, seconds: f64) {
        self.decision.observe(seconds);
        self.matched_tokens.inc_by(placed.matched_tokens);
        self.prompt_tokens.inc_by(placed.prompt_tokens);
        let index = Reason::ALL.iter().position(|&r| r == placed.reason);
        self.at(placed.backend, |m| {
            if let Some(counter) = index.and_then(|i| m.decisions.get(i)) {
                counter.inc();
            }
        });
    }

    /// The first byte of an answer came after so long.
    pub(super) fn first_byte(&self, seconds: f64) {
        self.ttft.observe(seconds);
    }

    /// A placed request ended after so long.
    pub(super) fn ended(&self, backend: BackendId, outcome: Outcome, seconds: f64) {
        let index = OUTCOMES.iter().position(|&o| o == outcome);
        self.at(backend, |m| {
            if let Some(histogram) = index.and_then(|i| m.seconds.get(i)) {
                histogram.observe(seconds);
            }
        });
    }

    /// A request was sent again.
    pub(super) fn retried(&self, retry: Retry) {
        match retry {
            Retry::Connect => self.retries_connect.inc(),
            Retry::IdleConnectionClosed => self.retries_idle.inc(),
        };
    }

    /// A request got the router's own error.
    pub(super) fn refused(&self, error: &ProxyError) {
        let index = CODES.iter().position(|&code| code == error.code());
        if let Some(counter) = index.and_then(|i| self.refused_by_code.get(i)) {
            counter.inc();
        }
    }

    /// A request on a path without a known shape was placed.
    pub(super) fn unshaped(&self) {
        self.other_paths.inc();
    }

    fn at(&self, backend: BackendId, f: impl FnOnce(&BackendMetrics)) {
        if let Some(Some(metrics)) = self.backends.load().get(backend.index()) {
            f(metrics);
        }
    }
}
