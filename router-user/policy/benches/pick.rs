//! What a placement costs: pick, first byte and end, by number of backends and size of prompt. `cargo bench -p router-policy`.
//!
//! One question: how long is the one lock of the process held per request? Prints nanoseconds, the median of rounds.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use router_policy::prefix::{ChainBuilder, HashKey};
use router_policy::{
    Alone, BackendId, BackendSpec, Nanos, Outcome, Placement, PolicyConfig, RequestShape, Usage,
};

const ROUNDS: usize = 9;
const REQUESTS: usize = 2_000;
/// Requests in flight per backend while measuring.
const BACKGROUND: usize = 8;

fn shape(key: &HashKey, session: usize, bytes: usize) -> RequestShape {
    let mut chain = ChainBuilder::new(key, b"model");
    // A shared system prompt of half the size, then a session's own text.
    chain.update(&vec![b's'; bytes / 2]);
    chain.update(format!("{session:08} ").repeat(bytes / 18).as_bytes());
    RequestShape { model: None, chain: chain.finish(), shaped: true, stream: true, ..RequestShape::default() }
}

fn nanoseconds_per_request(backends: usize, bytes: usize) -> u64 {
    let key = HashKey::new([1; 192]);
    let mut placement = Placement::new(PolicyConfig::default(), Box::new(Alone), 1);
    for row in 0..backends {
        let id = BackendId::new(row).unwrap();
        placement.set_backend(id, BackendSpec::default());
        placement.set_ready(id, true);
    }
    let shapes: Vec<RequestShape> = (0..64).map(|session| shape(&key, session, bytes)).collect();
    let mut now = 0;
    let _held: Vec<_> = (0..BACKGROUND * backends)
        .map(|n| placement.pick(Nanos(now), &shapes[n % shapes.len()], &[]).unwrap())
        .collect();
    let mut rounds: Vec<u64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for n in 0..REQUESTS {
                now += 1_000;
                let mut d = placement.pick(Nanos(now), black_box(&shapes[n % shapes.len()]), &[]).unwrap();
                placement.on_first_byte(Nanos(now), &mut d.ticket);
                placement.on_finished(Nanos(now), d.ticket, Outcome::Completed, &Usage::default());
            }
            start.elapsed().as_nanos() as u64 / REQUESTS as u64
        })
        .collect();
    rounds.sort_unstable();
    rounds[ROUNDS / 2]
}

fn main() {
    println!("{:>9} {:>12} {:>12}", "backends", "prompt", "ns/request");
    for backends in [2, 8, 64, 512] {
        for bytes in [2_000, 16_000, 100_000] {
            println!("{backends:>9} {bytes:>10} B {:>12}", nanoseconds_per_request(backends, bytes));
        }
    }
}
