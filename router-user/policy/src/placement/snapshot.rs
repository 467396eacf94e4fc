//! What the policy holds of a backend, for status and metrics.

use std::collections::BTreeSet;

use router_common::BackendId;

use super::Placement;
use crate::backend::{BackendSpec, Models, Report};
use crate::filter::serves;
use crate::load::{InFlight, Seats};
use crate::signal::Signal;
use crate::time::Nanos;
use crate::trust::Trust;

/// One backend, copied out.
#[derive(Clone, Debug)]
pub struct BackendSnapshot {
    /// Its configuration.
    pub spec: BackendSpec,
    /// Whether requests may go there.
    pub ready: bool,
    /// Whether it gets nothing new although it may be ready.
    pub draining: bool,
    /// How far it is trusted, if they may.
    pub trust: Trust,
    /// Its models.
    pub models: Models,
    /// This process's counts.
    pub own: InFlight,
    /// Of those, streams that have begun.
    pub streaming: u32,
    /// The other processes' counts.
    pub others: InFlight,
    /// Foreign requests now assumed there (from the last report or what was told in band, fading); else unknown.
    pub foreign: Signal<f64>,
    /// All requests there, as its host told in band.
    pub in_band: Signal<u32>,
    /// Its last report.
    pub report: Report,
    /// Seats.
    pub seats: Seats,
    /// KV pool in tokens that the index assumes.
    pub kv_tokens: u64,
    /// Learned first-byte-to-end time, seconds, and its observations.
    pub decode_seconds: Option<(f64, u64)>,
    /// Learned prefill rate, tokens per second, and its observations.
    pub prefill_rate: Option<(f64, u64)>,
    /// Learned bytes of JSON text per prompt token, and its observations.
    pub chars_per_token: Option<(f64, u64)>,
    /// Blocks in the prefix index.
    pub index_blocks: usize,
    /// Requests placed there within the last `request_stats_window`; `None` = never one.
    pub arrivals: Option<u64>,
}

impl BackendSnapshot {
    /// Whether it serves a model: by configuration, else by its list; unknown matches any.
    #[must_use]
    pub fn serves(&self, model: Option<&str>) -> bool {
        serves(&self.spec, &self.models, model)
    }

    /// The names it is asked for, sorted: configured or listed, and its aliases.
    #[must_use]
    pub fn model_names(&self) -> BTreeSet<&str> {
        let configured = self.spec.model.as_deref();
        let listed = match &self.models {
            Models::Listed(ids, _) if configured.is_none() => ids.as_slice(),
            _ => &[],
        };
        let names = listed.iter().chain(&self.spec.aliases).map(String::as_str);
        names.chain(configured).collect()
    }
}

impl Placement {
    /// Whether requests may go there, and this process's requests in flight there; `None` if there is none at the row.
    /// O(1), unlike a snapshot.
    #[must_use]
    pub fn readiness(&self, id: BackendId) -> Option<(bool, u32)> {
        self.entry(id).map(|entry| (entry.is_ready, entry.load.in_flight().requests))
    }

    /// What is held of a backend; `None` if there is none at the row.
    #[must_use]
    pub fn snapshot(&self, now: Nanos, id: BackendId) -> Option<BackendSnapshot> {
        let entry = self.entry(id)?;
        let told = self.table.told(id);
        let proven = self.pool_means(entry.spec.model.as_deref()).proven_seats;
        Some(BackendSnapshot {
            spec: entry.spec.clone(),
            ready: entry.is_ready,
            draining: entry.is_draining,
            trust: entry.trust,
            models: entry.models.clone(),
            own: entry.load.in_flight(),
            streaming: entry.load.streaming(),
            others: self.table.others(id),
            foreign: entry.foreign.or_fresher(now, told).now(now, self.fade),
            in_band: told
                .map_or_else(Signal::default, |told| Signal::known(told.in_flight, told.at.min(now))),
            report: entry.report.clone(),
            seats: entry.load.seats.seats(entry.spec.max_num_seqs, entry.report.seats, proven),
            kv_tokens: entry.kv_tokens(&self.config.tuning),
            decode_seconds: entry.load.decode_seconds().with_count(),
            prefill_rate: entry.load.prefill_rate().with_count(),
            chars_per_token: entry.load.chars_per_token().with_count(),
            index_blocks: self.trie.held_blocks(id),
            arrivals: entry.arrivals.in_window(now),
        })
    }
}
