//! What is copied out between other uses of the index, and held again, is what was held, in the same order of age.

#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

mod common;

use common::{chat, ids, ready_pair, tree_chain};
use proptest::prelude::*;
use router_policy::prefix::{Copying, Held, Recalled, Trie, Walk};
use router_policy::{
    BackendId, Nanos, Outcome, PolicyConfig, Report, RequestShape, Signal, Taught, Usage, Why,
};

fn id(row: usize) -> BackendId {
    BackendId::new(row).unwrap()
}

fn insert(trie: &mut Trie, id: BackendId, chain: &[u128], answer: usize, capacity: usize) {
    let mut walk = Walk::default();
    trie.walk(chain, &mut walk);
    if let Some(pin) = trie.insert(id, chain, &walk, capacity) {
        trie.unpin(id, pin, answer, capacity);
    }
}

/// Goes on with a copy; whether more is to come, if it is not void.
fn copy(trie: &mut Trie, copying: &Copying, marks: usize, to: &mut Recalled) -> Option<bool> {
    trie.copy(copying, marks, |held| match held {
        Held::Prompt { before, blocks } => to.prompt(before, blocks),
        Held::Answer { before, blocks } => to.answer(before, blocks),
    })
}

fn copy_all(trie: &mut Trie, id: BackendId) -> Recalled {
    let (mut all, copying) = (Recalled::default(), trie.begin_copy(id));
    while copy(trie, &copying, 3, &mut all).unwrap() {}
    all
}

fn hold(trie: &mut Trie, id: BackendId, recalled: &Recalled) -> usize {
    recalled.prompts(|blocks, answer| {
        insert(trie, id, blocks, answer, 1 << 20);
        true
    })
}

fn leading(trie: &Trie, chain: &[u128], id: BackendId) -> u32 {
    let mut walk = Walk::default();
    trie.walk(chain, &mut walk);
    walk.leading_blocks(id)
}

/// What is left after the oldest have gone, step by step, says in what order they were.
fn assert_same_age(
    mut a: Trie,
    mut b: Trie,
    id: BackendId,
    chains: &[Vec<u128>],
) -> Result<(), TestCaseError> {
    let held = a.held_blocks(id);
    prop_assert_eq!(held, b.held_blocks(id));
    for capacity in (1..=held).rev().step_by(3) {
        // A block of nobody's makes room for itself.
        let new = [capacity as u128];
        insert(&mut a, id, &new, 0, capacity);
        insert(&mut b, id, &new, 0, capacity);
        for chain in chains {
            prop_assert_eq!(leading(&a, chain, id), leading(&b, chain, id), "capacity {}", capacity);
        }
    }
    Ok(())
}

type Op = (usize, Vec<u8>, u8, u8);

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec((0_usize..3, prop::collection::vec(0_u8..3, 1..30), 0_u8..4, 0_u8..40), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_copy_is_the_same_in_blocks_answers_and_age(ops in ops()) {
        let (mut trie, mut again) = (Trie::default(), Trie::default());
        let mut chains = Vec::new();
        for (backend, path, answer, _) in &ops {
            let chain = tree_chain(path);
            insert(&mut trie, id(*backend), &chain, usize::from(*answer), 200);
            chains.push(chain);
        }
        for row in 0..3 {
            let copied = copy_all(&mut trie, id(row));
            prop_assert_eq!(hold(&mut again, id(row), &copied), 0, "nothing lacks what it goes on from");
        }
        prop_assert_eq!(again.len(), trie.len());
        for chain in &chains {
            for row in 0..3 {
                prop_assert_eq!(leading(&again, chain, id(row)), leading(&trie, chain, id(row)));
            }
        }
        // One backend's marks at a time, as the others' capacity is not asked here.
        assert_same_age(again, trie, id(0), &chains)?;
    }

    /// Whatever is inserted, evicted, split or lost between two slices.
    #[test]
    fn a_copy_in_slices_has_all_that_was_there_throughout(
        ops in ops(), begin in 0_usize..30, slice in 1_usize..4, capacity in 5_usize..120
    ) {
        let mut trie = Trie::default();
        let (mut copying, mut copied, mut is_void, mut more) = (None, Recalled::default(), false, true);
        let mut chains: Vec<Vec<u128>> = Vec::new();
        let mut least: Vec<u32> = Vec::new();
        for (n, (backend, path, answer, clear)) in ops.iter().enumerate() {
            if n == begin {
                copying = Some(trie.begin_copy(id(0)));
                least = chains.iter().map(|chain| leading(&trie, chain, id(0))).collect();
            }
            if *clear == 0 {
                trie.clear(id(*backend));
            } else {
                let chain = tree_chain(path);
                insert(&mut trie, id(*backend), &chain, usize::from(*answer), capacity);
                chains.push(chain);
            }
            if let (Some(copying), true, false) = (&copying, more, is_void) {
                for (chain, least) in chains.iter().zip(&mut least) {
                    *least = (*least).min(leading(&trie, chain, id(0)));
                }
                match copy(&mut trie, copying, slice, &mut copied) {
                    Some(left) => more = left,
                    None => is_void = true,
                }
            }
        }
        let Some(copying) = copying else { return Ok(()) };
        while more && !is_void {
            match copy(&mut trie, &copying, slice, &mut copied) {
                Some(left) => more = left,
                None => is_void = true,
            }
        }
        if is_void {
            return Ok(());
        }
        let mut again = Trie::default();
        hold(&mut again, id(0), &copied);
        for (chain, least) in chains.iter().zip(least) {
            let now = leading(&again, chain, id(0));
            prop_assert!(now >= least, "{now} blocks of {least} that were there all the time");
        }
        // A prefix-closed set of what was once there: every block of it is of some chain.
        let known: std::collections::HashSet<u128> = chains.concat().into_iter().collect();
        copied.prompts(|blocks, _| {
            assert!(blocks.iter().all(|block| known.contains(block)));
            true
        });
    }

    #[test]
    fn pieces_in_any_order_and_of_any_content_are_no_danger(
        pieces in prop::collection::vec((0_u128..12, prop::collection::vec(0_u128..12, 0..4), 0_u16..3), 0..40)
    ) {
        let mut recalled = Recalled::default();
        for (before, blocks, answer) in pieces {
            if blocks.is_empty() {
                recalled.answer(before, answer);
            } else {
                recalled.prompt((before > 0).then_some(before), blocks.into_iter());
            }
        }
        let mut trie = Trie::new(1000);
        hold(&mut trie, id(0), &recalled);
    }
}

