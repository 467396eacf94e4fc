//! The index under churn without end: its memory keeps one hard bound, inner structure included, and what it says is
//! held is what a naive list says.
//!
//! Two million insertions in every run; a hundred million, in a build with optimisation, where `UNLATCH_LONG` is set
//! (`cargo xtask test --long`).
#![expect(clippy::unwrap_used, reason = "tests may unwrap")]

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use router_policy::BackendId;
use router_policy::prefix::{Pin, Trie, Walk};

const BACKENDS: usize = 4;
/// Blocks each backend may hold; in all seven eighths of a power of two, as the default bound is.
const CAPACITY: usize = (1 << 17) / 8 * 7 / BACKENDS;
const MARKS_MAX: usize = CAPACITY * BACKENDS;
/// What the index may take, whoever holds what.
const BYTES_MAX: usize = 48 * MARKS_MAX;
/// What an empty one may keep: the lists of the backends.
const BYTES_MAX_EMPTY: usize = 1024;
/// Requests in flight at most, whose blocks are pinned.
const OUT_MAX: usize = 64;
/// Chains that go on: what is asked again and extended.
const SESSIONS: usize = 2000;

fn id(row: usize) -> BackendId {
    BackendId::new(row).unwrap()
}

fn insertions() -> u64 {
    let is_long = std::env::var_os("UNLATCH_LONG").is_some() && !cfg!(debug_assertions);
    if is_long { 100_000_000 } else { 2_000_000 }
}

/// How requests choose their backends and prompts, from one extreme to the other.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// No two backends hold the same block.
    Apart,
    /// Every prompt goes to every backend.
    Shared,
    /// Sessions stay and grow; some move.
    Sessions,
}

/// A request that is out, or ended lately.
struct Request {
    backend: usize,
    chain: Vec<u128>,
    /// Blocks that were held and pinned when it was placed.
    kept: u32,
    pin: Option<Pin>,
    /// Blocks touched at its backend until it ended, and the clearings before.
    at: (u64, u64),
}

/// One conversation: its name and how many blocks it has by now.
#[derive(Clone, Copy, Default)]
struct Session {
    name: u64,
    blocks: usize,
}

struct Churn {
    trie: Trie,
    walk: Walk,
    rng: Xoshiro256PlusPlus,
    sessions: Vec<Session>,
    out: VecDeque<Request>,
    ended: VecDeque<Request>,
    /// Of each backend: blocks touched, clearings.
    touched: [(u64, u64); BACKENDS],
    next_name: u64,
    inserted: u64,
}

