//! The façade: pick, on_first_byte, on_finished; and what feeds them.

mod candidates;
mod entry;
mod snapshot;

pub use snapshot::BackendSnapshot;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use router_common::BackendId;
use router_common::limits::MAX_BACKENDS;

use crate::backend::{BackendSpec, Models, Report};
use crate::config::{PolicyConfig, PolicyName};
use crate::cost::PoolMeans;
use crate::decision::{Decision, PickError, Reason, Ticket};
use crate::load::arrivals::Arrivals;
use crate::load::{EngineLoad, LoadTable};
use crate::outcome::Outcome;
use crate::pick::{self, Candidate, Choice};
use crate::prefix::{BLOCK_BYTES, Matches, Trie};
use crate::request::RequestShape;
use crate::time::Nanos;
use entry::Entry;

/// Placement over a set of backends: one owner, `&mut`, so that pick and count are one step.
pub struct Placement {
    config: PolicyConfig,
    table: Box<dyn LoadTable>,
    rng: Xoshiro256PlusPlus,
    /// By row.
    entries: Vec<Option<Entry>>,
    /// Rows in the order of the configuration.
    order: Vec<BackendId>,
    trie: Trie,
    next_ticket: u64,
    next_generation: u64,
    turn: u64,
}

impl std::fmt::Debug for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placement")
            .field("config", &self.config)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

