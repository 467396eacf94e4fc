//! One request inside the engine: how far it is computed and which blocks it holds.

use super::pool::{BlockId, KvPool};
use super::profile::StepWork;
use super::prompt::{BLOCK_TOKENS, Prompt};
use super::time::Nanos;

/// Names a request in events; chosen by the caller, unique among the live requests of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Comes back in every event.
    pub id: RequestId,
    /// What is to be prefilled.
    pub prompt: Prompt,
    /// Tokens to generate: exactly so many, since the model knows no end-of-text. 0 counts as 1.
    pub max_tokens: u32,
}

/// A request that waits or runs.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) request: Request,
    pub(super) arrived_at: Nanos,
    /// Tokens generated so far; they stay known when the sequence is preempted.
    pub(super) generated: u32,
    /// Tokens whose keys and values lie in `blocks`.
    pub(super) computed: u32,
    /// Tokens that the step under way adds to `computed`.
    pub(super) scheduled: u32,
    /// Prompt tokens found in the cache at the first admission; `None` before it.
    pub(super) cached_tokens: Option<u32>,
    /// Blocks held, in the order of the text; each is referenced once by this sequence.
    pub(super) blocks: Vec<BlockId>,
}

impl Sequence {
    pub(super) fn new(request: Request, arrived_at: Nanos) -> Self {
        let blocks = Vec::new();
        Self { request, arrived_at, generated: 0, computed: 0, scheduled: 0, cached_tokens: None, blocks }
    }

    /// Prompt and generated tokens.
    pub(super) fn known(&self) -> u32 {
        self.request.prompt.tokens().saturating_add(self.generated)
    }

    /// Known tokens not yet computed: 1 while decoding.
    pub(super) fn pending(&self) -> u32 {
        self.known() - self.computed
    }

    /// Blocks missing to hold `tokens` tokens in all.
    pub(super) fn missing_blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(BLOCK_TOKENS) - self.blocks.len() as u32
    }

    /// Takes blocks for `new` more tokens, publishes the prompt blocks they fill, and adds their cost to `work`.
    ///
    /// The caller has made sure that the pool has the blocks.
    pub(super) fn schedule(&mut self, new: u32, pool: &mut KvPool, work: &mut StepWork) {
        let end = self.computed + new;
        let hashes = self.request.prompt.hashes();
        for _ in 0..self.missing_blocks(end) {
            self.blocks.push(pool.allocate().expect("invariant: the scheduler asked for free blocks first"));
        }
        // Visible to others from allocation on: they are computed no later than by the end of this step, and
        // nobody who finds them is computed any earlier.
        let (first, full) = ((self.computed / BLOCK_TOKENS) as usize, (end / BLOCK_TOKENS) as usize);
        let full = full.min(hashes.len());
        if first < full {
            for (block, name) in self.blocks[first..full].iter().zip(&hashes[first..full]) {
                pool.publish(*block, *name);
            }
        }
        if self.generated > 0 && new == 1 {
            work.add_decode(self.computed);
        } else {
            work.add_prefill(new, self.computed);
        }
        self.scheduled = new;
    }

    /// Gives every block back, tail first, so that the head of a prefix outlives its tail in the cache.
    pub(super) fn release(&mut self, pool: &mut KvPool) {
        for block in self.blocks.drain(..).rev() {
            pool.release(block);
        }
        self.computed = 0;
        self.scheduled = 0;
    }
}
