//! One ledger for all threads, or one a thread: what a request costs at its lock. `cargo bench -p router-user --bench owners`.
//!
//! One question: is the one lock of the process worth its price? Ledgers of their own share counts as processes do, by
//! slots in common rows, and each has an index of its own; what they would have to tell each other of it is not in
//! the figure. Prints nanoseconds of a thread's time a request, parse and hash not included, of the best round.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use prometheus_client::registry::Registry;
use router_common::BackendAddr;
use router_policy::prefix::{ChainBuilder, HashKey};
use router_policy::{
    Alone, BackendId, BackendSpec, InFlight, LoadTable, Outcome, Placement, PolicyConfig, RequestShape, Usage,
};
use router_user::account::Ledger;
use router_user::gossip::{self, Gossip};

const BACKENDS: usize = 8;
const BYTES: usize = 16_000;
const REQUESTS: usize = 2_000;
const ROUNDS: usize = 41;
const THREADS: [usize; 3] = [1, 2, 4];

#[derive(Default)]
#[repr(align(64))]
struct Slot {
    requests: AtomicU32,
    q_tokens: AtomicU64,
    c_tokens: AtomicU64,
}

/// Rows of slots, as `LOAD` has them.
struct Slots {
    rows: Arc<Vec<Vec<Slot>>>,
    own: usize,
}

impl LoadTable for Slots {
    fn others(&self, id: BackendId) -> InFlight {
        let others = self.rows[id.index()].iter().enumerate().filter(|(slot, _)| *slot != self.own);
        others.fold(InFlight::default(), |sum, (_, slot)| InFlight {
            requests: sum.requests + slot.requests.load(Relaxed),
            q_tokens: sum.q_tokens + slot.q_tokens.load(Relaxed),
            c_tokens: sum.c_tokens + slot.c_tokens.load(Relaxed),
        })
    }

    fn publish(&self, id: BackendId, own: InFlight) {
        let slot = &self.rows[id.index()][self.own];
        slot.requests.store(own.requests, Relaxed);
        slot.q_tokens.store(own.q_tokens, Relaxed);
        slot.c_tokens.store(own.c_tokens, Relaxed);
    }
}

fn ledger(table: Box<dyn LoadTable>) -> Arc<Ledger> {
    let ledger = Ledger::new(Placement::new(PolicyConfig::default(), table, 1));
    for row in 0..BACKENDS {
        let id = BackendId::new(row).unwrap();
        ledger.set_backend(id, BackendSpec::default());
        ledger.ready(id, true);
    }
    ledger
}

/// A ledger for each of so many threads: the same one, or each its own.
fn ledgers(threads: usize, is_shared: bool) -> Vec<Arc<Ledger>> {
    if is_shared {
        return vec![ledger(Box::new(Alone)); threads];
    }
    let row = || (0..threads).map(|_| Slot::default()).collect();
    let rows: Arc<Vec<Vec<Slot>>> = Arc::new((0..BACKENDS).map(|_| row()).collect());
    (0..threads).map(|own| ledger(Box::new(Slots { rows: Arc::clone(&rows), own }))).collect()
}

/// Prompts with a common half.
fn shapes() -> Vec<RequestShape> {
    let key = HashKey::new([1; 192]);
    let shape = |session: usize| {
        let mut chain = ChainBuilder::new(&key, b"model");
        chain.update(&vec![b's'; BYTES / 2]);
        chain.update(format!("{session:08} ").repeat(BYTES / 18).as_bytes());
        RequestShape { chain: chain.finish(), shaped: true, stream: true, ..RequestShape::default() }
    };
    (0..64).map(shape).collect()
}

/// Nanoseconds of a thread's time a request, in one round.
fn round(ledgers: &[Arc<Ledger>], shapes: &[RequestShape]) -> u64 {
    let start_line = Barrier::new(ledgers.len());
    let run = |thread: usize, ledger: &Arc<Ledger>| {
        start_line.wait();
        let start = Instant::now();
        for n in 0..REQUESTS {
            let (_, mut guard) = ledger.pick(&shapes[(7 * thread + n) % shapes.len()], &[]).unwrap();
            guard.first_byte();
            guard.finish(Outcome::Completed, &Usage::default());
        }
        start.elapsed().as_nanos() as u64 / REQUESTS as u64
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads = ledgers.iter().enumerate().map(|(n, ledger)| scope.spawn(move || run(n, ledger)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap_or(0)
    })
}

/// The rounds of all take turns, so that a busy machine is busy for all of them.
fn main() {
    let shapes = shapes();
    let mut all: Vec<_> = THREADS
        .iter()
        .flat_map(|&threads| {
            [true, false].map(|is_shared| (threads, is_shared, ledgers(threads, is_shared), u64::MAX))
        })
        .collect();
    let (quiet, telling) = (ledgers(1, true), ledgers(1, true));
    let folder = tempfile::tempdir().unwrap();
    let _members = tell(&telling[0], folder.path());
    let [mut untold, mut told] = [u64::MAX; 2];
    for _ in 0..ROUNDS {
        for (_, _, ledgers, least) in &mut all {
            *least = round(ledgers, &shapes).min(*least);
        }
        untold = round(&quiet, &shapes).min(untold);
        told = round(&telling, &shapes).min(told);
    }
    println!("pick, first byte and end, {BYTES} B, {BACKENDS} backends, {} cores", cores());
    println!("{:>8} {:>18} {:>18} {:>7}", "threads", "one ledger ns", "one a thread ns", "ratio");
    for pair in all.chunks(2) {
        let [one, each] = [pair[0].3, pair[1].3];
        println!("{:>8} {:>18} {:>18} {:>7.2}", pair[0].0, one, each, one as f64 / each as f64);
    }
    println!("one thread that tells another process: {told} ns, {untold} ns without");
}

/// Makes a ledger tell its placements to another member, as `serve` does.
fn tell(ledger: &Ledger, folder: &Path) -> [Gossip; 2] {
    let dir = folder.join("gossip");
    let members = [(); 2].map(|()| {
        let joined = gossip::join(&dir, [1; gossip::KEY_BYTES]).unwrap();
        let row = |port: u16| BackendAddr::from_socket_addr(([127, 0, 0, 1], port).into());
        let rows = (0..BACKENDS).map(|n| (BackendId::new(n).unwrap(), row(n as u16))).collect();
        let gossip = joined.start(Box::new(|_, _| {}), &mut Registry::default()).unwrap();
        gossip.set_rows(rows);
        gossip
    });
    let outbox = members[1].outbox().clone();
    ledger.tell_placements(Box::new(move |id, at, blocks| outbox.placed(id, at, blocks)));
    members
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
