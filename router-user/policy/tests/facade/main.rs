//! The façade under events in any order, with values that no sane engine, configuration or clock gives: it never
//! panics, counts exactly the tickets that are out, prices in finite numbers, and is left with nothing.

#![expect(clippy::unwrap_used, reason = "tests may unwrap")]

#[path = "../common/mod.rs"]
mod common;
mod events;

use std::sync::{Arc, Mutex};

use events::{Op, name, op};
use proptest::prelude::*;
use router_policy::{
    BackendId, BackendSpec, InFlight, LoadTable, Models, Nanos, Outcome, OwnCounts, Placement, PolicyConfig,
    PolicyName, RequestShape, Signal, Ticket, Usage,
};

const ROWS: usize = 4;
const BLOCKS_MAX: usize = 120;

/// What this process published, and what the others did.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<[(InFlight, InFlight); ROWS]>>);

impl LoadTable for Shared {
    fn others(&self, id: BackendId) -> InFlight {
        self.0.lock().unwrap()[id.index()].1
    }

    fn publish(&self, id: BackendId, own: InFlight) {
        self.0.lock().unwrap()[id.index()].0 = own;
    }
}

fn id(row: usize) -> BackendId {
    BackendId::new(row).unwrap()
}

struct World {
    placement: Placement,
    shared: Shared,
    now: Nanos,
    /// With whether its backend is still the one it was sent to.
    out: Vec<(Ticket, bool)>,
}

impl World {
    fn new(policy: PolicyName, own_counts: OwnCounts, record: bool, seed: u64) -> Self {
        let config = PolicyConfig {
            policy,
            own_counts,
            record,
            index_blocks_max: BLOCKS_MAX,
            ..PolicyConfig::default()
        };
        let shared = Shared::default();
        let mut placement = Placement::new(config, Box::new(shared.clone()), seed);
        for row in 0..ROWS / 2 {
            placement.set_backend(id(row), BackendSpec::default());
            placement.set_ready(id(row), true);
        }
        Self { placement, shared, now: Nanos(1 << 40), out: Vec::new() }
    }

    fn step(&mut self, op: Op) {
        let (p, now) = (&mut self.placement, self.now);
        match op {
            Op::Time(by) => self.now = Nanos(now.0.saturating_add_signed(by)),
            Op::Set(row, spec) => p.set_backend(id(row), spec),
            Op::Remove(row) => {
                p.remove_backend(id(row));
                assert_eq!(p.index().held_blocks(id(row)), 0, "a removed backend leaves nothing");
                self.out
                    .iter_mut()
                    .filter(|(t, _)| t.backend() == id(row))
                    .for_each(|(_, counts)| *counts = false);
            }
            Op::Ready(row, ready) => p.set_ready(id(row), ready),
            Op::List(row, model) => p.set_models(id(row), Models::Listed(vec![name(model).to_owned()], now)),
            Op::ReportBegins(row) => p.report_begins(now, id(row)),
            Op::Report(row, report) => {
                let kept = p.report(now, id(row), report.clone());
                // An engine ranks as idle by its own word only.
                let zero = |signal: Signal<u32>| signal.value() == Some(0);
                let is_idle = zero(kept.running) && zero(kept.waiting);
                assert!(!is_idle || (zero(report.running) && zero(report.waiting)), "unknown is not zero");
            }
            Op::Others(row, others) => self.shared.0.lock().unwrap()[row].1 = others,
            Op::ClearCache(row) => {
                p.clear_cache(id(row));
                assert_eq!(p.index().held_blocks(id(row)), 0, "nothing is cached there any more");
            }
            Op::Foreign(row, prompt) => p.observe_foreign(id(row), &prompt.shape().chain.blocks),
            Op::Pick(prompt, tried) => self.pick(&prompt.shape(), tried.map(id)),
            Op::Force(prompt, row) => {
                let forced = p.pick_forced(now, &prompt.shape(), id(row));
                assert_eq!(forced.is_ok(), p.backends().contains(&id(row)));
                self.out.extend(forced.map(|decision| (decision.ticket, true)));
            }
            Op::FirstByte(at) => {
                let at = at % self.out.len().max(1);
                if let Some((ticket, _)) = self.out.get_mut(at) {
                    p.on_first_byte(now, ticket);
                }
            }
            Op::Finish(at, outcome, usage) => {
                if !self.out.is_empty() {
                    let (ticket, _) = self.out.swap_remove(at % self.out.len());
                    p.on_finished(now, ticket, Outcome::ALL[outcome], &usage);
                }
            }
        }
    }

