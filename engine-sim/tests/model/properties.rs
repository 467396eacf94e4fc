//! What holds for every history of requests: nothing is lost, invented, or out of bounds.

use std::collections::BTreeMap;

use crate::support::{prompt, request, with_host_tier};
use engine_sim::model::{Event, EventKind, Nanos, RequestId};
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

#[derive(Clone, Debug)]
enum Action {
    Submit { family: u64, tokens: u32, max_tokens: u32 },
    Cancel { nth: u64 },
    Wait { ms: u64 },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let submit = (0..4_u64, 1..300_u32, 1..40_u32).prop_map(|(family, tokens, max_tokens)| Action::Submit {
        family,
        tokens,
        max_tokens,
    });
    let cancel = (0..40_u64).prop_map(|nth| Action::Cancel { nth });
    let wait = (0..200_u64).prop_map(|ms| Action::Wait { ms });
    proptest::collection::vec(prop_oneof![4 => submit, 1 => cancel, 3 => wait], 1..60)
}

/// Plays a history to its end, checking every invariant after each action.
fn play(
    actions: &[Action],
    seats: u32,
    budget: u32,
    (blocks, host_blocks): (u32, u32),
) -> Result<(Vec<Event>, BTreeMap<u64, u32>), String> {
    let mut engine = with_host_tier(seats, budget, blocks, host_blocks);
    let (mut now, mut events, mut next_id) = (Nanos(0), Vec::new(), 0);
    // Tokens that each request must have got in the end.
    let mut due = BTreeMap::new();
    let (mut cancelled, mut refused) = (0, 0);
    for action in actions {
        match *action {
            Action::Submit { family, tokens, max_tokens } => {
                match engine.submit(now, request(next_id, prompt(family, tokens), max_tokens)) {
                    Ok(()) => drop(due.insert(next_id, max_tokens)),
                    Err(_) => refused += 1,
                }
                next_id += 1;
            }
            Action::Cancel { nth } => {
                if engine.cancel(RequestId(nth)) {
                    due.remove(&nth);
                    cancelled += 1;
                }
            }
            Action::Wait { ms } => {
                now = Nanos(now.0 + ms * 1_000_000);
                engine.advance(now, &mut events);
            }
        }
        engine.audit()?;
    }
    let mut steps_left = 100_000;
    while let Some(next) = engine.next_event() {
        engine.advance(next, &mut events);
        engine.audit()?;
        steps_left -= 1;
        if steps_left == 0 {
            return Err("the engine does not come to rest".to_owned());
        }
    }
    let stats = engine.stats();
    let wrong = [
        ("live", u64::from(stats.live()), 0),
        ("used blocks", u64::from(stats.used_blocks), 0),
        ("aborted", stats.aborted, cancelled),
        ("refused", stats.refused, refused),
        ("served", stats.served, due.len() as u64),
    ];
    match wrong.iter().find(|(_, got, want)| got != want) {
        Some((what, got, want)) => Err(format!("{what}: {got}, not {want}")),
        None if stats.running_peak > seats => Err(format!("{} ran on {seats} seats", stats.running_peak)),
        None => Ok((events, due)),
    }
}

proptest! {
    #[test]
    fn every_request_gets_exactly_its_tokens_or_is_cancelled(
        actions in actions(), seats in 1..6_u32, budget in 6..400_u32,
        blocks in (8..60_u32, 0..60_u32),
    ) {
        let (events, due) = play(&actions, seats, budget, blocks).map_err(proptest::test_runner::TestCaseError::fail)?;
        let mut got: BTreeMap<u64, (u32, bool)> = BTreeMap::new();
        for event in &events {
            let (tokens, is_finished) = got.entry(event.id.0).or_default();
            prop_assert!(!*is_finished, "nothing follows the end");
            match event.kind {
                EventKind::FirstToken { .. } => prop_assert_eq!(*tokens, 0, "the first token comes first"),
                EventKind::Token => prop_assert!(*tokens > 0, "the first token comes first"),
                EventKind::Finished => *is_finished = true,
            }
            *tokens += u32::from(event.kind != EventKind::Finished);
        }
        for (id, max_tokens) in &due {
            prop_assert_eq!(got.get(id), Some(&(*max_tokens, true)), "request {}", id);
        }
        prop_assert!(events.is_sorted_by_key(|e| e.at), "events come in the order of time");
    }

    #[test]
    fn the_same_history_gives_the_same_events(
        actions in actions(), seats in 1..6_u32, blocks in any::<u8>(), host_blocks in 0..60_u32,
    ) {
        let blocks = (u32::from(blocks) + 8, host_blocks);
        let first = play(&actions, seats, 256, blocks);
        prop_assert_eq!(first, play(&actions, seats, 256, blocks));
    }
}
