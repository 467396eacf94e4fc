//! Seats: long streams hold a shared system prompt on A, and new sessions with that prompt must not queue there.

use crate::cluster::{Cluster, Placed, Session};
use router_policy::{Nanos, PolicyConfig};

const SEATS: u32 = 4;
const SECOND: u64 = 1_000_000_000;

fn system_prompt() -> String {
    "The shared system prompt. ".repeat(316)[..8192].to_owned()
}

fn session(start: Nanos, own: String, turns: u32) -> Session {
    Session {
        start,
        opening: vec![system_prompt(), own],
        turn_text: "and then? ".repeat(40),
        turns,
        answer_tokens: 120,
        gap: Nanos(SECOND / 2),
        forced: None,
    }
}

/// A warm request and `long` long streams on A, then eight sessions of four turns; the sessions' placements.
fn placements(long: usize, stagger: Nanos, told: bool, seed: u64) -> Vec<Placed> {
    let mut sessions =
        vec![Session { answer_tokens: 1, forced: Some(0), ..session(Nanos(0), "warm".into(), 1) }];
    for i in 0..long {
        let own = format!("long stream {i} ").repeat(20);
        let start = Nanos(SECOND);
        sessions.push(Session { answer_tokens: 3000, forced: Some(0), ..session(start, own, 1) });
    }
    let first = sessions.len();
    for i in 0..8_u64 {
        let own = format!("seed {seed} session {i} ").repeat(120);
        sessions.push(session(Nanos(3 * SECOND + i * stagger.0), own, 4));
    }
    let mut cluster = Cluster::new(2, SEATS, told, PolicyConfig::default(), seed);
    let run = cluster.run(&sessions);
    run.placed.into_iter().filter(|p| p.session >= first).collect()
}

#[test]
fn told_seats_are_never_overrun_while_another_engine_has_a_free_one() {
    for seed in 0..50 {
        for (long, stagger) in [(0, 0), (0, 3 * SECOND / 10), (2, 0), (2, 3 * SECOND / 10)] {
            for p in placements(long, Nanos(stagger), true, seed) {
                assert!(
                    !p.is_queued_beside_a_free_seat(SEATS),
                    "seed {seed}, {long} long, {stagger} ns: {p:?}"
                );
            }
        }
    }
}

#[test]
fn unknown_seats_are_overrun_by_at_most_one_request_per_engine() {
    for seed in 0..50 {
        for (long, stagger) in [(0, 0), (0, 3 * SECOND / 10), (2, 0), (2, 3 * SECOND / 10)] {
            let mut overrun = [0, 0];
            for p in placements(long, Nanos(stagger), false, seed) {
                overrun[p.backend] += usize::from(p.is_queued_beside_a_free_seat(SEATS));
            }
            let rule = "one request teaches the limit";
            assert!(
                overrun.iter().all(|&n| n <= 1),
                "seed {seed}, {long} long, {stagger} ns: {overrun:?}; {rule}"
            );
        }
    }
}
