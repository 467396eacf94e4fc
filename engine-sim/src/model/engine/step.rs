//! The scheduler: which tokens the next step computes, as vLLM v1 decides it.
//!
//! A step takes running requests first, in the order of their admission: one token for a decode, the smaller of
//! rest and budget for an unfinished prefill. Then waiting requests first come first served, while token budget,
//! seats and blocks last; one that does not fit holds up all behind it. A request is admitted only if its whole
//! prompt fits. When a running request finds no block, the newest running one is preempted: its blocks are freed,
//! it goes to the queue's head and is recomputed later. The oldest is never preempted, so there is no deadlock.
//!
//! Not here: when a step begins. Invariant: a step never takes a block that the pool says is not available.

use super::Engine;
use crate::model::event::{Event, EventKind};
use crate::model::pool::{KvPool, PrefixHit};
use crate::model::profile::StepWork;
use crate::model::prompt::BLOCK_TOKENS;
use crate::model::sequence::Sequence;
use crate::model::time::Nanos;

impl Engine {
    pub(super) fn begin_step(&mut self, start: Nanos) -> StepWork {
        let mut work = StepWork::default();
        while self.waiting.get(self.looked_at).is_some_and(|s| s.arrived_at <= start) {
            self.looked_at += 1;
        }
        if self.schedule_running(&mut work) == Preempted::Nobody {
            self.admit(&mut work);
        }
        self.counts.steps += 1;
        self.raise_peaks();
        work
    }

    /// Gives the running requests their tokens.
    fn schedule_running(&mut self, work: &mut StepWork) -> Preempted {
        let mut preempted = Preempted::Nobody;
        let mut index = 0;
        while index < self.running.len() && work.tokens < self.config.max_num_batched_tokens {
            let sequence = &mut self.running[index];
            let new = sequence.pending().min(self.config.max_num_batched_tokens - work.tokens);
            if sequence.missing_blocks(sequence.computed + new) <= self.pool.available() {
                sequence.schedule(new, &mut self.pool, work);
                index += 1;
            } else {
                // Perhaps this very request, and then the loop is over.
                let mut newest = self.running.pop().expect("invariant: `index` is in range");
                newest.release(&mut self.pool);
                self.waiting.push_front(newest);
                self.looked_at += 1;
                self.counts.preempted += 1;
                preempted = Preempted::Somebody;
            }
        }
        preempted
    }

    /// Lets waiting requests in that the scheduler has looked at.
    fn admit(&mut self, work: &mut StepWork) {
        while self.looked_at > 0
            && self.running.len() < self.config.max_num_seqs as usize
            && work.tokens < self.config.max_num_batched_tokens
        {
            let Some(hit) = self.waiting.front().and_then(|head| fit(&self.pool, head)) else { return };
            let mut sequence = self.waiting.pop_front().expect("invariant: the head was just looked at");
            self.looked_at -= 1;
            for name in &sequence.request.prompt.hashes()[..hit.blocks as usize] {
                let block =
                    self.pool.acquire(*name).expect("invariant: nothing was evicted since the look-up");
                sequence.blocks.push(block);
            }
            sequence.computed = hit.blocks * BLOCK_TOKENS;
            if sequence.cached_tokens.is_none() {
                sequence.cached_tokens = Some(sequence.computed);
                self.counts.prompt_tokens += u64::from(sequence.request.prompt.tokens());
                self.counts.cache_hit_tokens += u64::from(sequence.computed);
            }
            let new = sequence.pending().min(self.config.max_num_batched_tokens - work.tokens);
            sequence.schedule(new, &mut self.pool, work);
            self.running.push(sequence);
        }
    }

    pub(super) fn finish_step(&mut self, end: Nanos, events: &mut Vec<Event>) {
        let Self { running, pool, counts, .. } = self;
        running.retain_mut(|sequence| {
            sequence.computed += std::mem::take(&mut sequence.scheduled);
            if sequence.pending() > 0 {
                return true;
            }
            sequence.generated += 1;
            counts.generated_tokens += 1;
            let is_finished = sequence.generated == sequence.request.max_tokens;
            if is_finished {
                sequence.release(pool);
                counts.served += 1;
            }
            let id = sequence.request.id;
            let kind = match sequence.generated {
                1 => EventKind::FirstToken { cached_tokens: sequence.cached_tokens.unwrap_or(0) },
                _ => EventKind::Token,
            };
            events.push(Event { at: end, id, kind });
            if is_finished {
                events.push(Event { at: end, id, kind: EventKind::Finished });
            }
            !is_finished
        });
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Preempted {
    Nobody,
    Somebody,
}

/// The cached prefix of a waiting request, if all it has to compute fits beside it.
fn fit(pool: &KvPool, sequence: &Sequence) -> Option<PrefixHit> {
    let known = sequence.known();
    let total = known.div_ceil(BLOCK_TOKENS);
    // At least one token is left to compute, for it gives the first one of the answer.
    let usable = ((known - 1) / BLOCK_TOKENS) as usize;
    let hashes = sequence.request.prompt.hashes();
    let hashes = &hashes[..hashes.len().min(usable)];
    // O(1) way out for a head that waits for blocks step after step: so many must come from the cache at least,
    // and the last of them would have to be there.
    if let Some(least) = total.saturating_sub(pool.available()).checked_sub(1)
        && !hashes.get(least as usize).is_some_and(|hash| pool.is_cached(*hash))
    {
        return None;
    }
    let hit = pool.longest_prefix(hashes);
    (total - hit.blocks + hit.free_blocks <= pool.available()).then_some(hit)
}