impl Placement {
    /// A placement without backends. `seed` feeds every random choice; `table` shares counts with other processes.
    #[must_use]
    pub fn new(config: PolicyConfig, table: Box<dyn LoadTable>, seed: u64) -> Self {
        Self {
            config,
            table,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            entries: (0..MAX_BACKENDS).map(|_| None).collect(),
            order: Vec::new(),
            trie: Trie::default(),
            next_ticket: 1,
            next_generation: 1,
            turn: 0,
        }
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// The prefix index, to look at.
    #[must_use]
    pub const fn index(&self) -> &Trie {
        &self.trie
    }

    /// Rows with a backend, in the order they came.
    #[must_use]
    pub fn backends(&self) -> &[BackendId] {
        &self.order
    }

    /// Adds a backend at row `id`, or changes its configuration. A new one is not ready until told so.
    pub fn set_backend(&mut self, id: BackendId, spec: BackendSpec) {
        if let Some(entry) = &mut self.entries[id.index()] {
            entry.spec = spec;
            return;
        }
        let arrivals = Arrivals::new(self.config.request_stats_window);
        self.entries[id.index()] = Some(Entry::new(spec, self.next_generation, arrivals));
        self.next_generation += 1;
        self.order.push(id);
    }

    /// Removes a backend and what the index holds of it. Tickets still out end without effect.
    pub fn remove_backend(&mut self, id: BackendId) {
        if self.entries[id.index()].take().is_some() {
            self.order.retain(|&o| o != id);
            self.trie.clear(id);
            self.table.publish(id, crate::load::InFlight::default());
        }
    }

    /// Whether requests may go there.
    pub fn set_ready(&mut self, id: BackendId, ready: bool) {
        if let Some(entry) = &mut self.entries[id.index()] {
            entry.is_ready = ready;
        }
    }

    /// What models it serves.
    pub fn set_models(&mut self, id: BackendId, models: Models) {
        if let Some(entry) = &mut self.entries[id.index()] {
            entry.models = models;
        }
    }

    /// To be called when a scrape is sent, so that the report is compared with the most that was in flight since.
    pub fn report_begins(&mut self, id: BackendId) {
        if let Some(entry) = &mut self.entries[id.index()] {
            entry.load.report_begins();
        }
    }

    /// What a scrape said.
    pub fn report(&mut self, now: Nanos, id: BackendId, report: Report) {
        let others = self.table.others(id).requests;
        let Some(entry) = &mut self.entries[id.index()] else { return };
        let ours = entry.load.report_ends().saturating_add(others);
        let total = match (report.running.value(), report.waiting.value()) {
            (Some(running), Some(waiting)) => Some(running.saturating_add(waiting)),
            _ => None,
        };
        entry.foreign.on_report(now, total, ours);
        entry.load.seats.on_report(now, report.running, report.waiting);
        entry.report = report;
    }

    /// Forgets what the backend is believed to hold (it restarted).
    pub fn clear_cache(&mut self, id: BackendId) {
        self.trie.clear(id);
    }

    /// Chooses a backend and counts the request there, in one step. `tried` are not candidates.
    ///
    /// Cost: O(backends + matched blocks × holders).
    ///
    /// # Errors
    /// [`PickError`] when no candidate is left; nothing is then counted or inserted anywhere.
    pub fn pick(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        tried: &[BackendId],
    ) -> Result<Decision, PickError> {
        let matches = self.matches(request);
        let (candidates, means) = self.candidates(now, request, tried, &matches)?;
        let choice = self.choose(request, &candidates, &means);
        Ok(self.dispatch(now, request, candidates[choice.index], choice, candidates.len()))
    }

    /// Places a request where the caller says, counting and inserting as `pick` does (warm-ups, pins).
    ///
    /// # Errors
    /// [`PickError::NoBackend`] if there is no such backend.
    pub fn pick_forced(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        id: BackendId,
    ) -> Result<Decision, PickError> {
        let matches = self.matches(request);
        let candidate = self.candidate(now, request, id, &matches, 0).ok_or(PickError::NoBackend)?;
        Ok(self.dispatch(now, request, candidate, Choice::new(0, Reason::Forced), 1))
    }

    /// The first byte of the answer's body came (SSE comments do not count). Later calls do nothing.
    pub fn on_first_byte(&mut self, now: Nanos, ticket: &mut Ticket) {
        if ticket.first_byte.is_some() {
            return;
        }
        ticket.first_byte = Some(now);
        let dispatch = ticket.dispatch();
        if let Some(load) = self.load_of(ticket) {
            load.first_byte(now, dispatch);
            self.publish(ticket.backend);
        }
    }

    /// The request ended; its count is given back.
    pub fn on_finished(&mut self, now: Nanos, ticket: Ticket, outcome: Outcome) {
        if let Some(load) = self.load_of(&ticket) {
            load.finish(now, ticket.dispatch(), ticket.first_byte, outcome == Outcome::Completed);
            self.publish(ticket.backend);
        }
    }

    fn matches(&self, request: &RequestShape) -> Matches {
        if request.shaped { self.trie.matches(&request.chain.blocks) } else { Matches::default() }
    }

    fn choose(&mut self, request: &RequestShape, candidates: &[Candidate], means: &PoolMeans) -> Choice {
        let rng = &mut self.rng;
        let wants_shape = matches!(self.config.policy, PolicyName::PrefixCost | PolicyName::PrefixThreshold);
        if wants_shape && !request.shaped {
            return pick::least_in_flight(rng, candidates, Reason::Unshaped);
        }
        match self.config.policy {
            PolicyName::PrefixCost => pick::prefix_cost(rng, candidates, request.prompt_tokens(), means),
            PolicyName::PrefixThreshold => {
                let min_blocks = self.config.prefix_min_match / BLOCK_BYTES as u64;
                pick::prefix_threshold(rng, candidates, min_blocks, self.config.fallback)
            }
            PolicyName::LeastInFlight => pick::least_in_flight(rng, candidates, Reason::LeastInFlight),
            PolicyName::RoundRobin => pick::round_robin(candidates),
            PolicyName::Random => pick::random(rng, candidates),
            PolicyName::LowestQps => pick::lowest_qps(candidates, Reason::LowestQps),
        }
    }

    fn dispatch(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        to: Candidate,
        choice: Choice,
        candidates: usize,
    ) -> Decision {
        let capacity_each = self.config.index_blocks_max / self.order.len().max(1);
        let entry = self.entries[to.id.index()].as_mut().expect("invariant: a candidate has an entry");
        let prompt_tokens = request.prompt_tokens();
        let ticket = Ticket {
            id: self.next_ticket,
            backend: to.id,
            generation: entry.generation,
            uncached_tokens: prompt_tokens - to.matched_tokens,
            prompt_tokens,
            stream: request.stream,
            sent: now,
            first_byte: None,
        };
        self.next_ticket += 1;
        self.turn += 1;
        entry.last_turn = self.turn;
        entry.arrivals.arrive(now);
        let rate = entry.prefill_rate();
        entry.load.dispatch(now, ticket.dispatch(), rate);
        let capacity = entry.kv_blocks().min(capacity_each);
        if request.shaped {
            self.trie.insert(to.id, &request.chain.blocks, capacity);
        }
        self.publish(to.id);
        Decision {
            ticket,
            reason: choice.reason,
            matched_tokens: to.matched_tokens,
            prompt_tokens,
            cost: choice.cost,
            candidates,
        }
    }

    /// The load a ticket counts in; `None` when its backend was removed meanwhile.
    fn load_of(&mut self, ticket: &Ticket) -> Option<&mut EngineLoad> {
        let entry = self.entries[ticket.backend.index()].as_mut()?;
        (entry.generation == ticket.generation).then_some(&mut entry.load)
    }

    fn publish(&self, id: BackendId) {
        if let Some(entry) = &self.entries[id.index()] {
            self.table.publish(id, entry.load.in_flight());
        }
    }
}
