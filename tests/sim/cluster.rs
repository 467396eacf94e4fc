//! The façade in front of simulated engines, in virtual time: closed-loop sessions whose turns grow.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use engine_sim::model::{Event, EventKind, PromptBuilder};
use engine_sim::{Engine, EngineConfig, Profile, Request, RequestId};
use router_policy::prefix::{ChainBuilder, HashKey};
use router_policy::{
    Alone, BackendId, BackendSpec, Nanos, Outcome, Placement, PolicyConfig, Report, RequestShape, Signal,
    Ticket, Usage,
};

/// Interval of the simulated scrapes.
const SCRAPE: u64 = 1_000_000_000;

/// One conversation: each turn sends all text so far and waits for its answer.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// When its first turn is sent.
    pub(crate) start: Nanos,
    /// Text of the first turn's messages.
    pub(crate) opening: Vec<String>,
    /// Text that each later turn adds.
    pub(crate) turn_text: String,
    /// Turns in all.
    pub(crate) turns: u32,
    /// Tokens of each answer.
    pub(crate) answer_tokens: u32,
    /// Pause before the next turn.
    pub(crate) gap: Nanos,
    /// Where the caller wants it, whatever the policy says.
    pub(crate) forced: Option<usize>,
}

/// One placement as it happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) session: usize,
    pub(crate) backend: usize,
    /// Requests at each engine just before, by the engines' own account.
    pub(crate) live_there: u32,
    /// The fewest requests at any engine just before.
    pub(crate) live_least: u32,
}

impl Placed {
    /// Whether it went into a queue although another engine of `seats` had one free.
    pub(crate) fn is_queued_beside_a_free_seat(&self, seats: u32) -> bool {
        self.live_there >= seats && self.live_least < seats
    }
}

/// What a run showed.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) placed: Vec<Placed>,
    pub(crate) makespan: Nanos,
    /// Each turn's session and end.
    pub(crate) ended: Vec<(usize, Nanos)>,
    pub(crate) ttft_seconds: Vec<f64>,
}

struct Live {
    session: usize,
    turn: u32,
    ticket: Ticket,
}

/// Equal engines behind one placement.
pub(crate) struct Cluster {
    pub(crate) placement: Placement,
    engines: Vec<Engine>,
    key: HashKey,
    agenda: BinaryHeap<Reverse<(Nanos, usize, u32)>>,
    texts: Vec<Vec<String>>,
    live: HashMap<u64, Live>,
    next_id: u64,
    next_scrape: u64,
    now: Nanos,
}

fn id(row: usize) -> BackendId {
    BackendId::new(row).unwrap()
}

impl Cluster {
    /// `n` engines of `seats`, which the policy is told if `told`.
    pub(crate) fn new(n: usize, seats: u32, told: bool, config: PolicyConfig, seed: u64) -> Self {
        let mut placement = Placement::new(config, Box::new(Alone), seed);
        let engine = EngineConfig { max_num_seqs: seats, ..EngineConfig::of(Profile::H100_70B_TP4) };
        let engines = (0..n).map(|_| Engine::new(engine).unwrap()).collect();
        for row in 0..n {
            let spec = BackendSpec { max_num_seqs: told.then_some(seats), ..BackendSpec::default() };
            placement.set_backend(id(row), spec);
            placement.set_ready(id(row), true);
        }
        Self {
            placement,
            engines,
            key: HashKey::new([3; 192]),
            agenda: BinaryHeap::new(),
            texts: Vec::new(),
            live: HashMap::new(),
            next_id: 0,
            next_scrape: SCRAPE,
            now: Nanos(0),
        }
    }

