//! What is shown of the process and its backends at one moment, and its form as JSON.
//!
//! Unknown is never shown as zero: in JSON it is `null` with the reason, as a gauge (`collector`) it is absent. Labels come
//! from configuration only.

use std::collections::BTreeSet;
use std::time::Duration;

use router_policy::prefix::TrieCounters;
use router_policy::{BackendId, BackendSnapshot, Models, Nanos, PolicyName, Seats, Signal, Trust};
use serde_json::{Value, json};

use super::reports;
use crate::account::{KernelRow, Suspicion};
use crate::backends::health::Cause;
use crate::backends::{EngineId, Heard, ScrapeFailure};
use crate::discovery::SourceStatus;

/// Where the state is read. Called for each answer of the admin listener, not for each request.
pub trait StatusSource: Send + Sync {
    /// The state now.
    fn status(&self) -> Status;
}

/// State of the process.
#[derive(Clone, Debug)]
pub struct Status {
    /// The moment.
    pub now: Nanos,
    /// How backends are chosen.
    pub policy: PolicyName,
    /// Since the process serves.
    pub uptime: Duration,
    /// Whether it ends: nothing new is accepted.
    pub is_draining: bool,
    /// Counting in the kernel.
    pub kernel: KernelStatus,
    /// The prefix index as a whole.
    pub index: IndexStatus,
    /// What requests counted.
    pub requests: Requests,
    /// Names and files that say which backends there are.
    pub sources: Vec<SourceStatus>,
    /// The backends, in the order of their configuration.
    pub backends: Vec<BackendStatus>,
}

/// The prefix index as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexStatus {
    /// Blocks that at least one backend holds.
    pub blocks: usize,
    /// Memory it takes.
    pub bytes: usize,
    /// What it refused or dropped.
    pub counters: TrieCounters,
}

/// What requests counted since the start, for people; metrics have more of it.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// Requests placed, by reason.
    pub decisions: Vec<(&'static str, u64)>,
    /// First bytes by the time they took: upper bounds in seconds (`None` = no bound), and how many took no longer.
    pub ttft_buckets: Vec<(Option<f64>, u64)>,
}

/// Counting in the kernel.
#[derive(Clone, Debug, Default)]
pub struct KernelStatus {
    /// One line for people: what counts, or what is missing.
    pub line: String,
    /// The programs, and whether each is attached.
    pub programs: Vec<(&'static str, bool)>,
}

/// State of one backend.
#[derive(Clone, Debug)]
pub struct BackendStatus {
    /// Its row.
    pub id: BackendId,
    /// Its URL, without credentials.
    pub url: String,
    /// Its pool, see [`pool`].
    pub pool: String,
    /// What the policy holds of it.
    pub snapshot: BackendSnapshot,
    /// Requests placed there since the start.
    pub placed: u64,
    /// When its back-off ends; in the past if there is none.
    pub backoff_until: Nanos,
    /// Scrapes that brought no usable report, in the order of [`ScrapeFailure::ALL`].
    pub scrape_failures: [u64; ScrapeFailure::ALL.len()],
    /// What is known of its reports, beside their values.
    pub heard: Heard,
    /// What is held against it.
    pub held_against: Option<Cause>,
    /// What the kernel sees of it; `None` without it.
    pub kernel: Option<KernelRow>,
    /// Whether that is a bad sign.
    pub suspect: Option<Suspicion>,
    /// Who names it: the configuration, a file, a name, an operator; `None` = nobody any more.
    pub source: Option<String>,
    /// How far its drain is, while it drains.
    pub drain: Option<DrainStatus>,
}

/// A drain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrainStatus {
    /// Since when, seconds.
    pub seconds: f64,
    /// When what is left is cut, seconds from now; not below 0; `None` = never.
    pub left_seconds: Option<f64>,
    /// Whether it is to leave the fleet, or stays as it is on an operator's word.
    pub is_leaving: bool,
    /// Whether nothing of this router is in flight there any more.
    pub is_done: bool,
}

/// The pool of a backend, for labels: its configured model, or `default`.
#[must_use]
pub fn pool(configured_model: Option<&str>) -> &str {
    configured_model.unwrap_or("default")
}

impl BackendStatus {
    /// Its state as one word.
    #[must_use]
    pub fn state(&self, now: Nanos) -> &'static str {
        if self.snapshot.draining {
            return "draining";
        }
        match (self.snapshot.ready, now < self.backoff_until) {
            (true, _) => self.snapshot.trust.as_str(),
            (false, true) => "backed_off",
            (false, false) if self.heard.asleep => "asleep",
            (false, false) => "not_ready",
        }
    }

    pub(super) fn in_flight(&self) -> u64 {
        u64::from(self.snapshot.own.requests) + u64::from(self.snapshot.others.requests)
    }

    pub(super) fn json(&self, now: Nanos) -> Value {
        let s = &self.snapshot;
        let (seats, seats_source) = seats(s.seats);
        let models = match &s.models {
            Models::Unknown => Value::Null,
            Models::Listed(ids, _) => json!(ids),
        };
        let backoff = self.backoff_until.seconds_since(now);
        let failures = ScrapeFailure::ALL.iter().zip(self.scrape_failures);
        json!({
            "row": self.id.index(),
            "url": self.url,
            "engine_id": EngineId::of(&self.url).to_string(),
            "pool": self.pool,
            "state": self.state(now),
            "ready": s.ready,
            "held_against": self.held_against.map(Cause::as_str),
            "backoff_seconds": if backoff > 0.0 { json!(backoff) } else { Value::Null },
            "models": models,
            "placed": self.placed,
            "in_flight": { "own": s.own.requests, "others": s.others.requests },
            "q_tokens": { "own": s.own.q_tokens, "others": s.others.q_tokens },
            "c_tokens": { "own": s.own.c_tokens, "others": s.others.c_tokens },
            "foreign": signal(&s.foreign, now),
            "in_band": signal(&s.in_band, now),
            "running": signal(&s.report.running, now),
            "waiting": signal(&s.report.waiting, now),
            "kv_use": signal(&s.report.kv_use, now),
            "report": reports::json(self),
            "seats": { "value": seats, "source": seats_source },
            "kv_tokens": s.kv_tokens,
            "decode_seconds": learned(s.decode_seconds),
            "prefill_tokens_per_second": learned(s.prefill_rate),
            "chars_per_token": learned(s.chars_per_token),
            "index_blocks": s.index_blocks,
            "scrape_failures": failures.map(|(why, n)| (why.as_str().to_owned(), json!(n))).collect::<serde_json::Map<_, _>>(),
            "source": self.source,
            "drain": self.drain.as_ref().map(drain),
            "suspect": self.suspect.as_ref().map(suspicion),
            "kernel": self.kernel.as_ref().map(|row| kernel_row(row, self.in_flight())),
        })
    }
}

