//! Placement under events in any order: it never panics, its counts are those of the tickets that are out, and
//! nothing is left when all have ended.
#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use router_policy::prefix::{ChainBuilder, HashKey};
use router_policy::{
    Alone, BackendId, BackendSpec, Fallback, InFlight, Models, Nanos, Outcome, OwnCounts, Placement,
    PolicyConfig, PolicyName, Report, RequestShape, Signal, Ticket, Usage};

const KEY: HashKey = HashKey::new([7; 192]);
const BACKENDS: u8 = 6;
const MODELS: [&str; 3] = ["m", "n", "o"];
/// Tickets out at most: enough for every limit below, and a bound on memory.
const OUT_MAX: usize = 200;

#[derive(Arbitrary, Debug)]
struct Start {
    policy: u8,
    seed: u64,
    prefix_min_match: u16,
    falls_back_to_qps: bool,
    counts_are_unknown: bool,
    index_blocks_max: u16,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Advance(u32),
    Set {
        row: u8,
        model: Option<u8>,
        max_in_flight: Option<u8>,
        seats: Option<u8>,
        kv_tokens: Option<u32>,
        weight: u8,
    },
    Remove(u8),
    Ready(u8, bool),
    List(u8, u8),
    ReportBegins(u8),
    Report {
        row: u8,
        running: Option<u32>,
        waiting: Option<u32>,
        kv_tokens: Option<u64>,
        seats: Option<u32>,
    },
    ClearCache(u8),
    Pick {
        request: Request,
        tried: Option<u8>,
    },
    Force {
        request: Request,
        row: u8,
    },
    FirstByte(u8),
    Finish(u8, u8),
}

/// A prompt of shared beginnings: `session` decides from which block on it is its own.
#[derive(Arbitrary, Debug)]
struct Request {
    session: u8,
    kilobytes: u8,
    model: Option<u8>,
    is_shaped: bool,
    stream: bool,
}

impl Request {
    fn shape(&self) -> RequestShape {
        if !self.is_shaped {
            return RequestShape::unshaped();
        }
        let mut chain = ChainBuilder::new(&KEY, b"m");
        for kilobyte in 0..self.kilobytes % 40 {
            let own = if kilobyte > self.session % 8 { self.session } else { 0 };
            chain.update(&[own; 1024]);
        }
        let model = self.model.map(|m| model(m).into());
        RequestShape {
            model,
            chain: chain.finish(),
            shaped: true,
            stream: self.stream,
            ..RequestShape::default()
        }
    }
}

fn model(choice: u8) -> &'static str {
    MODELS[usize::from(choice) % MODELS.len()]
}

fn id(row: u8) -> BackendId {
    BackendId::new(usize::from(row % BACKENDS)).expect("invariant: fewer rows than there can be backends")
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Unstructured::new(bytes);
    let Ok(start) = bytes.arbitrary::<Start>() else { return };
    let config = PolicyConfig {
        policy: PolicyName::ALL[usize::from(start.policy) % PolicyName::ALL.len()],
        prefix_min_match: start.prefix_min_match.into(),
        fallback: if start.falls_back_to_qps { Fallback::LowestQps } else { Fallback::LeastInFlight },
        own_counts: if start.counts_are_unknown { OwnCounts::Unknown } else { OwnCounts::Exact },
        index_blocks_max: start.index_blocks_max.into(),
        ..PolicyConfig::default()
    };
    let mut world = World {
        placement: Placement::new(config, Box::new(Alone), start.seed),
        now: Nanos(0),
        out: Vec::new(),
        lost: Vec::new(),
    };
    // Not a `Vec` of operations: its length would be drawn, and be short.
    while !bytes.is_empty() {
        let Ok(op) = bytes.arbitrary() else { break };
        world.step(&op);
        world.check();
    }
    world.end();
});

struct World {
    placement: Placement,
    now: Nanos,
    out: Vec<Ticket>,
    /// Tickets whose backend was removed since: they end without effect.
    lost: Vec<Ticket>,
}

