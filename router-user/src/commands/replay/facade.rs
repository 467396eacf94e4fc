//! One or several routers, each with the very façade that the proxy calls, told only what a proxy is told: first
//! byte, end, and a scrape at the interval.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use router_policy::{
    Alone, BackendId, BackendSpec, LoadTable, Nanos, Outcome, Placement, PolicyConfig, Report, Signal, Usage,
};

use super::chooser::{Asked, Chooser, End, Placed};
use super::fleet::Fleet;
use super::gossip::{Board, Member, Placements};
use super::keys;

/// Routers that take requests in turn, and what they tell each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// At least 1.
    pub(super) routers: usize,
    /// How late they hear of each other.
    pub(super) delay: Duration,
    /// Whether they tell what they placed where, beside their counts.
    pub(super) tells_placements: bool,
}

/// Routers before the same engines.
pub(super) struct Facade {
    routers: Vec<Placement>,
    /// Their counts, where there are several.
    board: Option<Arc<Mutex<Board>>>,
    /// Their placements, where they tell them.
    placements: Option<Placements>,
    turn: usize,
    restarted: Vec<usize>,
}

impl Facade {
    /// The routers of `group` before `engines` engines.
    pub(super) fn new(config: &PolicyConfig, engines: usize, group: Group, seed: u64) -> Self {
        let Group { routers, delay, tells_placements } = group;
        let board = (routers > 1).then(|| Arc::new(Mutex::new(Board::new(routers, engines, delay))));
        let placements = (routers > 1 && tells_placements).then(|| Placements::new(delay));
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
        Self { routers, board, placements, turn: 0, restarted: Vec::new() }
    }

    /// What the routers have told each other by now is heard.
    fn settle(&mut self, now: Nanos) {
        if let Some(board) = &self.board {
            board.lock().settle(now);
        }
        while let Some(told) = self.placements.as_mut().and_then(|placements| placements.heard(now)) {
            let others = (0..).zip(&mut self.routers).filter(|(router, _)| *router != told.router);
            others.for_each(|(_, router)| router.observe_foreign(told.engine, &told.chain.blocks));
        }
    }
}

fn id(row: usize) -> BackendId {
    BackendId::new(row).expect("invariant: the number of engines was checked against MAX_BACKENDS")
}

impl Chooser for Facade {
    fn pick(&mut self, now: Nanos, _fleet: &Fleet, asked: &Asked<'_>) -> Option<Placed> {
        self.settle(now);
        let router = self.turn % self.routers.len();
        self.turn += 1;
        let placement = &mut self.routers[router];
        let shape = keys::shape(asked, placement.config().hash_blocks);
        let ticket = placement.pick(now, &shape, &[]).ok()?.ticket;
        if let Some(placements) = &mut self.placements {
            placements.tell(now, router, ticket.backend(), shape.chain);
        }
        Some(Placed { engine: ticket.backend().index(), router, ticket: Some(ticket) })
    }

    fn first_byte(&mut self, now: Nanos, placed: &mut Placed) {
        self.settle(now);
        if let Some(ticket) = &mut placed.ticket {
            self.routers[placed.router].on_first_byte(now, ticket);
        }
    }

    fn finished(&mut self, now: Nanos, placed: Placed, end: End) {
        self.settle(now);
        let (outcome, usage) = match end {
            End::Answered { prompt_tokens, completion_tokens } => {
                let prompt_tokens = Some(u64::from(prompt_tokens));
                let completion_tokens = Some(u64::from(completion_tokens));
                (Outcome::Completed, Usage { prompt_tokens, completion_tokens, answer_bytes: 0 })
            }
            End::Refused => (Outcome::UpstreamFailed, Usage::default()),
        };
        if let Some(ticket) = placed.ticket {
            self.routers[placed.router].on_finished(now, ticket, outcome, &usage);
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
                router.report_begins(now, id(row));
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