impl Status {
    /// Whether every pool has a backend for a request that came now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.is_draining && !self.backends.is_empty() && self.pools_without_ready().is_empty()
    }

    /// The pools of which no backend is ready, sorted; a pool of which all are leaving is none any more.
    #[must_use]
    pub fn pools_without_ready(&self) -> Vec<&str> {
        let pools = |is_in: fn(&BackendStatus) -> bool| -> BTreeSet<&str> {
            self.backends.iter().filter(|b| is_in(b)).map(|b| b.pool.as_str()).collect()
        };
        let stays = pools(|b| !b.drain.is_some_and(|drain| drain.is_leaving));
        let ready = pools(|b| b.snapshot.ready && !b.snapshot.draining && b.snapshot.trust != Trust::Ejected);
        stays.difference(&ready).copied().collect()
    }

    /// The state as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut json = self.json_of_process();
        json["sources"] = self.sources.iter().map(source).collect();
        json["backends"] = self.backends.iter().map(|b| b.json(self.now)).collect();
        json
    }

    /// What it says of the process, without its sources and backends.
    pub(super) fn json_of_process(&self) -> Value {
        let programs = self.kernel.programs.iter().map(|(name, on)| ((*name).to_owned(), json!(on)));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "policy": self.policy.as_str(),
            "uptime_seconds": self.uptime.as_secs_f64(),
            "ready": self.is_ready(),
            "draining": self.is_draining,
            "pools_without_ready": self.pools_without_ready(),
            "kernel": { "line": self.kernel.line, "attached": programs.collect::<serde_json::Map<_, _>>() },
            "index": { "blocks": self.index.blocks, "bytes": self.index.bytes },
        })
    }
}

pub(super) fn signal<T: Copy + Into<Value>>(signal: &Signal<T>, now: Nanos) -> Value {
    match signal {
        Signal::Known { value, .. } => {
            json!({ "value": (*value).into(), "age_seconds": signal.age_seconds(now) })
        }
        Signal::Unknown(why) => json!({ "value": null, "why": why.as_str() }),
    }
}

fn suspicion(suspicion: &Suspicion) -> Value {
    json!({
        "sign": suspicion.sign.as_str(),
        "seconds": suspicion.seconds,
        "why": suspicion.to_string(),
    })
}

fn source(source: &SourceStatus) -> Value {
    let SourceStatus { name, size, changes, failures, cut, good_age, error } = source;
    json!({
        "name": name,
        "size": size,
        "changes": changes,
        "failures": failures,
        "cut": cut,
        "good_age_seconds": good_age.map(|age| age.as_secs_f64()),
        "error": error,
    })
}

fn drain(drain: &DrainStatus) -> Value {
    let DrainStatus { seconds, left_seconds, is_leaving, is_done } = drain;
    json!({ "seconds": seconds, "left_seconds": left_seconds, "leaving": is_leaving, "done": is_done })
}

fn learned(value: Option<(f64, u64)>) -> Value {
    value.map_or(Value::Null, |(value, samples)| json!({ "value": value, "samples": samples }))
}

pub(super) const fn seats(seats: Seats) -> (u32, &'static str) {
    match seats {
        Seats::Configured(n) => (n, "configured"),
        Seats::Reported(n) => (n, "reported"),
        Seats::LearnedFromScrapes(n) => (n, "learned_from_scrapes"),
        Seats::LearnedFromWaiting(n) => (n, "learned_from_waiting"),
        Seats::ProvenByUse(n) => (n, "proven_by_use"),
    }
}

fn kernel_row(row: &KernelRow, in_flight: u64) -> Value {
    let load = &row.load;
    json!({
        "conns": load.conns,
        "opened": load.opened,
        "closed": load.closed,
        "resets": load.resets,
        "retransmits": load.retransmits,
        "zero_windows": row.has_phases.then_some(load.zero_windows),
        "awaiting": row.awaiting(),
        "streaming": row.streaming(),
        "unknown": row.unknown(),
        "foreign": row.foreign(),
        "drift": row.drift(in_flight),
        "ttfb_seconds": row.ttfb_seconds(),
        "tx_bytes": row.has_phases.then_some(load.tx_bytes),
        "rx_bytes": row.has_phases.then_some(load.rx_bytes),
        "workers": load.workers,
    })
}
