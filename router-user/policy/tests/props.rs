//! Properties: the trie against a naive model, the counts against what was done.

mod common;

use common::{KEY, chat, ids, ready_pair, tree_chain};
use proptest::prelude::*;
use router_policy::prefix::{ChainBuilder, Pin, Trie, Walk};
use router_policy::{BackendId, Nanos, Outcome, PolicyConfig, PolicyName, RequestShape, Ticket, Usage};

/// The naive model: per backend its blocks, oldest first.
#[derive(Default)]
struct Naive(Vec<Vec<u128>>);

impl Naive {
    fn insert(&mut self, backend: usize, chain: &[u128], capacity: usize) {
        let held = &mut self.0[backend];
        for hash in chain[..chain.len().min(capacity)].iter().rev() {
            held.retain(|h| h != hash);
            held.push(*hash);
        }
        let excess = held.len().saturating_sub(capacity);
        held.drain(..excess);
    }

    fn leading(&self, backend: usize, chain: &[u128]) -> usize {
        chain.iter().take_while(|h| self.0[backend].contains(h)).count()
    }
}

proptest! {
    #[test]
    fn trie_equals_the_naive_model(
        ops in prop::collection::vec((0_usize..3, prop::collection::vec(0_u8..3, 0..12), 0_u8..20), 1..120)
    ) {
        let capacities = [0, 7, 25];
        let mut naive = Naive(vec![Vec::new(); 3]);
        let (mut trie, mut walk) = (Trie::default(), Walk::default());
        for (backend, path, clear) in ops {
            let (id, chain) = (BackendId::new(backend).unwrap(), tree_chain(&path));
            if clear == 0 {
                trie.clear(id);
                naive.0[backend].clear();
            } else {
                trie.walk(&chain, &mut walk);
                if let Some(pin) = trie.insert(id, &chain, &walk, capacities[backend]) {
                    trie.unpin(id, pin, 0, capacities[backend]);
                }
                naive.insert(backend, &chain, capacities[backend]);
            }
            trie.walk(&chain, &mut walk);
            let mut all: Vec<u128> = naive.0.concat();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(trie.len(), all.len());
            for b in 0..3 {
                let id = BackendId::new(b).unwrap();
                prop_assert_eq!(walk.leading_blocks(id) as usize, naive.leading(b, &chain));
                prop_assert_eq!(trie.held_blocks(id), naive.0[b].len());
            }
        }
    }

    #[test]
    fn what_is_in_flight_stays_whatever_comes_and_ages_once_it_ended(
        ops in prop::collection::vec((0_u8..12, prop::collection::vec(0_u8..3, 1..12)), 1..200), capacity in 1_usize..40
    ) {
        let (mut trie, mut walk) = (Trie::default(), Walk::default());
        let id = BackendId::new(0).unwrap();
        let mut out: Vec<(Vec<u128>, u32, Option<Pin>)> = Vec::new();
        for (op, path) in ops {
            let chain = tree_chain(&path);
            match op {
                0 => {
                    // In pieces, as a large cache is cleared.
                    while !trie.clear_some(id, 1 + path.len() % 3) {}
                    out.iter_mut().for_each(|(_, kept, _)| *kept = 0);
                }
                1..=4 if !out.is_empty() => {
                    let (_, _, pin) = out.swap_remove(path.len() % out.len());
                    pin.into_iter().for_each(|pin| trie.unpin(id, pin, usize::from(op), capacity));
                }
                _ => {
                    trie.walk(&chain, &mut walk);
                    let pin = trie.insert(id, &chain, &walk, capacity);
                    trie.walk(&chain, &mut walk);
                    let kept = walk.leading_blocks(id);
                    prop_assert_eq!(pin.is_some(), kept > 0);
                    let pinned: usize = out.iter().map(|(chain, ..)| chain.len()).sum();
                    prop_assert!(kept as usize >= chain.len().min(capacity.saturating_sub(pinned)), "room was left");
                    out.push((chain, kept, pin));
                }
            }
            prop_assert!(trie.held_blocks(id) <= capacity);
            for (chain, kept, _) in &out {
                trie.walk(chain, &mut walk);
                prop_assert!(walk.leading_blocks(id) >= *kept, "{} of {kept}", walk.leading_blocks(id));
            }
        }
        for (_, _, pin) in out {
            pin.into_iter().for_each(|pin| trie.unpin(id, pin, 0, capacity));
        }
        let others: Vec<u128> = (1..=capacity as u128).map(|n| n << 100).collect();
        trie.walk(&others, &mut walk);
        trie.insert(id, &others, &walk, capacity);
        trie.walk(&others, &mut walk);
        prop_assert_eq!(walk.leading_blocks(id) as usize, capacity, "nothing old is held for ever");
    }

    #[test]
    fn an_index_that_is_full_keeps_its_bound_and_what_is_in_flight(
        ops in prop::collection::vec((0_usize..3, 0_u8..12, prop::collection::vec(0_u8..3, 1..30)), 1..200),
        blocks_max in 0_usize..300, capacity in 1_usize..100
    ) {
        let (mut trie, mut walk) = (Trie::new(blocks_max), Walk::default());
        let mut out: Vec<(BackendId, Vec<u128>, u32, Option<Pin>)> = Vec::new();
        for (backend, op, path) in ops {
            let (id, chain) = (BackendId::new(backend).unwrap(), tree_chain(&path));
            if op < 5 && !out.is_empty() {
                let (id, _, _, pin) = out.swap_remove(path.len() % out.len());
                pin.into_iter().for_each(|pin| trie.unpin(id, pin, usize::from(op), capacity));
            } else {
                trie.walk(&chain, &mut walk);
                let held = walk.leading_blocks(id);
                let cut = trie.counters().cut_blocks;
                let pin = trie.insert(id, &chain, &walk, capacity);
                trie.walk(&chain, &mut walk);
                let kept = walk.leading_blocks(id);
                prop_assert!(kept >= held.min(capacity as u32) && pin.is_some() == (kept > 0));
                prop_assert_eq!(u64::from(kept) + trie.counters().cut_blocks - cut, chain.len() as u64);
                out.push((id, chain, kept, pin));
            }
            for b in 0..3 {
                prop_assert!(trie.held_blocks(BackendId::new(b).unwrap()) <= capacity);
            }
            // Lists, and the path of the insertion, are not of the blocks.
            prop_assert!(trie.bytes() <= 48 * blocks_max + 1024, "{} for {blocks_max}", trie.bytes());
            for (id, chain, kept, _) in &out {
                trie.walk(chain, &mut walk);
                prop_assert!(walk.leading_blocks(*id) >= *kept, "{} of {kept}", walk.leading_blocks(*id));
            }
        }
        for (id, _, _, pin) in out {
            pin.into_iter().for_each(|pin| trie.unpin(id, pin, 0, capacity));
        }
        (0..3).for_each(|b| trie.clear(BackendId::new(b).unwrap()));
        prop_assert!(trie.is_empty());
    }

    #[test]
    fn a_chain_does_not_depend_on_how_its_bytes_come(
        text in prop::collection::vec(any::<u8>(), 0..2000), cuts in prop::collection::vec(0_usize..2000, 0..9)
    ) {
        let mut whole = ChainBuilder::new(&KEY, b"d");
        whole.update(&text);
        let mut parts = ChainBuilder::new(&KEY, b"d");
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            parts.update(&text[pair[0]..pair[1]]);
        }
        let (whole, parts) = (whole.finish(), parts.finish());
        prop_assert_eq!(whole.blocks.len(), text.len() / 256);
        prop_assert_eq!(whole, parts);
    }

    #[test]
    fn counts_equal_what_is_out_and_end_at_zero(
        ops in prop::collection::vec((0_u8..6, 0_u16..4000, any::<bool>(), 0_u64..2_000), 1..200),
        policy in prop::sample::select(PolicyName::ALL.to_vec()), seed in any::<u64>()
    ) {
        let mut p = ready_pair(PolicyConfig { policy, ..PolicyConfig::default() }, seed);
        let mut out: Vec<Ticket> = Vec::new();
        let mut now = Nanos(0);
        for (op, size, stream, ms) in ops {
            now = Nanos(now.0 + ms * 1_000_000);
            match op {
                0..=2 => {
                    let shape = RequestShape { stream, ..chat(&["x".repeat(usize::from(size))]) };
                    out.push(p.pick(now, &shape, &[]).unwrap().ticket);
                }
                3 => {
                    let at = usize::from(size) % out.len().max(1);
                    if let Some(ticket) = out.get_mut(at) {
                        p.on_first_byte(now, ticket);
                    }
                }
                _ if !out.is_empty() => {
                    let ticket = out.swap_remove(usize::from(size) % out.len());
                    let outcome = if op == 4 { Outcome::Completed } else { Outcome::ClientGone };
                    p.on_finished(now, ticket, outcome, &Usage::default());
                }
                _ => {}
            }
            for id in ids() {
                let own = p.snapshot(now, id).unwrap().own;
                prop_assert_eq!(own.requests as usize, out.iter().filter(|t| t.backend() == id).count());
                prop_assert!(own.q_tokens <= own.c_tokens);
            }
        }
        for ticket in out.drain(..) {
            p.on_finished(now, ticket, Outcome::Completed, &Usage::default());
        }
        for id in ids() {
            prop_assert_eq!(p.snapshot(now, id).unwrap().own, router_policy::InFlight::default());
        }
    }
}
