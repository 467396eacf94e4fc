//! What is shown of backends, as gauges and counters, anew for each scrape.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use router_policy::Nanos;
use router_policy::prefix::TrieCounters;

use super::encode::{counters, gauges};
use super::reports;
use super::status::{BackendStatus, IndexStatus, StatusSource, seats};
use crate::account::Sign;
use crate::backends::ScrapeFailure;

/// Encodes the state as gauges, anew for each scrape.
pub(super) struct StatusCollector(pub(super) Arc<dyn StatusSource>);

impl fmt::Debug for StatusCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusCollector")
    }
}

/// One gauge of every backend: name, help, and its value where it is known.
type BackendGauge = (&'static str, &'static str, fn(&BackendStatus, Nanos) -> Option<f64>);

const BACKEND_GAUGES: [BackendGauge; 14] = [
    ("unlatch_backend_in_flight", "Requests in flight, over the host's router processes", |b, _| {
        Some(b.in_flight() as f64)
    }),
    ("unlatch_backend_reported_running", "Requests running, as the engine last said", |b, _| {
        b.snapshot.report.running.value().map(f64::from)
    }),
    ("unlatch_backend_reported_waiting", "Requests waiting in the engine, as it last said", |b, _| {
        b.snapshot.report.waiting.value().map(f64::from)
    }),
    ("unlatch_backend_reported_kv_use", "Share of its KV pool in use, as the engine last said", |b, _| {
        b.snapshot.report.kv_use.value()
    }),
    ("unlatch_backend_report_age_seconds", "Seconds since the engine's last usable report", |b, now| {
        b.snapshot.report.running.age_seconds(now)
    }),
    ("unlatch_backend_in_band_in_flight", "All requests at the engine, as its host told in band", |b, _| {
        b.snapshot.in_band.value().map(f64::from)
    }),
    ("unlatch_backend_in_band_age_seconds", "Seconds since its host told that", |b, now| {
        b.snapshot.in_band.age_seconds(now)
    }),
    ("unlatch_backend_seats", "Requests the engine is taken to run at once", |b, _| {
        Some(f64::from(seats(b.snapshot.seats).0))
    }),
    ("unlatch_backend_index_blocks", "Blocks of 256 characters held in the prefix index", |b, _| {
        Some(b.snapshot.index_blocks as f64)
    }),
    ("unlatch_backend_kernel_connections", "Connections established, as the kernel counts", |b, _| {
        b.kernel.map(|row| row.load.conns as f64)
    }),
    (
        "unlatch_backend_kernel_awaiting",
        "Requests sent whose answer has not begun, as the kernel sees",
        |b, _| b.kernel?.awaiting().map(|n| n as f64),
    ),
    ("unlatch_backend_kernel_streaming", "Answers begun and not ended, as the kernel sees", |b, _| {
        b.kernel?.streaming().map(|n| n as f64)
    }),
    ("unlatch_backend_kernel_unknown", "Connections whose requests the kernel cannot tell", |b, _| {
        b.kernel?.unknown().map(|n| n as f64)
    }),
    ("unlatch_backend_kernel_foreign", "Requests of this host that no router sent", |b, _| {
        b.kernel?.foreign().map(|n| n as f64)
    }),
];

const STATES: [&str; 9] = [
    "ready",
    "slow_start",
    "half_open",
    "suspect",
    "ejected",
    "not_ready",
    "backed_off",
    "asleep",
    "draining",
];

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.0.status();
        let now = status.now;
        for (name, help, value) in BACKEND_GAUGES {
            let samples = status.backends.iter().filter_map(|b| Some((labels(b), value(b, now)?)));
            gauges(&mut encoder, name, help, samples)?;
        }
        let drifts = status
            .backends
            .iter()
            .filter_map(|b| Some(([("backend", b.url.as_str())], b.kernel?.drift(b.in_flight())? as f64)));
        gauges(
            &mut encoder,
            "unlatch_count_drift",
            "Requests the kernel sees beyond those routers count",
            drifts,
        )?;
        let states = status.backends.iter().flat_map(|b| {
            let now_in = b.state(now);
            STATES.map(|s| ([("backend", b.url.as_str()), ("state", s)], u32::from(s == now_in)))
        });
        gauges(&mut encoder, "unlatch_backend_state", "1 for the state the backend is in", states)?;
        reports::encode(&mut encoder, &status.backends)?;
        let suspects = status.backends.iter().filter(|b| b.kernel.is_some()).flat_map(|b| {
            let now = b.suspect.map(|suspicion| suspicion.sign);
            Sign::ALL
                .map(|s| ([("backend", b.url.as_str()), ("sign", s.as_str())], u32::from(Some(s) == now)))
        });
        gauges(&mut encoder, "unlatch_backend_suspect", "1 for the bad sign the kernel sees", suspects)?;
        let programs = status.kernel.programs.iter().map(|(name, on)| ([("program", *name)], u32::from(*on)));
        gauges(&mut encoder, "unlatch_kernel_attached", "Whether each program is attached", programs)?;
        let version = [([("version", env!("CARGO_PKG_VERSION"))], 1_u32)];
        gauges(&mut encoder, "unlatch_build_info", "The version", version)?;
        index(&mut encoder, &status.index)?;
        scrape_failures(&mut encoder, &status.backends)
    }
}

fn labels(b: &BackendStatus) -> [(&'static str, &str); 2] {
    [("pool", b.pool.as_str()), ("backend", b.url.as_str())]
}

fn index(encoder: &mut DescriptorEncoder<'_>, index: &IndexStatus) -> Result<(), fmt::Error> {
    let none: [(&str, &str); 0] = [];
    gauges(encoder, "unlatch_index_bytes", "Memory of the prefix index", [(none, index.bytes as f64)])?;
    let TrieCounters { evicted_blocks, cut_blocks } = index.counters;
    for (name, help, count) in [
        ("unlatch_index_evicted_blocks", "Blocks that left the index for being the oldest", evicted_blocks),
        ("unlatch_index_cut_blocks", "Blocks never inserted: beyond a bound", cut_blocks),
    ] {
        counters(encoder, name, help, None, [(none, count)])?;
    }
    Ok(())
}

fn scrape_failures(
    encoder: &mut DescriptorEncoder<'_>,
    backends: &[BackendStatus],
) -> Result<(), fmt::Error> {
    let of_backend = |b: &'_ BackendStatus| {
        let url = b.url.clone();
        ScrapeFailure::ALL
            .iter()
            .zip(b.scrape_failures)
            .map(move |(why, count)| ([("backend", url.clone()), ("reason", why.as_str().to_owned())], count))
    };
    let help = "Scrapes of an engine that brought no usable report";
    counters(encoder, "unlatch_scrape_failures", help, None, backends.iter().flat_map(of_backend))
}
