//! Who places requests in a run: the façade that the proxy calls, or the oracle.

use engine_sim::Prompt;
use router_policy::{Nanos, Ticket};

use super::fleet::Fleet;

/// A request that is to be placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) prompt: &'a Prompt,
    /// The key of its session, where one was recorded.
    pub(super) session: Option<u64>,
    /// Whether it asks for a stream.
    pub(super) stream: bool,
}

/// A request that was placed.
#[derive(Debug)]
pub(super) struct Placed {
    /// Row of the engine.
    pub(super) engine: usize,
    /// Which router process placed it.
    pub(super) router: usize,
    /// The count it holds; none if nobody counts.
    pub(super) ticket: Option<Ticket>,
}

/// How a placed request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With its whole answer, whose usage says this.
    Answered {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens of the answer.
        completion_tokens: u32,
    },
    /// The engine refused it.
    Refused,
}

/// Places requests and hears what a proxy hears.
pub(super) trait Chooser {
    /// Chooses an engine; `None` if there is none.
    fn pick(&mut self, now: Nanos, fleet: &Fleet, asked: &Asked<'_>) -> Option<Placed>;
    /// The first byte of the answer came.
    fn first_byte(&mut self, now: Nanos, placed: &mut Placed);
    /// The request ended.
    fn finished(&mut self, now: Nanos, placed: Placed, end: End);
    /// It is time for a scrape of every engine.
    fn scrape(&mut self, now: Nanos, fleet: &Fleet);
    /// This engine restarted; a proxy sees it at the next scrape.
    fn restarted(&mut self, engine: usize);
}
