//! What one more request would meet: looks ahead without changing anything.
//!
//! For judges of placement, which may know what no router can. Steps are simulated as the scheduler would take
//! them, over numbers instead of blocks: exact remaining prefill, exact remaining answers, free seats, free blocks.
//! Left out, for speed: who shares which block (a finished request gives back all it held, a full engine preempts
//! nobody), what queued requests will find of each other's prompts, and what is evicted until then.
//! Invariant: without memory pressure and without later arrivals the forecast is what then happens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::super::prompt::BLOCK_TOKENS;
use super::super::{Nanos, Prompt, StepWork};
use super::Engine;

/// Steps looked ahead at most: half an hour of decoding.
const STEPS_MAX: u64 = 100_000;

/// A request that still has prompt to compute.
#[derive(Clone, Copy)]
struct Prefill {
    computed: u32,
    /// Tokens to compute before the next token of the answer.
    known: u32,
    /// Tokens of the answer that are then still to come, that one included.
    answer: u32,
    /// Cached blocks that nobody references: taken at admission.
    idle_blocks: u32,
    is_own: bool,
}

/// Decodes that run, by the step after which they end: context then, blocks then given back.
type Decodes = BinaryHeap<Reverse<(u64, u32)>>;

struct Ahead<'e> {
    engine: &'e Engine,
    step: u64,
    running: Vec<Prefill>,
    waiting: VecDeque<Prefill>,
    decodes: Decodes,
    decode_context: f64,
    free_blocks: i64,
}

impl Engine {
    /// Prompt tokens of this request that would have to be computed here now. O(log blocks).
    ///
    /// Exact while a prefix's head outlives its tail, which is how blocks are given back.
    #[must_use]
    pub fn uncached_tokens(&self, prompt: &Prompt) -> u32 {
        prompt.tokens() - self.cached(prompt, prompt.tokens()).0
    }

    /// Tokens that the running requests have yet to compute after the step under way, without their answers.
    /// O(running).
    #[must_use]
    pub fn prefill_backlog(&self) -> u64 {
        self.running.iter().map(|s| u64::from(s.pending() - s.scheduled)).sum()
    }

    /// End of the step under way, or `now`: when the next step can begin.
    #[must_use]
    pub fn next_step_begins(&self, now: Nanos) -> Nanos {
        self.step_end.unwrap_or(self.idle_since).max(now)
    }

    /// When a request submitted now would have its first token, if nothing else came.
    /// O((running + waiting) × log + steps until then).
    #[must_use]
    pub fn forecast_first_token(&self, now: Nanos, prompt: &Prompt) -> Nanos {
        let mut ahead = Ahead::new(self, prompt);
        let mut at = self.next_step_begins(now);
        while ahead.step < STEPS_MAX {
            let (work, has_first_token) = ahead.next_step();
            at = at.plus(self.config.profile.step_time(&work));
            if has_first_token {
                break;
            }
        }
        at
    }

    /// Cached tokens of a prompt of which `known` tokens have to be computed, and their unreferenced blocks.
    fn cached(&self, prompt: &Prompt, known: u32) -> (u32, u32) {
        let usable = ((known - 1) / BLOCK_TOKENS) as usize;
        let hashes = &prompt.hashes()[..prompt.hashes().len().min(usable)];
        let blocks = hashes.partition_point(|hash| self.pool.is_cached(*hash)) as u32;
        // The walk is worth it only where memory may be short.
        let is_short = known.div_ceil(BLOCK_TOKENS) > self.pool.free();
        let idle = if is_short { self.pool.longest_prefix(hashes).free_blocks } else { 0 };
        (blocks * BLOCK_TOKENS, idle)
    }
}

impl<'e> Ahead<'e> {
    fn new(engine: &'e Engine, own: &Prompt) -> Self {
        let mut ahead = Self {
            engine,
            step: 0,
            running: Vec::new(),
            waiting: VecDeque::with_capacity(engine.waiting.len() + 1),
            decodes: Decodes::new(),
            decode_context: 0.0,
            free_blocks: i64::from(engine.pool.free()),
        };
        for sequence in &engine.running {
            let computed = sequence.computed + sequence.scheduled;
            let answer = sequence.request.max_tokens - sequence.generated;
            let (known, idle_blocks) = (sequence.known(), 0);
            let state = Prefill { computed, known, answer, idle_blocks, is_own: false };
            if computed < known {
                ahead.running.push(state);
            } else {
                ahead.decode(state);
            }
        }
        let mut own_cached = engine.cached(own, own.tokens()).0;
        for sequence in &engine.waiting {
            let (prompt, known) = (&sequence.request.prompt, sequence.known());
            let (computed, idle_blocks) = engine.cached(prompt, known);
            let answer = sequence.request.max_tokens - sequence.generated;
            ahead.waiting.push_back(Prefill { computed, known, answer, idle_blocks, is_own: false });
            own_cached = own_cached.max(common_tokens(prompt, own));
        }
        for sequence in &engine.running {
            own_cached = own_cached.max(common_tokens(&sequence.request.prompt, own));
        }
        let known = own.tokens();
        let computed = own_cached.min((known - 1) / BLOCK_TOKENS * BLOCK_TOKENS);
        ahead.waiting.push_back(Prefill { computed, known, answer: 1, idle_blocks: 0, is_own: true });
        ahead
    }

