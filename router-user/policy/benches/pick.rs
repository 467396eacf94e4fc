//! What a placement costs: pick, first byte and end, by number of backends and size of prompt. `cargo bench -p router-policy`.
//!
//! One question: how long is the one lock of the process held per request? Prints nanoseconds, of the best round.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use router_policy::prefix::{ChainBuilder, HashKey};
use router_policy::{
    Alone, BackendId, BackendSpec, Nanos, Outcome, Placement, PolicyConfig, RequestShape, Usage,
};

const ROUNDS: usize = 61;
const REQUESTS: usize = 200;
/// Requests in flight per backend while measuring.
const BACKGROUND: usize = 8;

fn shape(key: &HashKey, session: usize, bytes: usize) -> RequestShape {
    let mut chain = ChainBuilder::new(key, b"model");
    // A shared system prompt of half the size, then a session's own text.
    chain.update(&vec![b's'; bytes / 2]);
    chain.update(format!("{session:08} ").repeat(bytes / 18).as_bytes());
    RequestShape { model: None, chain: chain.finish(), shaped: true, stream: true, ..RequestShape::default() }
}

/// A fleet in its steady state.
struct Fleet {
    backends: usize,
    bytes: usize,
    placement: Placement,
    shapes: Vec<RequestShape>,
    now: u64,
    nanoseconds: Vec<u64>,
}

impl Fleet {
    fn new(backends: usize, bytes: usize) -> Self {
        let key = HashKey::new([1; 192]);
        let mut placement = Placement::new(PolicyConfig::default(), Box::new(Alone), 1);
        for row in 0..backends {
            let id = BackendId::new(row).unwrap();
            placement.set_backend(id, BackendSpec::default());
            placement.set_ready(id, true);
        }
        let shapes: Vec<RequestShape> = (0..64).map(|session| shape(&key, session, bytes)).collect();
        for n in 0..BACKGROUND * backends {
            let _held = placement.pick(Nanos(0), &shapes[n % shapes.len()], &[]).unwrap();
        }
        Self { backends, bytes, placement, shapes, now: 0, nanoseconds: Vec::new() }
    }

    fn round(&mut self) {
        let start = Instant::now();
        for n in 0..REQUESTS {
            self.now += 1_000;
            let now = Nanos(self.now);
            let shape = black_box(&self.shapes[n % self.shapes.len()]);
            let mut d = self.placement.pick(now, shape, &[]).unwrap();
            self.placement.on_first_byte(now, &mut d.ticket);
            self.placement.on_finished(now, d.ticket, Outcome::Completed, &Usage::default());
        }
        self.nanoseconds.push(start.elapsed().as_nanos() as u64 / REQUESTS as u64);
    }

    /// Of the best round: what it costs when nobody disturbs.
    fn least(&self) -> u64 {
        self.nanoseconds.iter().copied().min().unwrap_or(0)
    }
}

/// The rounds of all fleets take turns, so that a busy machine is busy for all of them.
fn main() {
    let sizes = [2_000, 16_000, 100_000];
    let mut fleets: Vec<Fleet> =
        [2, 8, 64, 512].iter().flat_map(|&backends| sizes.map(|bytes| Fleet::new(backends, bytes))).collect();
    for _ in 0..ROUNDS {
        fleets.iter_mut().for_each(Fleet::round);
    }
    println!("{:>9} {:>12} {:>12} {:>14}", "backends", "prompt", "ns/request", "x 8 backends");
    for fleet in &fleets {
        let like = fleets.iter().find(|f| f.backends == 8 && f.bytes == fleet.bytes);
        let ratio = fleet.least() as f64 / like.map_or(f64::NAN, |f| f.least() as f64);
        println!("{:>9} {:>10} B {:>12} {:>14.2}", fleet.backends, fleet.bytes, fleet.least(), ratio);
    }
}
