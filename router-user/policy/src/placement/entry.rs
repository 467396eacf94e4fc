//! What is held of one backend.

use std::time::Duration;

use crate::backend::{BackendSpec, Models, Report};
use crate::filter::Tier;
use crate::load::arrivals::Arrivals;
use crate::load::credible::Credible;
use crate::load::{EngineLoad, Foreign};
use crate::prefix::BLOCK_BYTES;
use crate::time::Nanos;
use crate::trust::Trust;
use crate::tuning::Tuning;

/// A larger pool is a report's or a configuration's nonsense; 1 Gi tokens.
const KV_TOKENS_MAX: u64 = 1 << 30;

/// Speed factors outside are clamped.
const WEIGHT_BOUNDS: (f64, f64) = (0.01, 100.0);

/// One backend: configuration, readiness, reports, live load.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) spec: BackendSpec,
    /// Told apart from an earlier backend at the same row.
    pub(super) generation: u64,
    pub(super) is_ready: bool,
    /// It is to get nothing new, whether it is ready or not.
    pub(super) is_draining: bool,
    pub(super) trust: Trust,
    /// The first ticket that counts as a trial.
    pub(super) trial_from: u64,
    pub(super) models: Models,
    pub(super) report: Report,
    pub(super) load: EngineLoad,
    pub(super) foreign: Foreign,
    pub(super) credible: Credible,
    pub(super) arrivals: Arrivals,
    pub(super) last_turn: u64,
    /// Names the backend in hash rings: the same in every router and after every restart.
    pub(super) ring_seed: u64,
}

impl Entry {
    pub(super) fn new(spec: BackendSpec, generation: u64, arrivals: Arrivals, tuning: &Tuning) -> Self {
        let ring_seed = xxhash_rust::xxh3::xxh3_64(spec.url.as_bytes());
        Self {
            spec,
            generation,
            is_ready: false,
            is_draining: false,
            trust: Trust::Full,
            trial_from: 0,
            models: Models::default(),
            report: Report::default(),
            load: EngineLoad::new(tuning),
            foreign: Foreign::default(),
            credible: Credible::default(),
            arrivals,
            last_turn: 0,
            ring_seed,
        }
    }

    /// K: configured, else reported, else assumed.
    pub(super) fn kv_tokens(&self, tuning: &Tuning) -> u64 {
        let told = self.spec.kv_tokens.or_else(|| self.report.kv_tokens.value());
        told.unwrap_or(tuning.kv_tokens_default).clamp(1, KV_TOKENS_MAX)
    }

    /// Blocks of prompt its KV pool can hold.
    pub(super) fn kv_blocks(&self, tuning: &Tuning, chars_per_token: f64) -> usize {
        (self.kv_tokens(tuning) as f64 * chars_per_token / BLOCK_BYTES as f64).ceil() as usize
    }

    /// R: learned, else assumed times `weight`.
    pub(super) fn prefill_rate(&self, tuning: &Tuning) -> f64 {
        let weight = self.spec.weight.unwrap_or(1.0).clamp(WEIGHT_BOUNDS.0, WEIGHT_BOUNDS.1);
        self.load.prefill_rate().value().unwrap_or(tuning.prefill_rate_start * weight)
    }

    pub(super) fn tier(&self) -> Tier {
        match self.trust {
            _ if !self.is_ready || self.is_draining => Tier::Out,
            Trust::Full | Trust::Rising(_) => Tier::Good,
            Trust::Trial(most) if self.load.unanswered_since(self.trial_from) < most.max(1) as usize => {
                Tier::Good
            }
            Trust::Suspect => Tier::Suspect,
            Trust::Trial(_) | Trust::Ejected => Tier::LastResort,
        }
    }

    /// Requests there by the last report and what was dispatched since; `None` without a report that is younger
    /// than `max_age`.
    pub(super) fn reported_requests(&self, now: Nanos, max_age: Duration) -> Option<f64> {
        let running = self.report.running.no_older_than(now, max_age).value()?;
        let waiting = self.report.waiting.no_older_than(now, max_age).value()?;
        let total = running.saturating_add(waiting);
        Some(f64::from(total.saturating_add(self.load.dispatched_since_report())))
    }
}
