//! `--metrics-compat vllm`: the names under which the vLLM production stack's router exports what it knows of each
//! engine, with our values. What is not known here is absent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{counters, gauges};
use super::status::{BackendStatus, StatusSource};
use crate::proxy::metrics::{RequestMetrics, Totals};

/// Encodes them, anew for each scrape.
pub struct VllmCollector {
    /// The state.
    pub source: Arc<dyn StatusSource>,
    /// What requests counted.
    pub requests: Arc<RequestMetrics>,
    /// Over which arrivals are counted.
    pub window: Duration,
}

impl fmt::Debug for VllmCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VllmCollector")
    }
}

/// What one gauge is reckoned from.
struct Seen<'a> {
    backend: &'a BackendStatus,
    totals: Totals,
    window_seconds: f64,
}

/// Name, help, and the value where it is known.
type Gauge = (&'static str, &'static str, fn(&Seen<'_>) -> Option<f64>);

const GAUGES: [Gauge; 8] = [
    ("vllm:num_requests_running", "Requests in flight, over the host's router processes", |s| {
        let flight = &s.backend.snapshot;
        Some(f64::from(flight.own.requests) + f64::from(flight.others.requests))
    }),
    ("vllm:num_requests_waiting", "Requests waiting in the engine, as it last said", |s| {
        s.backend.snapshot.report.waiting.value().map(f64::from)
    }),
    ("vllm:current_qps", "Requests placed per second over --request-stats-window", |s| {
        s.backend.snapshot.arrivals.map(|n| n as f64 / s.window_seconds)
    }),
    ("vllm:avg_decoding_length", "Seconds from the first byte to the end, as learned", |s| {
        s.backend.snapshot.decode_seconds.map(|(seconds, _)| seconds)
    }),
    ("vllm:num_prefill_requests", "Requests of this process without a byte of their answer", |s| {
        let flight = &s.backend.snapshot;
        Some(f64::from(flight.own.requests.saturating_sub(flight.streaming)))
    }),
    ("vllm:num_decoding_requests", "Requests of this process whose answer has begun", |s| {
        Some(f64::from(s.backend.snapshot.streaming))
    }),
    (
        "vllm:avg_latency",
        "Mean seconds from dispatch to the end of a completed request, since the start",
        |s| {
            let Totals { completed, completed_seconds, .. } = s.totals;
            (completed > 0).then(|| completed_seconds / completed as f64)
        },
    ),
    ("vllm:healthy_pods_total", "1 if requests may go there", |s| {
        Some(f64::from(u8::from(s.backend.snapshot.ready)))
    }),
];

impl Collector for VllmCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.source.status();
        let seen: Vec<_> = status
            .backends
            .iter()
            .map(|backend| Seen {
                backend,
                totals: self.requests.totals(backend.id),
                window_seconds: self.window.as_secs_f64(),
            })
            .collect();
        for (name, help, value) in GAUGES {
            let samples = seen.iter().filter_map(|s| Some(([("server", s.backend.url.as_str())], value(s)?)));
            gauges(&mut encoder, name, help, samples)?;
        }
        let mut models: Vec<(&str, u64)> = Vec::new();
        for s in &seen {
            match models.iter_mut().find(|(model, _)| *model == s.backend.pool) {
                Some((_, count)) => *count += s.totals.sent(),
                None => models.push((&s.backend.pool, s.totals.sent())),
            }
        }
        let incoming = models.into_iter().map(|(model, count)| ([("model", model)], count));
        counters(&mut encoder, "vllm:num_incoming_requests", "Requests sent to an engine", None, incoming)?;
        let errors = seen.iter().flat_map(|s| {
            let Totals { failed, never_sent, .. } = s.totals;
            [("upstream_failed", failed), ("never_sent", never_sent)].map(|(kind, count)| {
                let model = s.backend.pool.as_str();
                ([("server", s.backend.url.as_str()), ("model", model), ("error_type", kind)], count)
            })
        });
        counters(
            &mut encoder,
            "vllm:request_errors",
            "Requests that ended in an error, by its kind",
            None,
            errors,
        )
    }
}
