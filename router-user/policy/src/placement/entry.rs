//! What is held of one backend.

use crate::backend::{BackendSpec, Models, Report};
use crate::cost::PREFILL_RATE_START;
use crate::load::arrivals::Arrivals;
use crate::load::{EngineLoad, Foreign};
use crate::prefix::BLOCK_BYTES;
use crate::request::CHARS_PER_TOKEN;

/// KV pool assumed where neither configuration nor a report tells.
const KV_TOKENS_DEFAULT: u64 = 400_000;

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
    pub(super) models: Models,
    pub(super) report: Report,
    pub(super) load: EngineLoad,
    pub(super) foreign: Foreign,
    pub(super) arrivals: Arrivals,
    pub(super) last_turn: u64,
}

impl Entry {
    pub(super) fn new(spec: BackendSpec, generation: u64, arrivals: Arrivals) -> Self {
        Self {
            spec,
            generation,
            is_ready: false,
            models: Models::default(),
            report: Report::default(),
            load: EngineLoad::default(),
            foreign: Foreign::default(),
            arrivals,
            last_turn: 0,
        }
    }

    /// K: configured, else reported, else assumed.
    pub(super) fn kv_tokens(&self) -> u64 {
        let told = self.spec.kv_tokens.or_else(|| self.report.kv_tokens.value());
        told.unwrap_or(KV_TOKENS_DEFAULT).clamp(1, KV_TOKENS_MAX)
    }

    /// Blocks of prompt its KV pool can hold.
    pub(super) fn kv_blocks(&self) -> usize {
        (self.kv_tokens() * CHARS_PER_TOKEN).div_ceil(BLOCK_BYTES as u64) as usize
    }

    /// R: learned, else assumed times `weight`.
    pub(super) fn prefill_rate(&self) -> f64 {
        let weight = self.spec.weight.unwrap_or(1.0).clamp(WEIGHT_BOUNDS.0, WEIGHT_BOUNDS.1);
        self.load.prefill_rate().value().unwrap_or(PREFILL_RATE_START * weight)
    }
}
