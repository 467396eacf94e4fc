//! The prefix index: does its time grow with what it holds, and is one index with a mark per backend better than one
//! index per backend? `cargo bench -p router-policy --bench index`.
//!
//! Both are the same structure: an index per backend is one that knows a single backend. Prompts are 64 blocks (16 KB),
//! of which the first 16 are common to all. Prints nanoseconds of a request (look up in all, insert into one, give back),
//! of the best round, and bytes a mark. Sizes take turns, so that a busy machine is busy for all of them.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use router_policy::BackendId;
use router_policy::prefix::{Trie, Walk};

const BLOCKS: usize = 64;
const COMMON: usize = 16;
const ROUNDS: usize = 21;
const REQUESTS: usize = 200;

/// The chain of a session: a common head, then its own. Mixed as a hash would be.
fn chain(session: u64, blocks: &mut Vec<u128>) {
    blocks.clear();
    for at in 0..BLOCKS as u64 {
        let name = if (at as usize) < COMMON { at } else { (session + 1) << 8 | at };
        let low = name.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let low = (low ^ low >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        blocks.push(u128::from(low ^ low >> 32) | u128::from(name) << 64 | 1 << 127);
    }
}

/// Backends and where their blocks are kept.
struct Fleet {
    /// One index for all, or one for each.
    tries: Vec<Trie>,
    walks: Vec<Walk>,
    backends: usize,
    sessions: u64,
    rng: Xoshiro256PlusPlus,
    nanoseconds: u64,
}

impl Fleet {
    /// `blocks` in all, one holder each but for the common head.
    fn new(backends: usize, blocks: usize, one_each: bool) -> Self {
        let indexes = if one_each { backends } else { 1 };
        let mut fleet = Self {
            tries: (0..indexes).map(|_| Trie::default()).collect(),
            walks: vec![Walk::default(); indexes],
            backends,
            sessions: (blocks / (BLOCKS - COMMON)).max(backends) as u64,
            rng: Xoshiro256PlusPlus::seed_from_u64(1),
            nanoseconds: u64::MAX,
        };
        let mut blocks = Vec::new();
        // In no order, as after long use, and every session twice: some places are used a second time.
        for n in 0..fleet.sessions * 2 {
            let session = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % fleet.sessions;
            chain(session, &mut blocks);
            fleet.request(session, &blocks);
        }
        fleet
    }

    fn request(&mut self, session: u64, blocks: &[u128]) {
        for (trie, walk) in self.tries.iter().zip(&mut self.walks) {
            trie.walk(blocks, walk);
        }
        let backend = session as usize % self.backends;
        let (at, row) = if self.tries.len() == 1 { (0, backend) } else { (backend, 0) };
        let id = BackendId::new(row).unwrap();
        let capacity = usize::MAX / 2;
        let pin = self.tries[at].insert(id, blocks, black_box(&self.walks[at]), capacity).unwrap();
        self.tries[at].unpin(id, pin, 0, capacity);
    }

    fn round(&mut self) {
        let sessions: Vec<u64> = (0..REQUESTS).map(|_| self.rng.random_range(0..self.sessions)).collect();
        let chains: Vec<Vec<u128>> = sessions
            .iter()
            .map(|&session| {
                let mut blocks = Vec::new();
                chain(session, &mut blocks);
                blocks
            })
            .collect();
        let start = Instant::now();
        for (&session, blocks) in sessions.iter().zip(&chains) {
            self.request(session, blocks);
        }
        self.nanoseconds = self.nanoseconds.min(start.elapsed().as_nanos() as u64 / REQUESTS as u64);
    }

    fn marks(&self) -> usize {
        let rows = if self.tries.len() == 1 { self.backends } else { 1 };
        let held =
            |trie: &Trie| (0..rows).map(|r| trie.held_blocks(BackendId::new(r).unwrap())).sum::<usize>();
        self.tries.iter().map(held).sum()
    }

    fn bytes(&self) -> usize {
        self.tries.iter().map(Trie::bytes).sum()
    }
}

fn measure(fleets: &mut [Fleet]) {
    for _ in 0..ROUNDS {
        fleets.iter_mut().for_each(Fleet::round);
    }
}

fn by_size() {
    println!("{:>10} {:>12} {:>10} {:>10}", "blocks", "ns/request", "x 10 k", "B/mark");
    let mut fleets: Vec<Fleet> =
        [10_000, 100_000, 1_000_000, 10_000_000].map(|blocks| Fleet::new(8, blocks, false)).into();
    measure(&mut fleets);
    let least = fleets[0].nanoseconds as f64;
    for f in &fleets {
        let per_mark = f.bytes() as f64 / f.marks() as f64;
        let ratio = f.nanoseconds as f64 / least;
        println!("{:>10} {:>12} {ratio:>10.2} {per_mark:>10.1}", f.tries[0].len(), f.nanoseconds);
    }
}

fn one_or_many() {
    println!("\n{:>9} {:>22} {:>12} {:>10}", "backends", "index", "ns/request", "B/mark");
    let backends = [2, 8, 64, 512];
    let mut fleets: Vec<Fleet> = backends
        .iter()
        .flat_map(|&n| [false, true].map(|one_each| Fleet::new(n, 1_000_000, one_each)))
        .collect();
    measure(&mut fleets);
    for f in &fleets {
        let name = if f.tries.len() == 1 { "one, a mark a backend" } else { "one a backend" };
        let per_mark = f.bytes() as f64 / f.marks() as f64;
        println!("{:>9} {name:>22} {:>12} {per_mark:>10.1}", f.backends, f.nanoseconds);
    }
}

fn main() {
    by_size();
    one_or_many();
}