    /// One step: its work, and whether it gives the own request its first token.
    fn next_step(&mut self) -> (StepWork, bool) {
        let config = &self.engine.config;
        let decodes = self.decodes.len() as u32;
        let mut work =
            StepWork { tokens: decodes, decode_context: self.decode_context, ..StepWork::default() };
        self.decode_context += f64::from(decodes);
        self.free_blocks -= i64::from(decodes / BLOCK_TOKENS);
        let mut finished = Vec::new();
        for prefill in &mut self.running {
            self.free_blocks -= compute(prefill, config.max_num_batched_tokens, &mut work);
        }
        while work.tokens < config.max_num_batched_tokens
            && self.running.len() + self.decodes.len() < config.max_num_seqs as usize
            && let Some(mut next) = self.waiting.pop_front_if(|next| {
                let needed = next.known.div_ceil(BLOCK_TOKENS) - next.computed / BLOCK_TOKENS;
                i64::from(needed + next.idle_blocks) <= self.free_blocks
            })
        {
            self.free_blocks -= i64::from(next.idle_blocks);
            self.free_blocks -= compute(&mut next, config.max_num_batched_tokens, &mut work);
            self.running.push(next);
        }
        self.step += 1;
        self.running.retain(|prefill| {
            let is_over = prefill.computed == prefill.known;
            if is_over {
                finished.push(*prefill);
            }
            !is_over
        });
        self.end_decodes();
        let mut has_first_token = false;
        for prefill in finished {
            has_first_token |= prefill.is_own;
            self.decode(prefill);
        }
        (work, has_first_token)
    }

    /// A request whose prompt is computed gets a token at the end of this step and decodes the rest.
    fn decode(&mut self, Prefill { computed, answer, .. }: Prefill) {
        let rest = answer.saturating_sub(1);
        if rest == 0 {
            self.free_blocks += i64::from(computed.div_ceil(BLOCK_TOKENS));
            return;
        }
        self.decode_context += f64::from(computed);
        self.decodes.push(Reverse((self.step + u64::from(rest), computed + rest)));
    }

    fn end_decodes(&mut self) {
        while let Some(&Reverse((end, context))) = self.decodes.peek()
            && end <= self.step
        {
            self.decodes.pop();
            self.decode_context -= f64::from(context);
            self.free_blocks += i64::from(context.div_ceil(BLOCK_TOKENS));
        }
    }
}

/// Gives a prefill what the budget has left; the blocks it takes.
fn compute(prefill: &mut Prefill, budget: u32, work: &mut StepWork) -> i64 {
    let new = (prefill.known - prefill.computed).min(budget.saturating_sub(work.tokens));
    if new == 0 {
        return 0;
    }
    work.add_prefill(new, prefill.computed);
    let before = prefill.computed.div_ceil(BLOCK_TOKENS);
    prefill.computed += new;
    i64::from(prefill.computed.div_ceil(BLOCK_TOKENS) - before)
}

/// Tokens in the leading blocks that two prompts share. O(log blocks), as the hashes are chained.
fn common_tokens(a: &Prompt, b: &Prompt) -> u32 {
    let (a, b) = (a.hashes(), b.hashes());
    if a.first() != b.first() {
        return 0;
    }
    let (mut low, mut high) = (0, a.len().min(b.len()));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if a[middle - 1] == b[middle - 1] { low = middle } else { high = middle - 1 }
    }
    low as u32 * BLOCK_TOKENS
}

#[cfg(test)]
mod tests {
    use super::super::super::{BlockHash, EngineConfig, Event, EventKind, Profile, Request, RequestId};
    use super::*;

    /// A prompt of so many tokens; prompts of one family share their beginnings.
    fn prompt(family: u64, tokens: u32) -> Prompt {
        Prompt::new(
            tokens,
            (0..u64::from(tokens / BLOCK_TOKENS)).map(|i| BlockHash(family << 32 | i)).collect(),
        )
    }

