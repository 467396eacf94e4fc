//! The engine: who waits, who runs, and when steps begin and end.
//!
//! Not here: which tokens a step computes; that is `step`.
//! Invariants: a finished request has given back seat and blocks before any of its last events can be seen; the
//! requests running never outnumber the seats; the first `looked_at` waiting requests are exactly those that a
//! step has seen and left.

use std::collections::VecDeque;

use super::config::{ConfigError, EngineConfig};
use super::event::{Event, SubmitError};
use super::pool::KvPool;
use super::prompt::BLOCK_TOKENS;
use super::sequence::{Request, RequestId, Sequence};
use super::stats::Stats;
use super::time::Nanos;

mod forecast;
mod step;

/// One simulated engine.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    pool: KvPool,
    /// In order of arrival, preempted ones at the front.
    waiting: VecDeque<Sequence>,
    looked_at: usize,
    /// In order of admission.
    running: Vec<Sequence>,
    /// End of the step under way.
    step_end: Option<Nanos>,
    /// No step begins earlier: the end of the last one.
    idle_since: Nanos,
    last_arrival: Nanos,
    counts: Stats,
}

impl Engine {
    /// An idle engine with an empty cache.
    ///
    /// # Errors
    /// Settings under which nothing could run.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            pool: KvPool::tiered(config.num_gpu_blocks, config.host_blocks),
            waiting: VecDeque::new(),
            looked_at: 0,
            running: Vec::new(),
            step_end: None,
            idle_since: Nanos::default(),
            last_arrival: Nanos::default(),
            counts: Stats::default(),
        })
    }

    /// The settings it was made with.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Queues a request; the first step that begins at `now` or later can take it.
    ///
    /// Requests of the same `now` on an idle engine start in the same step, since only [`Self::advance`] begins
    /// steps. A `now` before that of an earlier call counts as that one.
    ///
    /// # Errors
    /// Too long for this engine, or the queue is full; either is counted as refused.
    pub fn submit(&mut self, now: Nanos, mut request: Request) -> Result<(), SubmitError> {
        request.max_tokens = request.max_tokens.max(1);
        let needed = u64::from(request.prompt.tokens()) + u64::from(request.max_tokens);
        let limit = self.config.max_model_tokens();
        if needed > u64::from(limit) {
            self.counts.refused += 1;
            return Err(SubmitError::TooLong { needed, limit });
        }
        if self.waiting.len() >= self.config.max_waiting as usize {
            self.counts.refused += 1;
            return Err(SubmitError::QueueFull { limit: self.config.max_waiting });
        }
        self.last_arrival = self.last_arrival.max(now);
        self.waiting.push_back(Sequence::new(request, self.last_arrival));
        Ok(())
    }

    /// Forgets a request, freeing its seat and blocks at once; the step under way still ends when it would have.
    ///
    /// False if it is not live. No event of it follows. O(running + waiting).
    pub fn cancel(&mut self, id: RequestId) -> bool {
        if let Some(index) = self.running.iter().position(|s| s.request.id == id) {
            self.running.remove(index).release(&mut self.pool);
        } else if let Some(index) = self.waiting.iter().position(|s| s.request.id == id) {
            self.waiting.remove(index);
            self.looked_at -= usize::from(index < self.looked_at);
        } else {
            return false;
        }
        self.counts.aborted += 1;
        true
    }

    /// When [`Self::advance`] next has something to do; `None` while nothing is to be done.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        self.step_end.or_else(|| self.next_start())
    }

    /// Ends and begins every step due up to `now`, appending what happened to `events` in order of time.
    ///
    /// O(running requests) a step, plus O(prompt blocks) for each request admitted.
    pub fn advance(&mut self, now: Nanos, events: &mut Vec<Event>) {
        loop {
            if let Some(end) = self.step_end {
                if end > now {
                    return;
                }
                self.finish_step(end, events);
                self.step_end = None;
                self.idle_since = end;
            }
            let Some(start) = self.next_start().filter(|start| *start <= now) else { return };
            let work = self.begin_step(start);
            if work.tokens == 0 {
                debug_assert!(false, "a step that begins has work: the oldest request always fits");
                return;
            }
            self.step_end = Some(start.plus(self.config.profile.step_time(&work)));
        }
    }

    /// Gauges, peaks and counters as of the last [`Self::advance`]. O(1).
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len() as u32,
            waiting: self.looked_at as u32,
            arriving: (self.waiting.len() - self.looked_at) as u32,
            used_blocks: self.pool.total() - self.pool.free(),
            total_blocks: self.config.num_gpu_blocks,
            ..self.counts
        }
    }

    /// Forgets every cached prefix; who runs goes on. O(blocks).
    pub fn forget_cache(&mut self) {
        self.pool.forget_names();
    }

    /// Starts the peaks again from what runs and waits now.
    pub fn reset_peaks(&mut self) {
        self.counts.running_peak = 0;
        self.counts.waiting_peak = 0;
        self.counts.seat_queue_peak = 0;
        self.raise_peaks();
    }

    /// Checks what must always hold. O(blocks); for tests.
    ///
    /// # Errors
    /// Says which invariant is broken.
    pub fn audit(&self) -> Result<(), String> {
        self.pool.audit(self.running.iter().flat_map(|s| s.blocks.iter().copied()))?;
        let used = self.pool.total() - self.pool.free();
        if used > self.config.num_gpu_blocks {
            return Err(format!("{used} blocks are used of {} on the GPU", self.config.num_gpu_blocks));
        }
        if self.running.len() > self.config.max_num_seqs as usize {
            return Err(format!("{} run on {} seats", self.running.len(), self.config.max_num_seqs));
        }
        if self.looked_at > self.waiting.len() {
            return Err(format!("{} looked at of {} waiting", self.looked_at, self.waiting.len()));
        }
        if let Some(waiting) = self.waiting.iter().find(|s| !s.blocks.is_empty()) {
            return Err(format!("{:?} waits with blocks", waiting.request.id));
        }
        match self.running.iter().find(|s| s.blocks.len() < s.computed.div_ceil(BLOCK_TOKENS) as usize) {
            Some(short) => Err(format!("{:?} computed more tokens than its blocks hold", short.request.id)),
            None => Ok(()),
        }
    }

    fn next_start(&self) -> Option<Nanos> {
        if !self.running.is_empty() {
            return Some(self.idle_since);
        }
        self.waiting.front().map(|head| head.arrived_at.max(self.idle_since))
    }

    fn raise_peaks(&mut self) {
        let (running, waiting) = (self.running.len() as u32, self.looked_at as u32);
        self.counts.running_peak = self.counts.running_peak.max(running);
        self.counts.waiting_peak = self.counts.waiting_peak.max(waiting);
        if running == self.config.max_num_seqs {
            self.counts.seat_queue_peak = self.counts.seat_queue_peak.max(waiting);
        }
    }
}
