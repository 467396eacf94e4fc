//! Processes that choose at the same moment, as threads over one table: each has a slot and a policy of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use router_policy::{
    BackendId, BackendSpec, InFlight, LoadTable, Nanos, Outcome, Placement, PolicyConfig, RequestShape, Usage,
};

use super::maps::Table;

/// One process's side of a table that all of this test share.
#[derive(Clone)]
struct Member {
    table: Arc<Table>,
    slot: usize,
    looks_again: bool,
}

impl LoadTable for Member {
    fn others(&self, id: BackendId) -> InFlight {
        self.table.sum(id, Some(self.slot))
    }

    fn gives_way(&self, id: BackendId, before: u32) -> bool {
        self.looks_again && self.table.gives_way(id, self.slot, before)
    }

    fn publish(&self, id: BackendId, own: InFlight) {
        self.table.publish(id, self.slot, own);
    }
}

fn id(row: usize) -> BackendId {
    BackendId::new(row).unwrap()
}

fn requests(requests: u32) -> InFlight {
    InFlight { requests, ..InFlight::default() }
}

fn members(count: usize) -> Vec<Member> {
    let table = Arc::new(Table::private().unwrap());
    (1..=count as u64)
        .map(|cookie| {
            let slot = table.claim(cookie, 1, 0).unwrap();
            Member { table: Arc::clone(&table), slot, looks_again: true }
        })
        .collect()
}

#[test]
fn the_highest_slot_gives_way_at_once_and_the_others_when_it_did_not() {
    let three = members(3);
    assert!(three.iter().all(|member| !member.gives_way(id(0), 0)), "nobody counted");
    three[0].publish(id(0), requests(1));
    three[2].publish(id(0), requests(1));
    assert!(three[2].gives_way(id(0), 0));
    assert!(!three[2].gives_way(id(0), 1), "what it had seen is no news");
    assert!(three[0].gives_way(id(0), 0), "the other one did not leave");
    three[2].publish(id(0), requests(0));
    assert!(!three[0].gives_way(id(0), 0), "it did");
    assert!(!three[0].gives_way(id(1), 0));
}

/// So often two of `processes` chose one of as many backends in one round, and how many moved.
fn collisions(processes: usize, rounds: usize, looks_again: bool) -> (usize, usize) {
    let arrived = AtomicUsize::new(0);
    let wait = |turn: usize| {
        arrived.fetch_add(1, SeqCst);
        while arrived.load(SeqCst) < turn * processes {
            // Threads may be more than cores, or these busy with other tests.
            if arrived.load(SeqCst).is_multiple_of(64) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    };
    let went: Vec<AtomicUsize> = (0..processes * rounds).map(|_| AtomicUsize::new(0)).collect();
    let moved = AtomicUsize::new(0);
    let run = |number: usize, member: Member| {
        let mut placement = Placement::new(PolicyConfig::default(), Box::new(member), number as u64);
        for row in 0..processes {
            placement.set_backend(id(row), BackendSpec::default());
            placement.set_ready(id(row), true);
        }
        for round in 0..rounds {
            wait(2 * round + 1);
            let decision = placement.pick(Nanos(round as u64), &RequestShape::unshaped(), &[]).unwrap();
            went[round * processes + number].store(decision.ticket.backend().index(), SeqCst);
            moved.fetch_add(usize::from(decision.moved), SeqCst);
            wait(2 * round + 2);
            let now = Nanos(round as u64);
            placement.on_finished(now, decision.ticket, Outcome::Completed, &Usage::default());
        }
    };
    std::thread::scope(|scope| {
        for (number, mut member) in members(processes).into_iter().enumerate() {
            member.looks_again = looks_again;
            let run = &run;
            scope.spawn(move || run(number, member));
        }
    });
    let is_shared = |round: &&[AtomicUsize]| {
        let mut rows: Vec<_> = round.iter().map(|row| row.load(SeqCst)).collect();
        rows.sort_unstable();
        rows.windows(2).any(|pair| pair[0] == pair[1])
    };
    (went.chunks(processes).filter(is_shared).count(), moved.load(SeqCst))
}

#[test]
fn choices_at_one_moment_seldom_collide() {
    let (without, none) = collisions(2, 5000, false);
    let (with, moved) = collisions(2, 5000, true);
    println!("collisions of 5000: {without} without a second look, {with} with it, {moved} moved");
    assert_eq!(none, 0);
    // On one core, or a busy one, choices are seldom at one moment.
    assert!(with <= 50 + without / 10, "{with} of 5000, {without} without a second look");
    assert!(moved <= 5000, "one of two at most");
}

#[test]
fn one_process_never_moves() {
    assert_eq!(collisions(1, 500, true).1, 0);
}