    fn pick(&mut self, shape: &RequestShape, tried: Option<BackendId>) {
        let tried: Vec<BackendId> = tried.into_iter().collect();
        let Ok(decision) = self.placement.pick(self.now, shape, &tried) else { return };
        let chosen = decision.ticket.backend();
        assert!(!tried.contains(&chosen), "what was tried is no candidate");
        assert!(
            self.placement.snapshot(self.now, chosen).unwrap().ready,
            "what is not ready is no candidate"
        );
        assert!(decision.cost.total().is_finite(), "{:?}", decision.cost);
        assert!(decision.matched_tokens <= decision.prompt_tokens);
        for seen in decision.record.iter().flat_map(|record| &record.candidates) {
            assert!(seen.compared.is_finite() && seen.compared >= 0.0, "{seen:?}");
            assert!(seen.seats.count() >= 1);
        }
        self.out.push((decision.ticket, true));
    }

    fn check(&self) {
        let index = self.placement.index();
        let mut marks = 0;
        for row in 0..ROWS {
            let of_row = |(ticket, counts): &&(Ticket, bool)| *counts && ticket.backend() == id(row);
            let out = self.out.iter().filter(of_row).count();
            let own = self.placement.snapshot(self.now, id(row)).map_or_else(InFlight::default, |s| {
                assert!(s.streaming <= s.own.requests);
                assert!(s.foreign.value().is_none_or(|f| f.is_finite() && f >= 0.0));
                s.own
            });
            assert_eq!(own.requests as usize, out, "row {row}: the count is of the tickets that are out");
            assert!(own.q_tokens <= own.c_tokens, "row {row}: {own:?}");
            let published = self.shared.0.lock().unwrap()[row].0;
            assert_eq!((published.requests, published.c_tokens), (own.requests, own.c_tokens), "row {row}");
            // What a prediction takes out of Q is published with the backend's next event.
            assert!(published.q_tokens >= own.q_tokens, "row {row}: {published:?} for {own:?}");
            marks += index.held_blocks(id(row));
        }
        assert!(index.len() <= marks, "every block is somebody's");
    }

    fn end(mut self) {
        for (ticket, _) in std::mem::take(&mut self.out) {
            self.placement.on_finished(self.now, ticket, Outcome::Completed, &Usage::default());
        }
        self.check();
        for id in self.placement.backends().to_vec() {
            let snapshot = self.placement.snapshot(self.now, id).unwrap();
            assert_eq!((snapshot.own, snapshot.streaming), (InFlight::default(), 0), "{id:?} keeps a count");
            self.placement.remove_backend(id);
        }
        assert!(self.placement.index().is_empty(), "without backends nothing is held");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_events_counts_what_is_out_and_leaves_nothing(
        ops in prop::collection::vec(op(), 1..160),
        policy in prop::sample::select(PolicyName::ALL.to_vec()),
        counts_are_unknown in any::<bool>(), record in any::<bool>(), seed in any::<u64>()
    ) {
        let own_counts = if counts_are_unknown { OwnCounts::Unknown } else { OwnCounts::Exact };
        let mut world = World::new(policy, own_counts, record, seed);
        for op in ops {
            world.step(op);
            world.check();
        }
        world.end();
    }
}
