//! What an engine tells about itself.

/// Gauges, peaks and counters at one moment. Counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that hold a seat.
    pub running: u32,
    /// Requests that the scheduler has looked at and left in the queue: what vLLM reports as waiting.
    pub waiting: u32,
    /// Requests submitted since the last step began, which no scheduler has looked at yet.
    pub arriving: u32,
    /// Most requests running in one step since the peaks were reset.
    pub running_peak: u32,
    /// Most requests left in the queue by one step, for want of a seat, of token budget or of blocks.
    pub waiting_peak: u32,
    /// Most requests left in the queue by a step that used every seat.
    pub seat_queue_peak: u32,
    /// Requests that got all their tokens.
    pub served: u64,
    /// Requests cancelled before their last token.
    pub aborted: u64,
    /// Requests refused at submission: queue full or too long.
    pub refused: u64,
    /// Times that a running request had to give its blocks back.
    pub preempted: u64,
    /// Prompt tokens of all requests admitted so far.
    pub prompt_tokens: u64,
    /// Those of them that were found in the cache.
    pub cache_hit_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Steps begun.
    pub steps: u64,
    /// Blocks referenced by running requests; cached blocks that nobody references count as free.
    pub used_blocks: u32,
    /// Blocks on the GPU.
    pub total_blocks: u32,
}

impl Stats {
    /// Share of the blocks in use, 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        f64::from(self.used_blocks) / f64::from(self.total_blocks.max(1))
    }

    /// Every request submitted and neither finished nor cancelled.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.running + self.waiting + self.arriving
    }
}
