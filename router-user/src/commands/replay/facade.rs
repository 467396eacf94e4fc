//! One or several routers, each with the very façade that the proxy calls, told only what a proxy is told: first
//! byte, end, and a scrape at the interval.

use std::sync::Arc;

use engine_sim::Prompt;
use parking_lot::Mutex;
use router_policy::{
    Alone, BackendId, BackendSpec, LoadTable, Nanos, Outcome, Placement, PolicyConfig, Report, Signal,
};

use super::chooser::{Chooser, End, Placed};
use super::fleet::Fleet;
use super::gossip::{Board, Member};
use super::keys;

/// Routers that take requests in turn.
pub(super) struct Facade {
    routers: Vec<Placement>,
    board: Option<Arc<Mutex<Board>>>,
    turn: usize,
    restarted: Vec<usize>,
}

impl Facade {
    /// `routers` routers before `engines` engines; with several, their counts reach each other `gossip` later.
    pub(super) fn new(
        config: &PolicyConfig,
        engines: usize,
        routers: usize,
        gossip: std::time::Duration,
        seed: u64,
    ) -> Self {
        let board = (routers > 1).then(|| Arc::new(Mutex::new(Board::new(routers, engines, gossip))));
        let placement = |router: usize| {
            let table: Box<dyn LoadTable> = match &board {
                Some(board) => Box::new(Member::new(Arc::clone(board), router)),
                None => Box::new(Alone),
            };
            let mut placement =
                Placement::new(config.clone(), table, seed.wrapping_add(keys::mix(router as u64)));
            for row in 0..engines {
                placement.set_backend(
                    id(row),
                    BackendSpec { url: format!("engine-{row}"), ..BackendSpec::default() },
                );
                placement.set_ready(id(row), true);
            }
            placement
        };
        let routers = (0..routers).map(placement).collect();
        Self { routers, board, turn: 0, restarted: Vec::new() }
    }

    fn settle(&self, now: Nanos) {
        if let Some(board) = &self.board {
            board.lock().settle(now);
        }
    }
}

fn id(row: usize) -> BackendId {
    BackendId::new(row).expect("invariant: the number of engines was checked against MAX_BACKENDS")
}

impl Chooser for Facade {
    fn pick(&mut self, now: Nanos, _fleet: &Fleet, prompt: &Prompt, stream: bool) -> Option<Placed> {
        self.settle(now);
        let router = self.turn % self.routers.len();
        self.turn += 1;
        let decision = self.routers[router].pick(now, &keys::shape(prompt, stream), &[]).ok()?;
        Some(Placed { engine: decision.ticket.backend().index(), router, ticket: Some(decision.ticket) })
    }

    fn first_byte(&mut self, now: Nanos, placed: &mut Placed) {
        self.settle(now);
        if let Some(ticket) = &mut placed.ticket {
            self.routers[placed.router].on_first_byte(now, ticket);
        }
    }

    fn finished(&mut self, now: Nanos, placed: Placed, end: End) {
        self.settle(now);
        let outcome = match end {
            End::Answered => Outcome::Completed,
            End::Refused => Outcome::UpstreamFailed,
        };
        if let Some(ticket) = placed.ticket {
            self.routers[placed.router].on_finished(now, ticket, outcome);
        }
    }

    fn scrape(&mut self, now: Nanos, fleet: &Fleet) {
        self.settle(now);
        for router in &mut self.routers {
            for row in self.restarted.iter() {
                router.clear_cache(id(*row));
            }
            for (row, engine) in fleet.engines().iter().enumerate() {
                let stats = engine.stats();
                router.report_begins(id(row));
                let report = Report {
                    running: Signal::known(stats.running, now),
                    waiting: Signal::known(stats.waiting, now),
                    kv_tokens: Signal::known(u64::from(engine.config().max_model_tokens()), now),
                    ..Report::default()
                };
                router.report(now, id(row), report);
            }
        }
        self.restarted.clear();
    }

    fn restarted(&mut self, engine: usize) {
        self.restarted.push(engine);
    }
}
