//! The façade: pick, on_first_byte, on_finished. What feeds them is in `backends`, what they hold in `entry`.

mod backends;
mod candidates;
mod entry;
mod record;
mod snapshot;

pub use record::{CandidateRecord, KvSource, Record};
pub use snapshot::BackendSnapshot;

use std::time::Duration;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use router_common::BackendId;

use crate::config::{PolicyConfig, PolicyName};
use crate::cost::PoolMeans;
use crate::decision::{Decision, PickError, Reason, Ticket};
use crate::load::{EngineLoad, LoadTable};
use crate::outcome::Outcome;
use crate::pick::{self, Candidate, Choice};
use crate::prefix::{BLOCK_BYTES, Chain, Trie, Walk};
use crate::request::RequestShape;
use crate::time::Nanos;
use crate::usage::Usage;
use entry::Entry;

/// Placement over a set of backends: one owner, `&mut`, so that pick and count are one step.
pub struct Placement {
    config: PolicyConfig,
    table: Box<dyn LoadTable>,
    rng: Xoshiro256PlusPlus,
    /// By row; grows with the highest row seen.
    entries: Vec<Option<Entry>>,
    /// Rows in the order of the configuration.
    order: Vec<BackendId>,
    trie: Trie,
    scratch: Scratch,
    next_ticket: u64,
    next_generation: u64,
    turn: u64,
}

/// Room that picks use again and again, so that the steady state allocates nothing.
#[derive(Debug, Default)]
struct Scratch {
    walk: Walk,
    candidates: Vec<Candidate>,
    values: Vec<f64>,
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
            entries: Vec::new(),
            order: Vec::new(),
            trie: Trie::default(),
            scratch: Scratch::default(),
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

