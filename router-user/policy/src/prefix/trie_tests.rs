//! What the index holds, drops and keeps, on small cases.

use super::{BackendId, BlockHash, Pin, Trie, Walk};

fn id(row: usize) -> BackendId {
    BackendId::new(row).unwrap()
}

fn insert(t: &mut Trie, row: usize, chain: &[BlockHash], capacity: usize) -> Option<Pin> {
    let mut walk = Walk::default();
    t.walk(chain, &mut walk);
    t.insert(id(row), chain, &walk, capacity)
}

/// Inserts and lets the request end at once.
fn hold(t: &mut Trie, row: usize, chain: &[BlockHash], capacity: usize) {
    if let Some(pin) = insert(t, row, chain, capacity) {
        t.unpin(id(row), pin, 0, capacity);
    }
}

fn leading(t: &Trie, row: usize, chain: &[BlockHash]) -> u32 {
    let mut walk = Walk::default();
    t.walk(chain, &mut walk);
    walk.leading_blocks(id(row))
}

#[test]
fn leading_blocks_count_per_backend() {
    let mut t = Trie::default();
    hold(&mut t, 0, &[1, 2, 3], 10);
    hold(&mut t, 1, &[1, 2], 10);
    hold(&mut t, 2, &[1, 2, 3], 10);
    let chain = [1, 2, 3, 4];
    assert_eq!([0, 1, 2, 3].map(|row| leading(&t, row, &chain)), [3, 2, 3, 0]);
    assert_eq!(leading(&t, 0, &[9, 2, 3]), 0, "the first block decides");
}

#[test]
fn a_common_head_outlives_its_tails() {
    let mut t = Trie::default();
    hold(&mut t, 0, &[1, 2, 3, 4], 6);
    hold(&mut t, 0, &[1, 2, 5, 6], 6);
    hold(&mut t, 0, &[1, 2, 7, 8], 6);
    assert_eq!(t.held_blocks(id(0)), 6);
    assert_eq!(leading(&t, 0, &[1, 2, 3, 4]), 2, "the oldest tail went, its head stayed");
    assert_eq!(leading(&t, 0, &[1, 2, 7, 8]), 4);
    assert_eq!(t.counters().evicted_blocks, 2);
}

#[test]
fn one_backends_bound_does_not_touch_another() {
    let mut t = Trie::default();
    hold(&mut t, 0, &[1, 2], 2);
    hold(&mut t, 1, &[1, 2, 3], 9);
    hold(&mut t, 0, &[8, 9], 2);
    assert_eq!((leading(&t, 0, &[1, 2, 3]), leading(&t, 1, &[1, 2, 3])), (0, 3));
    hold(&mut t, 0, &[1, 2], 2);
    assert_eq!(leading(&t, 0, &[1, 2, 3]), 2, "it may hold again what it lost");
    t.clear(id(1));
    assert_eq!((t.held_blocks(id(1)), t.len()), (0, 2));
}

#[test]
fn a_chain_longer_than_the_capacity_keeps_its_head() {
    let mut t = Trie::default();
    let chain: Vec<BlockHash> = (1..=100).map(|n| n << 64).collect();
    hold(&mut t, 3, &chain, 10);
    assert_eq!((leading(&t, 3, &chain), t.counters().cut_blocks), (10, 90));
    assert_eq!(insert(&mut t, 4, &chain, 0), None, "capacity 0 holds nothing");
}

#[test]
fn what_is_in_flight_is_not_evicted() {
    let mut t = Trie::default();
    let pin = insert(&mut t, 0, &[1, 2], 4).unwrap();
    for n in 10..30 {
        hold(&mut t, 0, &[n << 64, (n + 100) << 64], 4);
    }
    assert_eq!(leading(&t, 0, &[1, 2]), 2, "pinned though it is the oldest");
    t.unpin(id(0), pin, 0, 4);
    for n in 40..42 {
        hold(&mut t, 0, &[n << 64, (n + 100) << 64], 4);
    }
    assert_eq!(leading(&t, 0, &[1, 2]), 0, "no longer pinned, it ages");
}

#[test]
fn when_all_is_pinned_the_newcomer_is_cut() {
    let mut t = Trie::default();
    let pin = insert(&mut t, 0, &[1, 2, 3, 4], 4);
    assert!(pin.is_some());
    assert_eq!(insert(&mut t, 0, &[7, 8], 4), None);
    assert_eq!((t.held_blocks(id(0)), t.counters().cut_blocks), (4, 2));
}

#[test]
fn an_answer_leaves_filler_that_goes_before_its_prompt() {
    let mut t = Trie::default();
    let pin = insert(&mut t, 0, &[1 << 64, 2 << 64], 6).unwrap();
    t.unpin(id(0), pin, 3, 6);
    assert_eq!(t.held_blocks(id(0)), 5);
    hold(&mut t, 0, &[7 << 64, 8 << 64, 9 << 64], 6);
    assert_eq!(leading(&t, 0, &[1 << 64, 2 << 64]), 2, "the filler went first");
}

#[test]
fn a_pin_from_before_a_clearing_is_void() {
    let mut t = Trie::default();
    let pin = insert(&mut t, 0, &[1, 2], 4).unwrap();
    t.clear(id(0));
    hold(&mut t, 0, &[5, 6], 4);
    t.unpin(id(0), pin, 9, 4);
    assert_eq!((t.held_blocks(id(0)), leading(&t, 0, &[5, 6])), (2, 2));
}

#[test]
fn what_is_cleared_in_pieces_is_gone_whatever_happens_between() {
    let mut t = Trie::default();
    for n in 1..=20 {
        hold(&mut t, 0, &[n * 100, n * 100 + 1, n * 100 + 2], 1000);
    }
    hold(&mut t, 1, &[100, 101, 102], 1000);
    let old = insert(&mut t, 0, &[100, 101, 102], 1000).unwrap();
    assert!(!t.clear_some(id(0), 3));
    let between = insert(&mut t, 0, &[7, 8], 1000).unwrap();
    while !t.clear_some(id(0), 3) {}
    assert_eq!((t.held_blocks(id(0)), t.held_blocks(id(1)), t.len()), (0, 3, 3));
    for pin in [old, between] {
        t.unpin(id(0), pin, 2, 1000);
    }
    assert_eq!(t.held_blocks(id(0)), 0, "pins from before, and between, are void");
    hold(&mut t, 0, &[100, 101], 1000);
    assert_eq!(leading(&t, 0, &[100, 101, 102]), 2);
}