    /// Runs sessions to their end.
    pub(crate) fn run(&mut self, sessions: &[Session]) -> Run {
        let mut run = Run::default();
        self.texts = sessions.iter().map(|s| s.opening.clone()).collect();
        for (index, session) in sessions.iter().enumerate() {
            self.agenda.push(Reverse((session.start, index, 0)));
        }
        let mut events = Vec::new();
        while let Some(now) = self.next_time() {
            self.now = now;
            for row in 0..self.engines.len() {
                self.engines[row].advance(engine_sim::Nanos(now.0), &mut events);
                for event in events.drain(..) {
                    self.on_event(event, sessions, &mut run);
                }
            }
            if now.0 >= self.next_scrape {
                self.scrape();
            }
            while self.agenda.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
                let Reverse((_, session, turn)) = self.agenda.pop().unwrap();
                self.send(session, turn, sessions, &mut run);
            }
        }
        for row in 0..self.engines.len() {
            let own = self.placement.snapshot(self.now, id(row)).unwrap().own;
            assert_eq!(own, router_policy::InFlight::default(), "all counts end at 0");
        }
        run
    }

    fn next_time(&self) -> Option<Nanos> {
        let arrival = self.agenda.peek().map(|Reverse((at, ..))| at.0);
        let engine = self.engines.iter().filter_map(|e| e.next_event().map(|t| t.0)).min();
        let next = arrival.into_iter().chain(engine).min()?;
        Some(Nanos(next.min(self.next_scrape).max(self.now.0)))
    }

    fn scrape(&mut self) {
        for row in 0..self.engines.len() {
            let stats = self.engines[row].stats();
            self.placement.report_begins(self.now, id(row));
            let report = Report {
                running: Signal::known(stats.running, self.now),
                waiting: Signal::known(stats.waiting, self.now),
                ..Report::default()
            };
            self.placement.report(self.now, id(row), report);
        }
        self.next_scrape += SCRAPE;
    }

    fn send(&mut self, session: usize, turn: u32, sessions: &[Session], run: &mut Run) {
        let mut chain = ChainBuilder::new(&self.key, b"model");
        let mut prompt = PromptBuilder::default();
        for text in &self.texts[session] {
            chain.update(text.as_bytes());
            prompt.push(text.as_bytes());
        }
        let shape = RequestShape {
            model: None,
            chain: chain.finish(),
            shaped: true,
            stream: true,
            ..RequestShape::default()
        };
        let live: Vec<u32> = self.engines.iter().map(|e| e.stats().live()).collect();
        let decision = match sessions[session].forced {
            Some(row) => self.placement.pick_forced(self.now, &shape, id(row)),
            None => self.placement.pick(self.now, &shape, &[]),
        }
        .unwrap();
        let backend = decision.ticket.backend().index();
        let live_least = live.iter().copied().min().unwrap();
        run.placed.push(Placed { session, backend, live_there: live[backend], live_least });
        let request = Request {
            id: RequestId(self.next_id),
            prompt: prompt.build(),
            max_tokens: sessions[session].answer_tokens,
        };
        self.engines[backend].submit(engine_sim::Nanos(self.now.0), request).unwrap();
        self.live.insert(self.next_id, Live { session, turn, ticket: decision.ticket });
        self.next_id += 1;
    }

    fn on_event(&mut self, event: Event, sessions: &[Session], run: &mut Run) {
        match event.kind {
            EventKind::FirstToken { .. } => {
                let live = self.live.get_mut(&event.id.0).unwrap();
                run.ttft_seconds.push(Nanos(event.at.0).seconds_since(live.ticket.sent()));
                self.placement.on_first_byte(self.now, &mut live.ticket);
            }
            EventKind::Token => {}
            EventKind::Finished => {
                let live = self.live.remove(&event.id.0).unwrap();
                self.placement.on_finished(self.now, live.ticket, Outcome::Completed, &Usage::default());
                let session = &sessions[live.session];
                run.makespan = run.makespan.max(self.now);
                run.ended.push((live.session, self.now));
                if live.turn + 1 < session.turns {
                    self.texts[live.session].push("a".repeat(session.answer_tokens as usize * 4));
                    self.texts[live.session].push(session.turn_text.clone());
                    let at = Nanos(self.now.0 + session.gap.0);
                    self.agenda.push(Reverse((at, live.session, live.turn + 1)));
                }
            }
        }
    }
}
