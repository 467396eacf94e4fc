//! The façade: pick, on_first_byte, on_finished; and what feeds them.

use crate::{
    BackendId, BackendSpec, Decision, InFlight, LoadTable, Models, Nanos, Outcome, PickError, PolicyConfig, Report,
    RequestShape, Signal, Ticket,
};

/// Seats of an engine and how they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seats {
    /// Configured.
    Configured(u32),
    /// The engine told.
    Reported(u32),
    /// Three scrapes with the same `running` while others waited.
    LearnedFromScrapes(u32),
    /// A request stayed unanswered while this many streamed.
    LearnedFromWaiting(u32),
    /// The most ever seen streaming at once in the pool, at least 1.
    ProvenByUse(u32),
}

/// What the policy holds of one backend, for status and metrics.
#[derive(Clone, Debug)]
pub struct BackendSnapshot {
    /// Whether requests may go there.
    pub ready: bool,
    /// Its models.
    pub models: Models,
    /// This process's counts.
    pub own: InFlight,
    /// The other processes' counts.
    pub others: InFlight,
    /// Foreign requests now assumed there (from the last report, fading); unknown without a report.
    pub foreign: Signal<f64>,
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
    /// Blocks in the prefix index.
    pub index_blocks: usize,
}

/// Placement over a set of backends.
pub struct Placement {
    config: PolicyConfig,
}

impl Placement {
    /// A placement without backends. `seed` feeds every random choice; `table` shares counts with other processes.
    #[must_use]
    pub fn new(config: PolicyConfig, table: Box<dyn LoadTable>, seed: u64) -> Self {
        let _ = (table, seed);
        Self { config }
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// Adds a backend at row `id`, or changes its configuration. A new one is not ready until told so.
    pub fn set_backend(&mut self, id: BackendId, spec: BackendSpec) {
        let _ = (id, spec);
    }

    /// Removes a backend and what the index holds of it. Tickets still out end without effect.
    pub fn remove_backend(&mut self, id: BackendId) {
        let _ = id;
    }

    /// Whether requests may go there.
    pub fn set_ready(&mut self, id: BackendId, ready: bool) {
        let _ = (id, ready);
    }

    /// What models it serves.
    pub fn set_models(&mut self, id: BackendId, models: Models) {
        let _ = (id, models);
    }

    /// To be called when a scrape is sent, so that the report is compared with the most that was in flight since.
    pub fn report_begins(&mut self, id: BackendId) {
        let _ = id;
    }

    /// What a scrape said.
    pub fn report(&mut self, now: Nanos, id: BackendId, report: Report) {
        let _ = (now, id, report);
    }

    /// Forgets what the backend is believed to hold (it restarted).
    pub fn clear_cache(&mut self, id: BackendId) {
        let _ = id;
    }

    /// Chooses a backend and counts the request there, in one step. `tried` are not candidates.
    ///
    /// # Errors
    /// [`PickError`] when no candidate is left; nothing is then inserted anywhere.
    pub fn pick(&mut self, now: Nanos, request: &RequestShape, tried: &[BackendId]) -> Result<Decision, PickError> {
        let _ = (now, request, tried);
        Err(PickError::NoBackend)
    }

    /// Places a request where the caller says, counting and inserting as `pick` does (warm-ups, pins).
    ///
    /// # Errors
    /// [`PickError::NoBackend`] if there is no such backend.
    pub fn pick_forced(&mut self, now: Nanos, request: &RequestShape, id: BackendId) -> Result<Decision, PickError> {
        let _ = (now, request, id);
        Err(PickError::NoBackend)
    }

    /// The first byte of the answer's body came (SSE comments do not count). Later calls do nothing.
    pub fn on_first_byte(&mut self, now: Nanos, ticket: &mut Ticket) {
        let _ = (now, ticket);
    }

    /// The request ended; its count is given back. `output_tokens` fills the cache model where known.
    pub fn on_finished(&mut self, now: Nanos, ticket: Ticket, outcome: Outcome, output_tokens: Option<u64>) {
        let _ = (now, ticket, outcome, output_tokens);
    }

    /// Rows with a backend, in order.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendId> {
        Vec::new()
    }

    /// What is held of a backend.
    #[must_use]
    pub fn snapshot(&self, now: Nanos, id: BackendId) -> Option<BackendSnapshot> {
        let _ = (now, id);
        None
    }
}