#[test]
fn a_backend_that_lost_everything_voids_its_copy_and_no_others() {
    let mut trie = Trie::default();
    for row in [0, 1] {
        insert(&mut trie, id(row), &tree_chain(&[1; 40]), 0, 100);
    }
    let copies = [0, 1].map(|row| trie.begin_copy(id(row)));
    let mut to = Recalled::default();
    assert_eq!(copy(&mut trie, &copies[0], 1, &mut to), Some(true));
    trie.clear(id(0));
    insert(&mut trie, id(0), &tree_chain(&[2; 40]), 0, 100);
    assert_eq!(copy(&mut trie, &copies[0], 1, &mut to), None);
    assert_eq!(copy(&mut trie, &copies[1], 100, &mut to), Some(false));
    let unknown = trie.begin_copy(id(7));
    assert_eq!(copy(&mut trie, &unknown, 1, &mut to), Some(false), "nothing is held there");
}

#[test]
fn what_was_taught_goes_on_and_what_is_known_better_stays() {
    let mut one = ready_pair(PolicyConfig::default(), 1);
    let [a, b] = ids();
    let shape = RequestShape { stream: true, ..chat(&["x".repeat(40_000)]) };
    let at = |seconds: f64| Nanos::from_secs_f64(seconds);
    for n in 0..3 {
        let start = f64::from(n) * 10.0;
        let mut ticket = one.pick_forced(at(start), &shape, a).unwrap().ticket;
        one.on_first_byte(at(start + 0.5), &mut ticket);
        let usage = Usage { prompt_tokens: Some(11_000), ..Usage::default() };
        one.on_finished(at(start + 2.5), ticket, Outcome::Completed, &usage);
    }
    let taught = one.taught(a).unwrap();
    assert!(taught.averages[..5].iter().all(Option::is_some) && taught.proven_seats == 1, "{taught:?}");
    assert_eq!(one.taught(b).unwrap(), Taught::default());

    let mut two = ready_pair(PolicyConfig::default(), 1);
    let more = Taught { kv_tokens: Some(2_000_000), seats_from_waiting: Some(3), ..taught.clone() };
    two.teach(at(0.0), b, &more);
    assert_eq!(two.taught(b).unwrap(), more);
    let told = two.snapshot(at(0.0), b).unwrap();
    assert_eq!((told.kv_tokens, told.decode_seconds), (2_000_000, Some((2.0, 3))));
    let nonsense = Taught {
        averages: [
            Some((f64::NAN, 1)),
            Some((-1.0, 1)),
            Some((1e9, 1)),
            Some((f64::INFINITY, 1)),
            None,
            Some((0.0, 1)),
        ],
        seats_from_scrapes: Some(0),
        kv_tokens: Some(0),
        ..Taught::default()
    };
    two.teach(at(0.0), a, &nonsense);
    assert_eq!(two.taught(a).unwrap(), Taught::default());
    one.teach(at(40.0), a, &Taught { averages: [Some((9.0, 9)); 6], ..Taught::default() });
    assert_eq!(
        one.taught(a).unwrap().averages[..5],
        taught.averages[..5],
        "own observations are the better ones"
    );
}

#[test]
fn one_failed_question_does_not_shrink_what_an_engine_holds() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let [id, _] = ids();
    let told = |tokens| Report { kv_tokens: tokens, ..Report::default() };
    let at = |seconds: f64| Nanos::from_secs_f64(seconds);
    p.report(at(0.0), id, told(Signal::known(4_000_000, at(0.0))));
    let prompts: Vec<Vec<u128>> = (0..200_u8).map(|n| tree_chain(&[n; 100])).collect();
    prompts.iter().for_each(|prompt| p.remember(id, prompt, 0));
    let held = |p: &router_policy::Placement| p.snapshot(at(1.0), id).unwrap().index_blocks;
    assert_eq!(held(&p), 20_000);
    p.report(at(1.0), id, told(Signal::Unknown(Why::Unreachable)));
    p.remember(id, &prompts[0], 0);
    assert_eq!((held(&p), p.snapshot(at(1.0), id).unwrap().kv_tokens), (20_000, 4_000_000));
    p.clear_cache(id);
    assert_eq!(p.snapshot(at(1.0), id).unwrap().kv_tokens, 400_000, "another process may have another pool");
}
