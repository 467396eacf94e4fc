//! The façade: pick, on_first_byte, on_finished. What feeds them is in `backends`, what they hold in `entry`.

mod backends;
mod candidates;
mod choose;
mod entry;
mod moving;
mod pools;
mod record;
mod snapshot;
mod standing;
mod waits;
mod warm;

pub use record::{CandidateRecord, KvSource, Record};
pub use snapshot::BackendSnapshot;
pub use waits::Wait;

use std::time::Duration;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use router_common::BackendId;

use crate::config::PolicyConfig;
use crate::decision::{Decision, PickError, Reason, Ticket};
use crate::load::{EngineLoad, LoadTable};
use crate::outcome::Outcome;
use crate::pick::{Candidate, Choice};
use crate::prefix::{BLOCK_BYTES, BlockHash, Trie, Walk};
use crate::request::RequestShape;
use crate::time::Nanos;
use crate::usage::Usage;
use candidates::{Room, Scene};
use entry::Entry;
use pools::Pools;
use standing::Standing;

/// Placement over a set of backends: one owner, `&mut`, so that pick and count are one step.
pub struct Placement {
    config: PolicyConfig,
    /// Age at which a report has faded to nothing.
    fade: Duration,
    table: Box<dyn LoadTable>,
    rng: Xoshiro256PlusPlus,
    /// By row; grows with the highest row seen.
    entries: Vec<Option<Entry>>,
    /// By row, as many as entries.
    standings: Vec<Standing>,
    pools: Pools,
    /// Changes of any standing so far.
    changes: u64,
    /// The earliest time at which some standing is due.
    next_due: Nanos,
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
    room: Room,
    /// Of a second look.
    again: Room,
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
            fade: fade(&config),
            trie: Trie::new(config.index_blocks_max),
            config,
            table,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            entries: Vec::new(),
            standings: Vec::new(),
            pools: Pools::default(),
            changes: 0,
            next_due: Nanos(u64::MAX),
            order: Vec::new(),
            scratch: Scratch::default(),
            next_ticket: 1,
            next_generation: 1,
            turn: 0,
        }
    }

    /// Another policy or other constants from now on; counts, index and what was learned stay. The size of the index,
    /// the window of arrivals and whether decisions carry their grounds stay too. O(backends).
    pub fn reconfigure(&mut self, config: PolicyConfig) {
        let before = &self.config;
        self.config = PolicyConfig {
            index_blocks_max: before.index_blocks_max,
            request_stats_window: before.request_stats_window,
            scrape_interval: before.scrape_interval,
            own_counts: before.own_counts,
            record: before.record,
            ..config
        };
        self.fade = fade(&self.config);
        self.pools.forget();
        for at in 0..self.order.len() {
            self.changed(self.order[at]);
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
        self.trie.walk(chain_of(request), &mut scratch.walk);
        let (pool, means) = self.survey(now, request);
        let Scratch { walk, room, again } = scratch;
        let scene = Scene { now, request, tried, walk, pool, means: &means };
        self.find_candidates(&scene, &mut room.candidates, &mut room.habits)?;
        let choice = self.choose(&scene, &room.candidates, &room.habits, &mut room.values);
        let moved = self.look_again(&scene, choice, room, again);
        let choice = moved.unwrap_or(choice);
        let record = self.config.record.then(|| self.record(&scene, &room.candidates, choice));
        let mut decision = self.dispatch(&scene, &room.candidates[choice.index], choice);
        decision.candidates = room.candidates.len();
        decision.moved = moved.is_some();
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
        if self.entry(id).is_none() {
            return Err(PickError::NoBackend);
        }
        let mut walk = Walk::default();
        self.trie.walk(chain_of(request), &mut walk);
        let (pool, means) = self.survey(now, request);
        let scene = Scene { now, request, tried: &[], walk: &walk, pool, means: &means };
        let to = self.candidate(&scene, id);
        Ok(self.dispatch(&scene, &to, Choice::new(0, Reason::Forced)))
    }

    /// Another router placed this prompt at `id`: its blocks are cached there now. O(blocks).
    pub fn observe_foreign(&mut self, id: BackendId, blocks: &[BlockHash]) {
        self.remember(id, blocks, 0);
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
            self.changed(ticket.backend);
        }
    }

    /// The request ended; its count is given back, and what the answer says of itself is learned from.
    pub fn on_finished(&mut self, now: Nanos, mut ticket: Ticket, outcome: Outcome, usage: &Usage) {
        let tuning = self.config.tuning;
        let Some(load) = self.load_of(&ticket) else { return };
        if !ticket.stream && outcome == Outcome::Completed {
            load.learn_plain_seconds(now.seconds_since(ticket.sent));
        }
        load.finish(now, ticket.dispatch(), ticket.first_byte, outcome == Outcome::Completed, &tuning);
        if let (Some(tokens), Outcome::Completed) = (usage.prompt_tokens, outcome) {
            load.learn_chars_per_token(ticket.prompt_bytes, tokens);
        }
        self.changed(ticket.backend);
        self.unpin(&mut ticket, outcome, usage);
    }

    /// The prompt's blocks are the newest now; the answer's follow them, as far as it came.
    fn unpin(&mut self, ticket: &mut Ticket, outcome: Outcome, usage: &Usage) {
        let Some(pin) = ticket.pin.take() else { return };
        let answered = usage.answer_bytes as f64 / ticket.chars_per_token;
        let tokens = match outcome {
            Outcome::NeverSent => 0.0,
            _ => usage.completion_tokens.map_or(answered, |tokens| tokens as f64),
        };
        let blocks = (tokens * ticket.chars_per_token / BLOCK_BYTES as f64) as usize;
        let capacity = self.capacity(ticket.backend, ticket.chars_per_token);
        self.trie.unpin(ticket.backend, pin, blocks.min(capacity), capacity);
    }

    fn dispatch(&mut self, scene: &Scene<'_>, to: &Candidate, choice: Choice) -> Decision {
        let Scene { now, request, means, .. } = *scene;
        let capacity = self.capacity(to.id, means.chars_per_token);
        let pin = self.trie.insert(to.id, chain_of(request), scene.walk, capacity);
        let tuning = self.config.tuning;
        let entry = self.entries[to.id.index()].as_mut().expect("invariant: a candidate has an entry");
        let prompt_tokens = scene.prompt_tokens();
        let ticket = Ticket {
            id: self.next_ticket,
            backend: to.id,
            generation: entry.generation,
            uncached_tokens: prompt_tokens - to.matched_tokens,
            prompt_tokens,
            chars_per_token: means.chars_per_token,
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
        self.changed(to.id);
        Decision {
            ticket,
            reason: choice.reason,
            matched_tokens: to.matched_tokens,
            prompt_tokens,
            cost: choice.cost,
            candidates: 1,
            moved: false,
            record: None,
        }
    }

    /// Blocks the index may hold of a backend: its KV pool, and its share of the whole.
    fn capacity(&self, id: BackendId, chars_per_token: f64) -> usize {
        let share = self.config.index_blocks_max / self.order.len().max(1);
        self.entry(id).map_or(0, |e| e.kv_blocks(&self.config.tuning, chars_per_token)).min(share)
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

    /// To be called after every change of an entry: other processes and the next pick see it.
    fn changed(&mut self, id: BackendId) {
        let Some(Some(entry)) = self.entries.get(id.index()) else { return };
        let standing = Standing::of(entry, &self.config.tuning);
        self.next_due = self.next_due.min(standing.due);
        self.changes += 1;
        self.standings[id.index()] = standing;
        self.table.publish(id, entry.load.in_flight());
    }
}

/// Age at which a report has faded to nothing.
fn fade(config: &PolicyConfig) -> Duration {
    config.scrape_interval.mul_f64(config.tuning.report_fade_intervals.clamp(1e-3, 1e3))
}

/// The blocks of a request; none without a shape.
fn chain_of(request: &RequestShape) -> &[u128] {
    if request.shaped { &request.chain.blocks } else { &[] }
}