impl World {
    fn step(&mut self, op: &Op) {
        let (p, now) = (&mut self.placement, self.now);
        match *op {
            Op::Advance(ns) => self.now = Nanos(now.0 + u64::from(ns)),
            Op::Set { row, model: m, max_in_flight, seats, kv_tokens, weight } => {
                let spec = BackendSpec {
                    model: m.map(|m| model(m).to_owned()),
                    max_in_flight: max_in_flight.map(u32::from),
                    max_num_seqs: seats.map(u32::from),
                    kv_tokens: kv_tokens.map(u64::from),
                    weight: Some(0.1 + f64::from(weight)),
                    ..BackendSpec::default()
                };
                p.set_backend(id(row), spec);
            }
            Op::Remove(row) => {
                p.remove_backend(id(row));
                let (gone, kept) = self.out.drain(..).partition(|t: &Ticket| t.backend() == id(row));
                self.out = kept;
                self.lost.extend::<Vec<_>>(gone);
            }
            Op::Ready(row, ready) => p.set_ready(id(row), ready),
            Op::List(row, m) => p.set_models(id(row), Models::Listed(vec![model(m).to_owned()], now)),
            Op::ReportBegins(row) => p.report_begins(now, id(row)),
            Op::Report { row, running, waiting, kv_tokens, seats } => {
                let report = Report {
                    running: signal(running, now),
                    waiting: signal(waiting, now),
                    kv_tokens: signal(kv_tokens, now),
                    seats: signal(seats, now),
                    fingerprint: running.map(|n| u64::from(n) % 2),
                    ..Report::default()
                };
                p.report(now, id(row), report);
            }
            Op::ClearCache(row) => p.clear_cache(id(row)),
            Op::Pick { ref request, tried } if self.out.len() < OUT_MAX => {
                let tried: Vec<BackendId> = tried.map(id).into_iter().collect();
                if let Ok(decision) = p.pick(now, &request.shape(), &tried) {
                    assert!(!tried.contains(&decision.ticket.backend()), "what was tried is no candidate");
                    assert!(
                        decision.cost.total().is_finite()
                            && decision.matched_tokens <= decision.prompt_tokens
                    );
                    self.out.push(decision.ticket);
                }
            }
            Op::Force { ref request, row } if self.out.len() < OUT_MAX => {
                self.out.extend(p.pick_forced(now, &request.shape(), id(row)).map(|d| d.ticket));
            }
            Op::Pick { .. } | Op::Force { .. } => {}
            Op::FirstByte(which) => {
                let at = usize::from(which) % self.out.len().max(1);
                if let Some(ticket) = self.out.get_mut(at) {
                    p.on_first_byte(now, ticket);
                }
            }
            Op::Finish(which, outcome) => self.finish(which, outcome),
        }
    }

    fn finish(&mut self, which: u8, outcome: u8) {
        let from = if outcome & 4 == 0 || self.lost.is_empty() { &mut self.out } else { &mut self.lost };
        if from.is_empty() {
            return;
        }
        let ticket = from.swap_remove(usize::from(which) % from.len());
        let outcome = [Outcome::Completed, Outcome::ClientGone, Outcome::UpstreamFailed, Outcome::NeverSent]
            [usize::from(outcome % 4)];
        self.placement.on_finished(self.now, ticket, outcome, &Usage::default());
    }

    fn check(&self) {
        for row in 0..BACKENDS {
            let out = self.out.iter().filter(|t| t.backend() == id(row)).count();
            match self.placement.snapshot(self.now, id(row)) {
                Some(s) => {
                    assert_eq!(s.own.requests as usize, out, "the count is of the tickets that are out");
                    assert!(s.own.q_tokens <= s.own.c_tokens && s.streaming <= s.own.requests);
                }
                None => assert_eq!(out, 0),
            }
        }
    }

    fn end(mut self) {
        for ticket in self.out.drain(..).chain(self.lost.drain(..)) {
            self.placement.on_finished(self.now, ticket, Outcome::Completed, &Usage::default());
        }
        for row in 0..BACKENDS {
            let own = self.placement.snapshot(self.now, id(row)).map(|s| s.own);
            assert!(own.is_none_or(|own| own == InFlight::default()), "{own:?} is left");
        }
    }
}

fn signal<T: Copy>(value: Option<T>, now: Nanos) -> Signal<T> {
    value.map_or_else(Signal::default, |value| Signal::known(value, now))
}
