//! Virtual time: sessions come, requests are placed, engines step, and what happens to each request is recorded.
//!
//! Invariants: time never goes back; every request placed ends, and its count is given back; the same setup,
//! workload and chooser give the same records.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use engine_sim::model::{Event, EventKind};
use engine_sim::{EngineConfig, Request, RequestId};
use router_policy::Nanos;

use super::chooser::{Asked, Chooser, End, Placed};
use super::fleet::Fleet;
use super::keys;
use super::record::{Record, Run, Samples};
use super::trace::Trace;
use super::workload::Arrival;

/// The in-flight counts are sampled so often.
const SAMPLE_NS: u64 = 1_000_000_000;

/// What a run is made of, beside trace and workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) engine: EngineConfig,
    pub(super) engines: usize,
    pub(super) scrape_interval: Duration,
    /// Share of the requests that ask for no stream.
    pub(super) non_streaming_share: f64,
    /// One engine loses its cache so often, in turn.
    pub(super) restart_every: Option<Duration>,
    pub(super) seed: u64,
}

/// When sessions start.
#[derive(Clone, Copy, Debug)]
pub(super) enum Flow {
    /// At their times.
    Open,
    /// So many at once: one starts when another ends, and nobody pauses.
    Closed(usize),
}

/// A call that is to be sent: time, arrival, number in its session.
type Due = Reverse<(Nanos, usize, usize)>;

struct Live {
    arrival: usize,
    call: usize,
    stream: bool,
    placed: Placed,
}

/// One run under way.
pub(super) struct Driver<'a> {
    setup: &'a Setup,
    trace: &'a Trace,
    arrivals: &'a [Arrival],
    flow: Flow,
    chooser: &'a mut dyn Chooser,
    fleet: Fleet,
    agenda: BinaryHeap<Due>,
    /// The next session to start in a closed flow.
    next_arrival: usize,
    /// By request.
    live: Vec<Option<Live>>,
    run: Run,
}

impl<'a> Driver<'a> {
    /// A run that has not begun.
    ///
    /// # Errors
    /// Engine settings under which nothing could run.
    pub(super) fn new(
        setup: &'a Setup,
        trace: &'a Trace,
        arrivals: &'a [Arrival],
        flow: Flow,
        chooser: &'a mut dyn Chooser,
    ) -> anyhow::Result<Self> {
        let fleet = Fleet::new(setup.engines, setup.engine)?;
        let run = Run { samples: Samples::new(SAMPLE_NS, setup.engines), ..Run::default() };
        let agenda = BinaryHeap::new();
        let mut driver = Self {
            setup,
            trace,
            arrivals,
            flow,
            chooser,
            fleet,
            agenda,
            next_arrival: 0,
            live: Vec::new(),
            run,
        };
        match flow {
            Flow::Open => (0..arrivals.len()).for_each(|index| driver.start(index, arrivals[index].at)),
            Flow::Closed(slots) => (0..slots).for_each(|_| driver.start_next(Nanos(0))),
        }
        Ok(driver)
    }

    /// Runs to the end; `progress` is told the requests that ended since it was last told.
    pub(super) fn run(mut self, progress: &dyn Fn(u64)) -> Run {
        let mut events = Vec::new();
        let mut next_scrape = Nanos(0);
        let mut next_restart = self.setup.restart_every.map(|every| Nanos(0) + every);
        let (mut restarts, mut told) = (0, 0);
        while let Some(now) = self.next_time() {
            let now = now.min(next_scrape).min(next_restart.unwrap_or(now));
            self.run.samples.until(now, self.fleet.in_flight());
            if let (Some(at), Some(every)) = (next_restart, self.setup.restart_every)
                && at <= now
            {
                let row = restarts % self.setup.engines;
                self.fleet.clear_cache(row);
                self.chooser.restarted(row);
                restarts += 1;
                next_restart = Some(at + every);
            }
            while let Some(row) = self.fleet.advance(engine_sim::Nanos(now.0), &mut events) {
                events.drain(..).for_each(|event| self.on_event(row, event));
            }
            if next_scrape <= now {
                self.chooser.scrape(now, &self.fleet);
                next_scrape = now + self.setup.scrape_interval;
                let ended = self.run.records.len() as u64;
                progress(ended - std::mem::replace(&mut told, ended));
            }
            while let Some(&Reverse((at, arrival, call))) = self.agenda.peek()
                && at <= now
            {
                self.agenda.pop();
                self.send(now, arrival, call);
            }
        }
        progress(self.run.records.len() as u64 - told);
        self.run.finish();
        self.run
    }

