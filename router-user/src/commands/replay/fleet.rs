//! Equal simulated engines in virtual time: which of them has something to do next.
//!
//! Invariant: an engine is advanced exactly when its own next event is due, so every event is seen at its time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine_sim::model::{Event, SubmitError};
use engine_sim::{Engine, EngineConfig, Nanos, Request};

/// The engines of a run.
pub(super) struct Fleet {
    engines: Vec<Engine>,
    /// Requests sent there and not ended, by engine.
    in_flight: Vec<u32>,
    /// Wake-ups, some of them overtaken by an earlier one.
    wake: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// The wake-up that counts, by engine.
    due: Vec<Option<Nanos>>,
}

impl Fleet {
    /// `n` idle engines with empty caches.
    ///
    /// # Errors
    /// Settings under which nothing could run.
    pub(super) fn new(n: usize, config: EngineConfig) -> anyhow::Result<Self> {
        let engines = (0..n).map(|_| Engine::new(config)).collect::<Result<_, _>>()?;
        Ok(Self { engines, in_flight: vec![0; n], wake: BinaryHeap::new(), due: vec![None; n] })
    }

    /// The engines, to look at.
    pub(super) fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Requests in flight, by engine.
    pub(super) fn in_flight(&self) -> &[u32] {
        &self.in_flight
    }

    /// When [`Self::advance`] next has something to do.
    pub(super) fn next(&mut self) -> Option<Nanos> {
        while let Some(Reverse((at, row))) = self.wake.peek() {
            if self.due[*row] == Some(*at) {
                return Some(*at);
            }
            self.wake.pop();
        }
        None
    }

    /// Lets one engine that is due at `now` go on; its row, with what happened appended to `events`.
    pub(super) fn advance(&mut self, now: Nanos, events: &mut Vec<Event>) -> Option<usize> {
        let row =
            self.next().filter(|at| *at <= now).and_then(|_| self.wake.pop()).map(|Reverse((_, row))| row)?;
        self.due[row] = None;
        self.engines[row].advance(now, events);
        self.plan(row);
        Some(row)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The engine's refusal; nothing is then counted.
    pub(super) fn submit(&mut self, now: Nanos, row: usize, request: Request) -> Result<(), SubmitError> {
        self.engines[row].submit(now, request)?;
        self.in_flight[row] += 1;
        self.plan(row);
        Ok(())
    }

    /// Counts a request as ended.
    pub(super) fn ended(&mut self, row: usize) {
        self.in_flight[row] -= 1;
    }

    /// The engine loses its cache.
    pub(super) fn clear_cache(&mut self, row: usize) {
        self.engines[row].forget_cache();
    }

    fn plan(&mut self, row: usize) {
        let next = self.engines[row].next_event();
        if let Some(at) = next.filter(|_| next != self.due[row]) {
            self.wake.push(Reverse((at, row)));
        }
        self.due[row] = next;
    }
}
