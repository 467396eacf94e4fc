//! What an engine tells of itself at one moment, whatever the dialect.
//!
//! Invariant: an engine asleep tells of nothing running and nothing waiting, as the real ones do.

use crate::model::{BLOCK_TOKENS, EngineConfig, Stats};

/// One moment of one engine.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct View<'a> {
    pub(in crate::server) name: &'a str,
    pub(in crate::server) model: &'a str,
    pub(in crate::server) config: &'a EngineConfig,
    pub(in crate::server) stats: &'a Stats,
    /// 1 or 2 while asleep.
    pub(in crate::server) sleep_level: Option<u8>,
    /// Unix time of the last start.
    pub(in crate::server) started_at_s: f64,
}

impl View<'_> {
    pub(super) fn running(&self) -> u32 {
        self.unless_asleep(self.stats.running)
    }

    pub(super) fn waiting(&self) -> u32 {
        self.unless_asleep(self.stats.waiting)
    }

    pub(super) fn used_blocks(&self) -> u32 {
        self.unless_asleep(self.stats.used_blocks)
    }

    pub(super) fn used_tokens(&self) -> u32 {
        self.used_blocks().saturating_mul(BLOCK_TOKENS)
    }

    /// Share of the blocks in use, 0 to 1.
    pub(super) fn kv_usage(&self) -> f64 {
        if self.sleep_level.is_some() { 0.0 } else { self.stats.kv_usage() }
    }

    /// Share of the prompt tokens found in the cache so far, 0 before the first.
    pub(super) fn hit_rate(&self) -> f64 {
        self.stats.cache_hit_tokens as f64 / self.stats.prompt_tokens.max(1) as f64
    }

    fn unless_asleep(&self, count: u32) -> u32 {
        if self.sleep_level.is_some() { 0 } else { count }
    }
}