    fn next_time(&mut self) -> Option<Nanos> {
        let sent = self.agenda.peek().map(|Reverse((at, ..))| *at);
        let engine = self.fleet.next().map(|at| Nanos(at.0));
        sent.into_iter().chain(engine).min()
    }

    fn start(&mut self, arrival: usize, at: Nanos) {
        let first = &self.trace.sessions[self.arrivals[arrival].session as usize].calls[0];
        let at = if matches!(self.flow, Flow::Open) { after(at, first.gap_seconds) } else { at };
        self.agenda.push(Reverse((at, arrival, 0)));
    }

    fn start_next(&mut self, now: Nanos) {
        if self.next_arrival < self.arrivals.len() {
            self.next_arrival += 1;
            self.start(self.next_arrival - 1, now);
        }
    }

    fn send(&mut self, now: Nanos, arrival: usize, call: usize) {
        let Arrival { session, copy, .. } = self.arrivals[arrival];
        let recorded = &self.trace.sessions[session as usize];
        let what = &recorded.calls[call];
        let prompt = keys::prompt(self.trace, what, copy);
        let id = self.live.len() as u64;
        let stream = self.is_streamed(id);
        let asked = Asked { prompt: &prompt, session: keys::session(recorded, session, copy), stream };
        let Some(placed) = self.chooser.pick(now, &self.fleet, &asked) else {
            self.run.refused += 1;
            return self.end_session(now);
        };
        let engine = placed.engine;
        let (prompt_tokens, max_tokens) = (prompt.tokens(), what.output_tokens);
        let request = Request { id: RequestId(id), prompt, max_tokens };
        if self.fleet.submit(engine_sim::Nanos(now.0), engine, request).is_err() {
            self.run.refused += 1;
            self.chooser.finished(now, placed, End::Refused);
            return self.end_session(now);
        }
        self.live.push(Some(Live { arrival, call, stream, placed }));
        self.run.under_way.push(Record { sent: now, prompt_tokens, engine, ..Record::default() });
    }

    fn on_event(&mut self, row: usize, event: Event) {
        let (now, index) = (Nanos(event.at.0), event.id.0 as usize);
        match event.kind {
            EventKind::Token => {}
            EventKind::FirstToken { cached_tokens } => {
                let record = &mut self.run.under_way[index];
                (record.first_token, record.cached_tokens) = (now, cached_tokens);
                if let Some(live) = self.live[index].as_mut().filter(|live| live.stream) {
                    self.chooser.first_byte(now, &mut live.placed);
                }
            }
            EventKind::Finished => {
                let Some(mut live) = self.live[index].take() else { return };
                self.fleet.ended(row);
                if !live.stream {
                    self.chooser.first_byte(now, &mut live.placed);
                }
                let session = self.arrivals[live.arrival].session as usize;
                let end = End::Answered {
                    prompt_tokens: self.run.under_way[index].prompt_tokens,
                    completion_tokens: self.trace.sessions[session].calls[live.call].output_tokens,
                };
                self.chooser.finished(now, live.placed, end);
                self.run.ended(index, now);
                self.go_on(now, live.arrival, live.call + 1);
            }
        }
    }

    /// The session's next call, or the next session.
    fn go_on(&mut self, now: Nanos, arrival: usize, call: usize) {
        match self.trace.sessions[self.arrivals[arrival].session as usize].calls.get(call) {
            None => self.end_session(now),
            Some(next) => {
                let pause = if matches!(self.flow, Flow::Open) { next.gap_seconds } else { 0.0 };
                self.agenda.push(Reverse((after(now, pause), arrival, call)));
            }
        }
    }

    fn end_session(&mut self, now: Nanos) {
        if matches!(self.flow, Flow::Closed(_)) {
            self.start_next(now);
        }
    }

    fn is_streamed(&self, id: u64) -> bool {
        let share = keys::mix(self.setup.seed ^ keys::mix(id)) as f64 / u64::MAX as f64;
        share >= self.setup.non_streaming_share
    }
}

fn after(at: Nanos, seconds: f64) -> Nanos {
    Nanos(at.0.saturating_add(Nanos::from_secs_f64(seconds).0))
}
