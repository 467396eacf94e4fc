//! Warm restarts: what does saving cost the picks beside it, and how long do saving and loading take?
//! `cargo bench -p router-user --bench state`.
//!
//! Prompts are 64 blocks (16 KB), of which the first 16 are common to all, at 8 backends. Picks come every 100 µs, with
//! and without saves one after the other beside them, in turns, so that a busy machine is busy for both.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use router_policy::prefix::{Chain, Copying, HashKey};
use router_policy::{Alone, BackendId, BackendSpec, Outcome, Placement, PolicyConfig, RequestShape, Usage};
use router_user::account::Ledger;
use router_user::state::pieces::Pieces;
use router_user::state::saver::Saving;
use router_user::state::{self, Engine, Metrics, Place, Saver, Source, Warm};

const BACKENDS: usize = 8;
const BLOCKS: u64 = 64;
const COMMON: u64 = 16;
const PICKS: usize = 4000;
const EVERY: Duration = Duration::from_micros(100);
const TURNS: usize = 5;

/// A session's prompt: a common head, then its own. Mixed as a hash would be.
fn shape(session: u64) -> RequestShape {
    let block = |at: u64| {
        let name = if at < COMMON { at } else { (session + 1) << 8 | at };
        let low = name.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let low = (low ^ low >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        u128::from(low ^ low >> 32) | u128::from(name) << 64 | 1 << 127
    };
    let chain = Chain { blocks: (0..BLOCKS).map(block).collect(), bytes: BLOCKS * 256 };
    RequestShape { model: None, chain, shaped: true, stream: true, ..RequestShape::default() }
}

fn ids() -> impl Iterator<Item = BackendId> {
    (0..BACKENDS).map(|row| BackendId::new(row).unwrap())
}

fn ledger(blocks: usize) -> Arc<Ledger> {
    // Twice as many blocks as are to be held: a backend's share of the index must not bound it.
    let config = PolicyConfig { index_blocks_max: blocks * 2, ..PolicyConfig::default() };
    let ledger = Ledger::new(Placement::new(config, Box::new(Alone), 1));
    for id in ids() {
        ledger.set_backend(id, BackendSpec { kv_tokens: Some(1 << 30), ..BackendSpec::default() });
        ledger.ready(id, true);
    }
    ledger
}

struct Saved {
    key: HashKey,
    ledger: Arc<Ledger>,
}

impl Source for Saved {
    fn key(&self) -> &HashKey {
        &self.key
    }

    fn engines(&self) -> Vec<(BackendId, Engine)> {
        let engine = |id: BackendId| Engine {
            addr: ([10, 0, 0, 1], id.index() as u16).into(),
            url: String::new(),
            seen_at: state::now(),
            process_start: None,
            taught: self.ledger.taught(id).unwrap(),
        };
        ids().map(|id| (id, engine(id))).collect()
    }

    fn begin_copy(&self, id: BackendId) -> Copying {
        self.ledger.begin_copy(id)
    }

    fn copy(&self, copying: &Copying, pieces: usize, to: &mut Pieces) -> Option<bool> {
        self.ledger.copy(copying, pieces, |held| to.push(held))
    }
}

/// Seconds of each pick.
fn picks(ledger: &Arc<Ledger>, sessions: u64, seconds: &mut Vec<f64>) {
    let mut next = Instant::now();
    for n in 0..PICKS as u64 {
        let shape = shape(n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % sessions);
        next += EVERY;
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        let (_, guard) = ledger.pick(&shape, &[]).unwrap();
        seconds.push(start.elapsed().as_secs_f64());
        guard.finish(Outcome::Completed, &Usage::default());
    }
}

fn show(what: &str, seconds: &mut [f64]) {
    seconds.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| seconds[((seconds.len() - 1) as f64 * share) as usize] * 1e6;
    let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(at);
    println!("  pick {what}: p50 {p50:.1}  p99 {p99:.1}  p99.9 {p999:.1}  max {max:.0} µs");
}

fn measure(blocks: usize) {
    let ledger = ledger(blocks);
    let sessions = (blocks as u64 - COMMON) / (BLOCKS - COMMON);
    for n in 0..sessions {
        // In no order, as after long use.
        let session = n * 7919 % sessions;
        let id = BackendId::new(session as usize % BACKENDS).unwrap();
        let (_, guard) = ledger.pick_forced(&shape(session), id).unwrap();
        guard.finish(Outcome::Completed, &Usage::default());
    }
    let held = ledger.index_status(|blocks, bytes, _| (blocks, bytes));
    println!("{} blocks in {} MiB", held.0, held.1 >> 20);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let metrics = Metrics::new(&mut Registry::default());
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        picks(&ledger, sessions, &mut without);
        let saving = Saving {
            place: Place::take(&dir).unwrap(),
            source: Box::new(Saved { key: HashKey::new([1; 192]), ledger: Arc::clone(&ledger) }),
            warm: Arc::new(Warm::new(None, Duration::from_secs(60))),
            interval: Some(Duration::from_millis(1)),
            bytes_max: state::bytes_max(blocks * 2),
            metrics: metrics.clone(),
        };
        let saver = Saver::start(saving).unwrap();
        let saves = metrics.saves.get();
        while metrics.saves.get() < saves + 1 {
            picks(&ledger, sessions, &mut with);
        }
        println!("  saved beside picks in {:.2} s", metrics.save_seconds.get());
        drop(saver);
    }
    println!(
        "  saved at the end in {:.2} s, {:.1} MB",
        metrics.save_seconds.get(),
        metrics.bytes.get() as f64 / 1e6
    );
    show("alone", &mut without);
    show("beside saves", &mut with);
    load(blocks, ledger.index_status(|blocks, _, _| blocks), &dir);
}

fn load(blocks: usize, held: usize, dir: &std::path::Path) {
    let ledger = ledger(blocks);
    let start = Instant::now();
    let state = state::read(Place::take(dir).unwrap().read(u64::MAX - 1).unwrap().unwrap()).unwrap();
    let read = start.elapsed().as_secs_f64();
    for (id, saved) in ids().zip(&state.engines) {
        saved.recall().prompts(|blocks, answer| {
            ledger.remember(id, blocks, answer);
            true
        });
    }
    let all = start.elapsed().as_secs_f64();
    println!(
        "  loaded in {all:.2} s, of which {read:.2} s reading; {} blocks",
        ledger.index_status(|b, _, _| b)
    );
    assert_eq!(ledger.index_status(|blocks, _, _| blocks), held);
}

fn main() {
    println!("µs; {BACKENDS} backends, a pick every {} µs", EVERY.as_micros());
    [100_000, 1_000_000, 3_500_000].into_iter().for_each(measure);
}