    fn engine(seats: u32, blocks: u32) -> Engine {
        let usual = EngineConfig::of(Profile::H100_70B_TP4);
        Engine::new(EngineConfig { max_num_seqs: seats, num_gpu_blocks: blocks, ..usual }).unwrap()
    }

    fn submit(engine: &mut Engine, now: Nanos, id: u64, prompt: Prompt, max_tokens: u32) {
        engine.submit(now, Request { id: RequestId(id), prompt, max_tokens }).unwrap();
    }

    /// What is forecast for a request, and what then happens to it.
    fn forecast_and_truth(engine: &mut Engine, now: Nanos, prompt: Prompt) -> (Nanos, Nanos) {
        const OWN: u64 = 999;
        let forecast = engine.forecast_first_token(now, &prompt);
        submit(engine, now, OWN, prompt, 1);
        let mut events: Vec<Event> = Vec::new();
        while let Some(at) = engine.next_event() {
            engine.advance(at, &mut events);
            let own = events.iter().find(|e| e.id.0 == OWN && matches!(e.kind, EventKind::FirstToken { .. }));
            if let Some(event) = own {
                return (forecast, event.at);
            }
        }
        panic!("the request was never answered");
    }

    #[test]
    fn an_idle_engine_answers_as_forecast() {
        for tokens in [1, 100, 8192, 20_000] {
            let (forecast, truth) =
                forecast_and_truth(&mut engine(256, 100_000), Nanos(5), prompt(1, tokens));
            assert_eq!(forecast, truth, "{tokens} tokens");
        }
    }

    #[test]
    fn queued_prefills_decodes_and_the_step_under_way_count() {
        let mut engine = engine(256, 100_000);
        for id in 0..6 {
            submit(&mut engine, Nanos(0), id, prompt(id, 3000 + 2000 * id as u32), 5 + 20 * id as u32);
        }
        let mut events = Vec::new();
        for ms in [0, 1, 300, 700, 1500, 2500] {
            engine.advance(Nanos(ms * 1_000_000), &mut events);
        }
        submit(&mut engine, Nanos(2_500_000_000), 7, prompt(7, 9000), 10);
        let (forecast, truth) = forecast_and_truth(&mut engine, Nanos(2_510_000_000), prompt(8, 5000));
        assert_eq!(forecast, truth);
    }

    #[test]
    fn what_is_cached_or_being_computed_is_not_computed_again() {
        let mut engine = engine(256, 100_000);
        submit(&mut engine, Nanos(0), 0, prompt(3, 16_000), 2);
        engine.advance(Nanos(0), &mut Vec::new());
        assert_eq!(engine.uncached_tokens(&prompt(3, 16_000)), 16_000 - 8192, "the first chunk is there");
        let (forecast, truth) = forecast_and_truth(&mut engine, Nanos(1000), prompt(3, 16_000));
        assert_eq!(forecast, truth, "the rest comes before it");
        assert_eq!(engine.uncached_tokens(&prompt(3, 16_000)), 16, "at least one token is computed");
        assert_eq!(engine.uncached_tokens(&prompt(4, 16_000)), 16_000);
    }

    #[test]
    fn waiting_for_a_seat_is_forecast() {
        let mut engine = engine(2, 100_000);
        for (id, tokens) in [(0, 50), (1, 200)] {
            submit(&mut engine, Nanos(0), id, prompt(id, 2000), tokens);
        }
        engine.advance(Nanos(400_000_000), &mut Vec::new());
        let (forecast, truth) = forecast_and_truth(&mut engine, Nanos(400_000_000), prompt(5, 2000));
        assert_eq!(forecast, truth);
        assert!(truth > Nanos(900_000_000), "50 steps of 18 ms came first: {truth:?}");
    }

    #[test]
    fn waiting_for_blocks_is_forecast_within_a_step() {
        let mut engine = engine(256, 300);
        submit(&mut engine, Nanos(0), 0, prompt(0, 3000), 60);
        engine.advance(Nanos(0), &mut Vec::new());
        let (forecast, truth) = forecast_and_truth(&mut engine, Nanos(1000), prompt(1, 3000));
        let off = forecast.0.abs_diff(truth.0);
        assert!(off <= 250_000_000 && truth > Nanos(1_200_000_000), "{forecast:?} against {truth:?}");
    }

    #[test]
    fn the_backlog_is_the_prefill_after_the_step_under_way() {
        let mut engine = engine(256, 100_000);
        submit(&mut engine, Nanos(0), 0, prompt(0, 10_000), 50);
        engine.advance(Nanos(0), &mut Vec::new());
        assert_eq!(engine.prefill_backlog(), 10_000 - 8192);
        engine.advance(Nanos(1_000_000_000), &mut Vec::new());
        assert_eq!(engine.prefill_backlog(), 0, "decoding is no prefill");
    }
}