    /// Chooses a backend and counts the request there, in one step. `tried` are not candidates.
    ///
    /// Cost: O(backends + blocks of the prompt), whatever the index holds; no allocation in the steady state.
    ///
    /// # Errors
    /// [`PickError`] when no candidate is left; nothing is then counted or inserted anywhere.
    pub fn pick(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        tried: &[BackendId],
    ) -> Result<Decision, PickError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let decision = self.pick_with(now, request, tried, &mut scratch);
        self.scratch = scratch;
        decision
    }

    fn pick_with(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        tried: &[BackendId],
        scratch: &mut Scratch,
    ) -> Result<Decision, PickError> {
        self.settle(now);
        self.trie.walk(chain_of(request), &mut scratch.walk);
        let means = self.pool_means(request.model.as_deref());
        let Scratch { walk, candidates, values } = scratch;
        self.find_candidates(now, request, tried, walk, &means, candidates)?;
        let choice = self.choose(request, candidates, &means, values);
        let record = self.config.record.then(|| self.record(now, request, candidates, &means, choice));
        let mut decision = self.dispatch(now, request, &candidates[choice.index], choice, walk, &means);
        decision.candidates = candidates.len();
        decision.record = record.map(Box::new);
        Ok(decision)
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
        self.settle(now);
        let mut walk = Walk::default();
        self.trie.walk(chain_of(request), &mut walk);
        let means = self.pool_means(request.model.as_deref());
        let others = self.table.others(id);
        if self.entry(id).is_none() {
            return Err(PickError::NoBackend);
        }
        let to = self.candidate(now, request, id, others, &walk, &means).ok_or(PickError::NoBackend)?;
        Ok(self.dispatch(now, request, &to, Choice::new(0, Reason::Forced), &walk, &means))
    }

    /// Another router placed this prompt at `id`: its blocks are cached there now.
    pub fn observe_foreign(&mut self, id: BackendId, chain: &Chain) {
        let means = self.pool_means(None);
        let capacity = self.capacity(id, &means);
        let mut walk = Walk::default();
        self.trie.walk(&chain.blocks, &mut walk);
        if self.entry(id).is_some()
            && let Some(pin) = self.trie.insert(id, &chain.blocks, &walk, capacity)
        {
            self.trie.unpin(id, pin, 0, capacity);
        }
    }

    /// The first byte of the answer's body came (SSE comments do not count). Later calls do nothing.
    pub fn on_first_byte(&mut self, now: Nanos, ticket: &mut Ticket) {
        if ticket.first_byte.is_some() {
            return;
        }
        ticket.first_byte = Some(now);
        let dispatch = ticket.dispatch();
        let tuning = self.config.tuning;
        if let Some(load) = self.load_of(ticket) {
            load.first_byte(now, dispatch, &tuning);
            self.publish(ticket.backend);
        }
    }

    /// The request ended; its count is given back, and what the answer says of itself is learned from.
    pub fn on_finished(&mut self, now: Nanos, ticket: Ticket, outcome: Outcome, usage: &Usage) {
        let tuning = self.config.tuning;
        let Some(load) = self.load_of(&ticket) else { return };
        load.finish(now, ticket.dispatch(), ticket.first_byte, outcome == Outcome::Completed, &tuning);
        if let (Some(tokens), Outcome::Completed) = (usage.prompt_tokens, outcome) {
            load.learn_chars_per_token(ticket.prompt_bytes, tokens);
        }
        self.publish(ticket.backend);
        self.unpin(&ticket, outcome, usage);
    }

    /// The prompt's blocks are the newest now; the answer's follow them, as far as it came.
    fn unpin(&mut self, ticket: &Ticket, outcome: Outcome, usage: &Usage) {
        let Some(pin) = ticket.pin else { return };
        let means = self.pool_means(None);
        let answered = usage.answer_bytes as f64 / means.chars_per_token;
        let tokens = match outcome {
            Outcome::NeverSent => 0.0,
            _ => usage.completion_tokens.map_or(answered, |tokens| tokens as f64),
        };
        let blocks = (tokens * means.chars_per_token / BLOCK_BYTES as f64) as usize;
        let capacity = self.capacity(ticket.backend, &means);
        self.trie.unpin(ticket.backend, pin, blocks.min(capacity), capacity);
    }

    fn choose(
        &mut self,
        request: &RequestShape,
        candidates: &[Candidate],
        means: &PoolMeans,
        values: &mut Vec<f64>,
    ) -> Choice {
        let (rng, config) = (&mut self.rng, &self.config);
        let factor = config.tuning.hash_load_factor;
        let mut least_in_flight = |reason, values: &mut Vec<f64>| {
            pick::least_in_flight(&mut *rng, candidates, |_| true, reason, values)
        };
        let wants_shape = matches!(
            config.policy,
            PolicyName::PrefixCost | PolicyName::PrefixThreshold | PolicyName::ConsistentHash
        );
        if wants_shape && !request.shaped {
            return least_in_flight(Reason::Unshaped, values);
        }
        match config.policy {
            PolicyName::LeastInFlight => least_in_flight(Reason::LeastInFlight, values),
            PolicyName::Session => match request.session {
                Some(key) => pick::hash_ring(candidates, key, factor),
                None => least_in_flight(Reason::NoSession, values),
            },
            PolicyName::ConsistentHash => {
                let last = request.chain.blocks.iter().take(config.hash_blocks.max(1) as usize).next_back();
                match last {
                    Some(&hash) => pick::hash_ring(candidates, hash as u64, factor),
                    None => least_in_flight(Reason::Unshaped, values),
                }
            }
            PolicyName::PrefixCost => {
                let prompt = request.prompt_tokens(means.chars_per_token);
                pick::prefix_cost(rng, candidates, prompt, means, &config.tuning, values)
            }
            PolicyName::PrefixThreshold => {
                let min_blocks = config.prefix_min_match / BLOCK_BYTES as u64;
                pick::prefix_threshold(rng, candidates, min_blocks, config.fallback, values)
            }
            PolicyName::PowerOfTwo => pick::p2c(rng, candidates),
            PolicyName::RoundRobin => pick::round_robin(candidates),
            PolicyName::Random => pick::random(rng, candidates),
            PolicyName::LowestQps => pick::lowest_qps(candidates, |_| true, Reason::LowestQps),
        }
    }

    fn dispatch(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        to: &Candidate,
        choice: Choice,
        walk: &Walk,
        means: &PoolMeans,
    ) -> Decision {
        let capacity = self.capacity(to.id, means);
        let pin = self.trie.insert(to.id, chain_of(request), walk, capacity);
        let tuning = self.config.tuning;
        let entry = self.entries[to.id.index()].as_mut().expect("invariant: a candidate has an entry");
        let prompt_tokens = request.prompt_tokens(means.chars_per_token);
        let ticket = Ticket {
            id: self.next_ticket,
            backend: to.id,
            generation: entry.generation,
            uncached_tokens: prompt_tokens - to.matched_tokens,
            prompt_tokens,
            prompt_bytes: if request.shaped { request.chain.bytes } else { 0 },
            stream: request.stream,
            sent: now,
            first_byte: None,
            pin,
        };
        self.next_ticket += 1;
        self.turn += 1;
        entry.last_turn = self.turn;
        entry.arrivals.arrive(now);
        let rate = entry.prefill_rate(&tuning);
        entry.load.dispatch(now, ticket.dispatch(), rate);
        self.publish(to.id);
        Decision {
            ticket,
            reason: choice.reason,
            matched_tokens: to.matched_tokens,
            prompt_tokens,
            cost: choice.cost,
            candidates: 1,
            record: None,
        }
    }

    /// Blocks the index may hold of a backend: its KV pool, and its share of the whole.
    fn capacity(&self, id: BackendId, means: &PoolMeans) -> usize {
        let share = self.config.index_blocks_max / self.order.len().max(1);
        self.entry(id).map_or(0, |e| e.kv_blocks(&self.config.tuning, means.chars_per_token)).min(share)
    }

    /// Age at which a report has faded to nothing.
    fn fade(&self) -> Duration {
        self.config.scrape_interval.mul_f64(self.config.tuning.report_fade_intervals.clamp(1e-3, 1e3))
    }

    fn entry(&self, id: BackendId) -> Option<&Entry> {
        self.entries.get(id.index())?.as_ref()
    }

    fn entry_mut(&mut self, id: BackendId) -> Option<&mut Entry> {
        self.entries.get_mut(id.index())?.as_mut()
    }

    /// The load a ticket counts in; `None` when its backend was removed meanwhile.
    fn load_of(&mut self, ticket: &Ticket) -> Option<&mut EngineLoad> {
        let entry = self.entry_mut(ticket.backend)?;
        (entry.generation == ticket.generation).then_some(&mut entry.load)
    }

    fn publish(&self, id: BackendId) {
        if let Some(entry) = self.entry(id) {
            self.table.publish(id, entry.load.in_flight());
        }
    }
}

/// The blocks of a request; none without a shape.
fn chain_of(request: &RequestShape) -> &[u128] {
    if request.shaped { &request.chain.blocks } else { &[] }
}
