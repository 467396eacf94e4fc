//! Another process chooses the same backend at the same moment: the request moves once, if another is better then.
#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

mod common;

use std::sync::{Arc, Mutex};

use common::{chat, ids};
use router_policy::{
    BackendId, BackendSpec, Decision, InFlight, LoadTable, Nanos, Outcome, Placement, PolicyConfig,
    PolicyName, Report, RequestShape, Signal, Usage,
};

/// What another process does, and what it sees of this one.
#[derive(Default)]
struct Other {
    counts: [InFlight; 2],
    /// Counted at a row as soon as this process counts there; each once.
    simultaneous: Vec<(usize, InFlight)>,
    /// Whether it leaves it to this process to give way.
    stays: bool,
    seen: [InFlight; 2],
    looks: u32,
}

#[derive(Clone, Default)]
struct Table(Arc<Mutex<Other>>);

impl LoadTable for Table {
    fn others(&self, id: BackendId) -> InFlight {
        self.0.lock().unwrap().counts[id.index()]
    }

    fn publish(&self, id: BackendId, own: InFlight) {
        let mut other = self.0.lock().unwrap();
        let has_more = own.requests > other.seen[id.index()].requests;
        other.seen[id.index()] = own;
        let at = other.simultaneous.iter().position(|(row, _)| has_more && *row == id.index());
        if let Some((row, counted)) = at.map(|at| other.simultaneous.remove(at)) {
            other.counts[row] = counted;
        }
    }

    fn gives_way(&self, id: BackendId, before: u32) -> bool {
        let mut other = self.0.lock().unwrap();
        other.looks += 1;
        other.stays && other.counts[id.index()].requests > before
    }
}

fn in_flight(requests: u32) -> InFlight {
    let tokens = 1000 * u64::from(requests);
    InFlight { requests, q_tokens: tokens, c_tokens: tokens }
}

/// Two equal backends, and another process that has so many in flight at each.
fn pair(policy: PolicyName, others: [u32; 2]) -> (Placement, Table) {
    let table = Table::default();
    table.0.lock().unwrap().counts = others.map(in_flight);
    table.0.lock().unwrap().stays = true;
    let config = PolicyConfig { policy, record: true, ..PolicyConfig::default() };
    let mut placement = Placement::new(config, Box::new(table.clone()), 1);
    for id in ids() {
        placement.set_backend(id, BackendSpec::default());
        placement.set_ready(id, true);
    }
    (placement, table)
}

fn simultaneous(table: &Table, row: usize, requests: u32) {
    table.0.lock().unwrap().simultaneous.push((row, in_flight(requests)));
}

fn seen(table: &Table) -> [u32; 2] {
    table.0.lock().unwrap().seen.map(|own| own.requests)
}

fn prompt() -> RequestShape {
    chat(&["a prompt that nobody has cached. ".repeat(100)])
}

fn pick(placement: &mut Placement) -> Decision {
    placement.pick(Nanos(1), &prompt(), &[]).unwrap()
}

const BY_LOAD: [PolicyName; 3] =
    [PolicyName::PrefixCost, PolicyName::LeastInFlight, PolicyName::PrefixThreshold];

#[test]
fn it_moves_to_the_other_if_that_is_better_now_and_leaves_nothing_behind() {
    for policy in BY_LOAD {
        // The first is the least by one: the choice is certain, until the other process adds two there.
        let (mut placement, table) = pair(policy, [1, 2]);
        simultaneous(&table, 0, 3);
        let decision = pick(&mut placement);
        let went = decision.ticket.backend().index();
        assert_eq!((decision.moved, went, seen(&table)), (true, 1, [0, 1]), "{policy:?}");
        let record = decision.record.unwrap();
        assert_eq!((record.chosen.index(), record.candidates[0].others), (1, 3), "of the second look");
        placement.on_finished(Nanos(2), decision.ticket, Outcome::Completed, &Usage::default());
        assert_eq!(table.0.lock().unwrap().seen, [InFlight::default(); 2]);
    }
}

#[test]
fn it_stays_while_its_choice_is_among_the_least() {
    for policy in BY_LOAD {
        for (others, now) in [([0, 2], 2), ([0, 5], 3), ([1, 2], 1)] {
            let (mut placement, table) = pair(policy, others);
            simultaneous(&table, 0, now);
            let decision = pick(&mut placement);
            let went = decision.ticket.backend().index();
            assert_eq!((decision.moved, went, seen(&table)), (false, 0, [1, 0]), "{policy:?} {others:?}");
            assert_eq!(decision.record.unwrap().candidates[0].others, others[0], "as it was chosen by");
        }
    }
}

#[test]
fn it_moves_once_whatever_the_other_process_does_then() {
    let (mut placement, table) = pair(PolicyName::PrefixCost, [1, 2]);
    simultaneous(&table, 0, 3);
    simultaneous(&table, 1, 30);
    let decision = pick(&mut placement);
    assert_eq!((decision.moved, decision.ticket.backend().index(), seen(&table)), (true, 1, [0, 1]));
    assert_eq!(table.0.lock().unwrap().looks, 1);
}

#[test]
fn it_does_not_move_where_the_other_gives_way_or_loads_are_stale_or_all_are_full() {
    let (mut placement, table) = pair(PolicyName::PrefixCost, [1, 2]);
    table.0.lock().unwrap().stays = false;
    simultaneous(&table, 0, 3);
    assert!(!pick(&mut placement).moved);

    let (mut placement, table) = pair(PolicyName::LeastInFlight, [1, 9]);
    let running = Signal::known(8, Nanos(1));
    let report = Report { running, waiting: Signal::known(0, Nanos(1)), ..Report::default() };
    placement.report(Nanos(1), ids()[0], report);
    simultaneous(&table, 0, 30);
    let decision = pick(&mut placement);
    assert!(decision.record.unwrap().candidates[0].is_stale, "seven of them nobody here counts");
    assert!(!decision.moved);

    let (mut placement, table) = pair(PolicyName::LeastInFlight, [0, 2]);
    for id in ids() {
        placement.set_backend(id, BackendSpec { max_in_flight: Some(2), ..BackendSpec::default() });
    }
    simultaneous(&table, 0, 2);
    let decision = pick(&mut placement);
    assert_eq!((decision.moved, decision.ticket.backend().index(), seen(&table)), (false, 0, [1, 0]));
}

#[test]
fn choices_that_no_load_made_are_not_looked_at_again() {
    for policy in [PolicyName::RoundRobin, PolicyName::Random, PolicyName::PowerOfTwo, PolicyName::LowestQps]
    {
        let (mut placement, table) = pair(policy, [0, 0]);
        for row in [0, 1] {
            simultaneous(&table, row, 30);
        }
        let decision = pick(&mut placement);
        assert_eq!((decision.moved, table.0.lock().unwrap().looks), (false, 0), "{policy:?}");
    }
}
