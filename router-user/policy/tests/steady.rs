//! The steady state: a placement allocates nothing, and the index keeps its bounds under churn.
#![expect(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{ask, ids, ready_pair};
use router_policy::prefix::{Chain, Trie, Walk};
use router_policy::{BackendId, Nanos, Outcome, PolicyConfig, PolicyName, RequestShape, Usage};

/// Counts the allocations of the thread that asks for it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Like a keyed hash: every bit depends on all of the input.
fn hash(session: u128, n: u128) -> u128 {
    let mixed = ((session << 32 | n) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    (mixed ^ mixed >> 67).wrapping_mul(0xD6E8_FEB8_6659_FD93_A076_1D64_78BD_642F)
}

fn shape(session: u128, blocks: u128) -> RequestShape {
    let shared = (0..8).map(|n| hash(0, n));
    let blocks: Vec<u128> = shared.chain((0..blocks).map(|n| hash(session, n))).collect();
    let bytes = blocks.len() as u64 * 256;
    RequestShape {
        chain: Chain { blocks, bytes },
        shaped: true,
        stream: true,
        session: Some(7),
        ..Default::default()
    }
}

#[test]
fn a_placement_allocates_nothing_in_the_steady_state() {
    for policy in PolicyName::ALL {
        // An index that is full, so that blocks come and go.
        let config = PolicyConfig { policy, index_blocks_max: 300, ..PolicyConfig::default() };
        let mut p = ready_pair(config, 1);
        let shapes: Vec<RequestShape> = (1..=24).map(|session| shape(session, 12)).collect();
        let mut place = |rounds: u64| {
            for n in 0..rounds {
                let now = Nanos(n * 1_000_000);
                let mut tickets: [Option<_>; 4] = [const { None }; 4];
                for (at, slot) in tickets.iter_mut().enumerate() {
                    let shape = &shapes[(n as usize * 4 + at) % shapes.len()];
                    *slot = Some(ask(&mut p, now, shape).ticket);
                }
                for mut ticket in tickets.into_iter().flatten() {
                    p.on_first_byte(now, &mut ticket);
                    p.on_finished(now, ticket, Outcome::Completed, &Usage::default());
                }
            }
        };
        place(2000);
        // Chance may once more fill a room than ever before; whatever a placement itself allocates shows 1,600 times.
        let segments: Vec<u64> = (0..4)
            .map(|_| {
                let before = ALLOCATIONS.with(Cell::get);
                place(400);
                ALLOCATIONS.with(Cell::get) - before
            })
            .collect();
        assert!(segments.iter().all(|n| *n <= 2) && segments.contains(&0), "{policy:?}: {segments:?}");
    }
}

#[test]
fn a_block_and_its_mark_cost_at_most_48_bytes_when_the_index_is_full() {
    // The bound of a full index: its default is seven eighths of a power of two.
    const BLOCKS: usize = (1 << 17) / 8 * 7;
    let mut trie = Trie::default();
    let mut walk = Walk::default();
    let id = BackendId::new(0).unwrap();
    for session in 1..4000 {
        let chain = shape(session, 40).chain.blocks;
        trie.walk(&chain, &mut walk);
        let pin = trie.insert(id, &chain, &walk, BLOCKS).unwrap();
        trie.unpin(id, pin, 0, BLOCKS);
    }
    assert_eq!(trie.held_blocks(id), BLOCKS);
    let each = trie.bytes() as f64 / BLOCKS as f64;
    assert!(each <= 48.0, "{each:.1} bytes");
    let full = trie.bytes();
    for session in 4000..12_000 {
        let chain = shape(session, 40).chain.blocks;
        trie.walk(&chain, &mut walk);
        let pin = trie.insert(id, &chain, &walk, BLOCKS).unwrap();
        trie.unpin(id, pin, 0, BLOCKS);
    }
    assert!(trie.bytes() <= full + full / 50, "churn does not grow it: {} from {full}", trie.bytes());
}

#[test]
fn a_removed_backend_leaves_nothing() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let mut out = Vec::new();
    for session in 1..50 {
        out.push(ask(&mut p, Nanos(1), &shape(session, 20)).ticket);
    }
    let [a, b] = ids();
    p.remove_backend(a);
    p.remove_backend(b);
    assert!(p.index().is_empty());
    for ticket in out {
        p.on_finished(Nanos(2), ticket, Outcome::Completed, &Usage::default());
    }
    assert!(p.index().is_empty(), "late ends bring nothing back");
}
