//! Requests and placements for tests.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary uses a part; tests may unwrap"
)]

use router_policy::prefix::{ChainBuilder, HashKey};
use router_policy::{
    Alone, BackendId, BackendSpec, Decision, Nanos, Outcome, Placement, PolicyConfig, RequestShape, Usage,
};

pub const KEY: HashKey = HashKey::new([7; 192]);

/// Chains over a small tree, so that prefixes are shared: block = hash of the path.
pub fn tree_chain(path: &[u8]) -> Vec<u128> {
    let mut hash = 1_u128;
    path.iter()
        .map(|&step| {
            hash = hash
                .wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
                .wrapping_add(u128::from(step) + 1);
            hash
        })
        .collect()
}

/// A streamed chat of these messages.
pub fn chat(messages: &[String]) -> RequestShape {
    let mut chain = ChainBuilder::new(&KEY, b"model");
    for m in messages {
        chain.update(m.as_bytes());
        chain.update(&[0]);
    }
    RequestShape { model: None, chain: chain.finish(), shaped: true, stream: true, ..RequestShape::default() }
}

pub fn ids() -> [BackendId; 2] {
    [BackendId::new(0).unwrap(), BackendId::new(1).unwrap()]
}

pub fn placement(config: PolicyConfig, seed: u64) -> Placement {
    Placement::new(config, Box::new(Alone), seed)
}

/// Two equal, ready backends.
pub fn ready_pair(config: PolicyConfig, seed: u64) -> Placement {
    let mut p = placement(config, seed);
    for id in ids() {
        p.set_backend(id, BackendSpec::default());
        p.set_ready(id, true);
    }
    p
}

pub fn end(p: &mut Placement, now: Nanos, decision: Decision) {
    p.on_finished(now, decision.ticket, Outcome::Completed, &Usage::default());
}

pub fn ask(p: &mut Placement, now: Nanos, request: &RequestShape) -> Decision {
    p.pick(now, request, &[]).unwrap()
}
