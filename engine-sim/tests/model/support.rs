//! Drives a model in virtual time.

use engine_sim::model::{
    BlockHash, Engine, EngineConfig, Event, EventKind, Nanos, Profile, Prompt, Request, RequestId,
};

/// A small engine: these seats, token budget and blocks.
pub(crate) fn engine(seats: u32, budget: u32, blocks: u32) -> Engine {
    with_host_tier(seats, budget, blocks, 0)
}

/// The same, whose host memory keeps `host_blocks` more in the cache.
pub(crate) fn with_host_tier(seats: u32, budget: u32, blocks: u32, host_blocks: u32) -> Engine {
    Engine::new(EngineConfig {
        max_num_seqs: seats,
        max_num_batched_tokens: budget,
        num_gpu_blocks: blocks,
        host_blocks,
        ..EngineConfig::of(Profile::H100_8B)
    })
    .expect("the settings can work")
}

/// A prompt of `tokens` tokens; prompts of one `family` share prefixes, others share nothing.
pub(crate) fn prompt(family: u64, tokens: u32) -> Prompt {
    let hashes: Vec<_> = (0..u64::from(tokens / 16)).map(|i| BlockHash((family << 32) + i)).collect();
    Prompt::new(tokens, hashes.into())
}

pub(crate) fn request(id: u64, prompt: Prompt, max_tokens: u32) -> Request {
    Request { id: RequestId(id), prompt, max_tokens }
}

/// Submits at `now` a request that shares its prompt with nobody.
pub(crate) fn submit(engine: &mut Engine, now: Nanos, id: u64, tokens: u32, max_tokens: u32) {
    engine.submit(now, request(id, prompt(1000 + id, tokens), max_tokens)).expect("the request fits");
}

/// Runs up to the next event and returns what happened then; checks every invariant.
pub(crate) fn step(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    let next = engine.next_event().expect("something is to happen");
    engine.advance(next, &mut events);
    engine.audit().expect("every invariant holds");
    events
}

/// Runs until nothing is left to do.
pub(crate) fn run(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    let mut bound = 1_000_000;
    while engine.next_event().is_some() {
        events.extend(step(engine));
        bound -= 1;
        assert!(bound > 0, "the engine does not come to rest");
    }
    events
}

/// Ids in the order of their first tokens.
pub(crate) fn first_tokens(events: &[Event]) -> Vec<u64> {
    let is_first = |e: &&Event| matches!(e.kind, EventKind::FirstToken { .. });
    events.iter().filter(is_first).map(|e| e.id.0).collect()
}

/// What the cache had of the prompt of `id`.
pub(crate) fn cached_tokens(events: &[Event], id: u64) -> u32 {
    let of_id = events.iter().find_map(|e| match e.kind {
        EventKind::FirstToken { cached_tokens } if e.id.0 == id => Some(cached_tokens),
        _ => None,
    });
    of_id.expect("the request got its first token")
}