/// Like a keyed hash: every bit depends on all of the input.
fn hash(name: u64, n: usize) -> u128 {
    let mixed =
        ((u128::from(name) << 32 | n as u128) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    (mixed ^ mixed >> 67).wrapping_mul(0xD6E8_FEB8_6659_FD93_A076_1D64_78BD_642F)
}

impl Churn {
    fn new() -> Self {
        Self {
            trie: Trie::new(MARKS_MAX),
            walk: Walk::default(),
            rng: Xoshiro256PlusPlus::seed_from_u64(1),
            sessions: vec![Session::default(); SESSIONS],
            out: VecDeque::new(),
            ended: VecDeque::new(),
            touched: [(0, 0); BACKENDS],
            next_name: 1,
            inserted: 0,
        }
    }

    /// The session's prompt: eight blocks that one in eight sessions share, then its own.
    fn chain(session: Session) -> Vec<u128> {
        let shared = (0..8).map(|n| hash(session.name % 8, n));
        shared.chain((0..session.blocks).map(|n| hash(session.name + 8, n))).collect()
    }

    fn step(&mut self, phase: Phase) {
        let at = self.rng.random_range(0..SESSIONS);
        let session = &mut self.sessions[at];
        if session.blocks > 48 || session.name == 0 || matches!(phase, Phase::Apart) {
            *session = Session { name: self.next_name, blocks: 0 };
            self.next_name += 1;
        }
        session.blocks += 6;
        let chain = Self::chain(*session);
        let home = at % BACKENDS;
        match phase {
            Phase::Apart => self.place(home, chain),
            Phase::Shared => (0..BACKENDS).for_each(|backend| self.place(backend, chain.clone())),
            Phase::Sessions if self.rng.random_range(0..10) == 0 => {
                let elsewhere = self.rng.random_range(0..BACKENDS);
                self.place(elsewhere, chain);
            }
            Phase::Sessions => self.place(home, chain),
        }
        if self.rng.random_range(0..200_000) == 0 {
            self.clear(home);
        }
    }

    fn place(&mut self, backend: usize, chain: Vec<u128>) {
        self.trie.walk(&chain, &mut self.walk);
        let held = self.walk.leading_blocks(id(backend));
        let pin = self.trie.insert(id(backend), &chain, &self.walk, CAPACITY);
        self.inserted += chain.len() as u64 - u64::from(held);
        self.touched[backend].0 += chain.len() as u64;
        let kept = self.leading(backend, &chain);
        assert_eq!(kept as usize, chain.len(), "there is always room: most is not pinned");
        let at = self.touched[backend];
        self.out.push_back(Request { backend, chain, kept, pin, at });
        if self.out.len() > OUT_MAX {
            let which = self.rng.random_range(0..self.out.len());
            self.end(which);
        }
        let bytes = self.trie.bytes();
        assert!(bytes <= BYTES_MAX, "{bytes} of {BYTES_MAX} bytes after {} insertions", self.inserted);
        assert!(self.trie.held_blocks(id(backend)) <= CAPACITY);
    }

    fn end(&mut self, which: usize) {
        let mut request = self.out.swap_remove_back(which).unwrap();
        let answer = self.rng.random_range(0..4);
        if let Some(pin) = request.pin.take() {
            self.trie.unpin(id(request.backend), pin, answer, CAPACITY);
        }
        let touched = &mut self.touched[request.backend];
        touched.0 += (request.chain.len() + answer) as u64;
        request.at.0 = touched.0;
        self.ended.push_back(request);
        if self.ended.len() > 4 * SESSIONS {
            self.ended.pop_front();
        }
    }

    fn clear(&mut self, backend: usize) {
        self.trie.clear(id(backend));
        self.touched[backend].1 += 1;
        assert_eq!(self.trie.held_blocks(id(backend)), 0);
    }

    fn leading(&mut self, backend: usize, chain: &[u128]) -> u32 {
        self.trie.walk(chain, &mut self.walk);
        self.walk.leading_blocks(id(backend))
    }

    /// Against what the bound alone tells: what is in flight is held; what ended is, as long as fewer blocks than the
    /// bound were touched since, those in flight counted; what was cleared or never given is not.
    fn check_matches(&mut self) {
        let out: usize = self.out.iter().map(|r| r.chain.len()).sum();
        let (requests, ended) = (std::mem::take(&mut self.out), std::mem::take(&mut self.ended));
        for request in &requests {
            let is_cleared = request.at.1 != self.touched[request.backend].1;
            let leading = self.leading(request.backend, &request.chain);
            assert!(is_cleared || leading == request.kept, "a prompt in flight is held whole");
        }
        let mut held = 0;
        for request in ended.iter().step_by(7) {
            let (touched, clearings) = self.touched[request.backend];
            let is_recent = touched - request.at.0 + out as u64 <= CAPACITY as u64;
            let leading = self.leading(request.backend, &request.chain);
            if is_recent && request.at.1 == clearings {
                assert_eq!(
                    leading as usize,
                    request.chain.len(),
                    "{touched} touched, ended at {:?}",
                    request.at
                );
                held += 1;
            }
        }
        assert!(held > 50, "{held} were recent");
        let never = Self::chain(Session { name: self.next_name + 8, blocks: 9 });
        for backend in 0..BACKENDS {
            assert!(self.leading(backend, &never) <= 8, "of what was never given only the shared head");
        }
        (self.out, self.ended) = (requests, ended);
    }

    fn empty(&mut self) {
        while !self.out.is_empty() {
            self.end(0);
        }
        (0..BACKENDS).for_each(|backend| self.clear(backend));
        assert!(self.trie.is_empty());
        let bytes = self.trie.bytes();
        assert!(bytes <= BYTES_MAX_EMPTY, "{bytes} bytes are left of {BYTES_MAX_EMPTY} allowed");
    }
}

#[test]
fn memory_keeps_its_bound_and_matches_stay_right_under_churn() {
    let mut churn = Churn::new();
    let phases = [Phase::Apart, Phase::Sessions, Phase::Shared, Phase::Sessions];
    let total = insertions();
    for (turn, phase) in phases.into_iter().cycle().enumerate() {
        // Each phase turns the whole index over.
        let until = (turn as u64 + 1) * 4 * (CAPACITY * BACKENDS) as u64;
        while churn.inserted < until {
            churn.step(phase);
        }
        churn.check_matches();
        if until >= total {
            break;
        }
    }
    assert!(churn.inserted >= total);
    churn.empty();
}
