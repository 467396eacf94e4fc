//! One task an engine: asks it each interval whether it serves and what it holds, and tells the sink.
//!
//! Rules. Ready = not backed off, not asleep, and it was seen to serve, or its model is configured and nothing is known
//! yet. No connection is the one proof that an engine is gone: it is backed off and not ready at once; when it answers
//! so many times again its cache counts as lost, and it starts slowly. What does not serve yet, or what another service
//! answers for several times in a row, gets nothing; an engine that served and now fails probes is only trusted less
//! ([`super::health`]), since a wrong probe must not take a whole fleet down, and a question that is not answered in
//! time counts only while no byte of a request comes. After a failed connection, the data plane's too, the next question
//! comes when the back-off ends, at the latest at the interval; after a broken answer, at once.

use std::sync::Arc;
use std::time::Duration;

use router_policy::{BackendId, Models, Nanos, Report, Signal, Trust, Why};
use tokio::time::Instant;

use super::Target;
use super::health::Probe;
use super::inference;
pub use super::inference::Inference;
use super::life::{self, Life, Wrong};
use super::probe::{AskError, Mark, Prober};
use super::scrape::{Scraper, unknown};
use crate::clock;
use crate::config::Config;

/// Who is told.
pub trait ReportSink: Send + Sync {
    /// A scrape is about to be sent.
    fn report_begins(&self, id: BackendId);
    /// What it said. Returns what of it is believed.
    fn report(&self, id: BackendId, report: Report) -> Report;
    /// What models the engine serves.
    fn models(&self, id: BackendId, models: Models);
    /// Whether requests may go there. Told at every round, changed or not.
    fn ready(&self, id: BackendId, ready: bool);
    /// How far it is trusted. Must not wait.
    fn trust(&self, id: BackendId, trust: Trust);
    /// The engine was restarted: what it cached is gone.
    fn cache_lost(&self, id: BackendId);
}

/// Least time from question to question, however many answers break.
const LOOK_MIN: Duration = Duration::from_millis(20);

/// How engines are watched.
#[derive(Clone)]
pub struct WatchConfig {
    /// From question to question.
    pub interval: Duration,
    /// For each answer, connecting included.
    pub timeout: Duration,
    /// First back-off; doubles.
    pub backoff_min: Duration,
    /// Longest back-off.
    pub backoff_max: Duration,
    /// Inferences of our own, if there are any.
    pub inference: Option<Inference>,
    /// Called with each socket before it connects.
    pub mark: Option<Mark>,
}

impl WatchConfig {
    /// As configured.
    #[must_use]
    pub fn new(config: &Config, mark: Option<Mark>) -> Self {
        Self {
            interval: config.policy.scrape_interval,
            timeout: config.probe.timeout,
            backoff_min: config.limits.backoff_min,
            backoff_max: config.limits.backoff_max,
            inference: (config.probe.inference)
                .map(|interval| Inference { interval, timeout: config.probe.inference_timeout }),
            mark,
        }
    }
}

/// Watches one target for ever. Dropping the future ends the watch and closes its connections.
pub async fn watch(target: Arc<Target>, sink: Arc<dyn ReportSink>, config: WatchConfig) {
    if target.has_configured_model {
        sink.ready(target.id, true);
    }
    let infer = infer(Arc::clone(&target), Arc::clone(&sink), config.clone());
    let apart = Prober::of_metrics(&target, config.timeout, config.mark.clone());
    let scraper = Scraper::new(Arc::clone(&target), apart);
    let prober = Prober::new(target, config.timeout, config.mark.clone());
    let mut watcher = Watcher {
        prober,
        scraper,
        sink,
        config,
        state: State::New,
        served: false,
        gone: false,
        away: None,
        foreign: 0,
        asked: Nanos(0),
        was_ready: false,
    };
    let rounds = async {
        loop {
            let begun = Instant::now();
            watcher.round().await;
            watcher.pause(begun).await;
        }
    };
    tokio::select! {
        () = rounds => {}
        () = infer => {}
    }
}

/// Asks for inferences for ever, or waits for ever.
async fn infer(target: Arc<Target>, sink: Arc<dyn ReportSink>, config: WatchConfig) {
    match config.inference {
        Some(inference) => inference::ask(target, sink, inference, config.mark).await,
        None => std::future::pending().await,
    }
}

/// What people are told of, once per change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    New,
    Serves,
    DoesNotServe(String),
    NotThere,
}

struct Watcher {
    prober: Prober,
    scraper: Scraper,
    sink: Arc<dyn ReportSink>,
    config: WatchConfig,
    state: State,
    /// It was seen to serve, and nobody else to answer in its place since.
    served: bool,
    /// Connections were refused since it last answered.
    gone: bool,
    /// It was away, the data plane says so too, and answered so many times since.
    away: Option<u32>,
    /// Rounds in a row that look like another service.
    foreign: u32,
    /// When the last round began.
    asked: Nanos,
    /// At the last round.
    was_ready: bool,
}

impl Watcher {
    async fn round(&mut self) {
        let (id, target) = (self.prober.target().id, Arc::clone(self.prober.target()));
        let asked = clock::now();
        let before = std::mem::replace(&mut self.asked, asked);
        let scrape = match life::ask(&mut self.prober, &target).await {
            Life::Serves(listed) => {
                self.answers(&target, asked);
                self.serves(&target);
                self.take_models(&target, listed);
                true
            }
            Life::DoesNotServe(wrong) => {
                self.answers(&target, asked);
                self.does_not_serve(&target, wrong);
                true
            }
            Life::Busy => {
                let alive = target.vitals.has_bytes_since(before);
                self.probed(&target, Probe::TimedOut { alive });
                false
            }
            Life::Unasked => false,
            Life::Breaks(e) => {
                // A forwarder in front of an engine that is gone does so: no sign of life, and no refusal.
                self.gone = true;
                self.does_not_serve(&target, Wrong { why: e.to_string(), is_foreign: true });
                false
            }
            Life::NotThere(e) => {
                self.is_not_there(&target, &e);
                false
            }
        };
        let scrape = scrape && self.scraper.is_due();
        // One that comes back is asked first whether it sleeps.
        if scrape && !self.was_ready {
            self.scrape(id).await;
            self.tell_ready(&target);
        } else {
            self.tell_ready(&target);
            if scrape {
                self.scrape(id).await;
                if self.was_ready && self.scraper.is_asleep() {
                    self.tell_ready(&target);
                }
            }
        }
    }

    fn serves(&mut self, target: &Target) {
        (self.served, self.foreign) = (true, 0);
        self.enter(State::Serves);
        self.probed(target, Probe::Passed);
        let Some(passed) = &mut self.away else { return };
        *passed += 1;
        if *passed >= target.vitals.rules().healthy_threshold {
            self.away = None;
            tracing::info!(backend = target.url, "the engine is back");
            self.starts_anew(target);
        }
    }

    fn does_not_serve(&mut self, target: &Target, wrong: Wrong) {
        let Wrong { why, is_foreign } = wrong;
        self.enter(State::DoesNotServe(why));
        self.foreign = if is_foreign { self.foreign + 1 } else { 0 };
        if self.foreign >= target.vitals.rules().unhealthy_threshold {
            self.served = false;
        }
        if let Some(passed) = &mut self.away {
            *passed = 0;
        }
        self.probed(target, Probe::Failed);
    }

    fn is_not_there(&mut self, target: &Target, error: &AskError) {
        target.connect_failed(clock::now(), self.config.backoff_min, self.config.backoff_max);
        if error.is_refused() {
            target.refused(clock::now());
        }
        let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        if self.state != State::NotThere {
            tracing::warn!(backend = target.url, why, "the engine is not there");
        }
        self.state = State::NotThere;
        (self.served, self.gone, self.away) = (false, true, Some(0));
        self.scraper.forget(&why);
        let seats = Signal::Unknown(Why::Unreachable);
        self.sink.report(target.id, Report { seats, ..unknown(Why::Unreachable) });
    }

    fn take_models(&self, target: &Target, listed: Option<Vec<String>>) {
        target.set_first_model(listed.as_ref().and_then(|ids| ids.first()));
        let models = listed.map_or(Models::Unknown, |ids| Models::Listed(ids, clock::now()));
        self.sink.models(target.id, models);
    }

    fn tell_ready(&mut self, target: &Target) {
        let is_hoped_for = target.has_configured_model && self.state == State::New;
        let serves = (self.served && self.away.is_none()) || is_hoped_for;
        let is_asleep = self.scraper.is_asleep() || target.is_put_to_sleep();
        self.was_ready = serves && !is_asleep && target.may_try(clock::now());
        self.sink.ready(target.id, self.was_ready);
    }

    async fn scrape(&mut self, id: BackendId) {
        self.sink.report_begins(id);
        let scraped = self.scraper.scrape(&mut self.prober).await;
        if scraped.lost_cache {
            self.sink.cache_lost(id);
        }
        if scraped.is_restart {
            let target = Arc::clone(self.prober.target());
            tracing::info!(backend = target.url, "the engine was restarted; its cache counts as lost");
            self.starts_anew(&target);
        }
        let kept = self.sink.report(id, scraped.report.clone());
        self.scraper.say(&scraped, &kept);
    }

    /// It was there when it was asked: no back-off, and no cache if it was away.
    fn answers(&mut self, target: &Target, asked: Nanos) {
        target.connect_succeeded(asked);
        if std::mem::take(&mut self.gone) {
            self.sink.cache_lost(target.id);
        }
    }

    /// Another process, as far as can be told: what was held against the one before is void. Counts are not touched:
    /// they belong to requests, each of which ends by itself.
    fn starts_anew(&self, target: &Target) {
        target.vitals.restarted(clock::now(), &|trust| self.sink.trust(target.id, trust));
    }

    fn probed(&self, target: &Target, probe: Probe) {
        target.vitals.probed(clock::now(), probe, &|trust| self.sink.trust(target.id, trust));
    }

    fn enter(&mut self, state: State) {
        if self.state != state {
            let backend = self.prober.target().url.as_str();
            match &state {
                State::DoesNotServe(why) => tracing::warn!(backend, why, "the engine does not serve"),
                State::New | State::Serves | State::NotThere => tracing::info!(backend, "the engine serves"),
            }
        }
        self.state = state;
    }

    /// Waits for the interval from the round's beginning, or until the back-off of a failed connection ends if that is
    /// earlier, or an answer breaks.
    async fn pause(&mut self, begun: Instant) {
        let target = Arc::clone(self.prober.target());
        let mut next = begun + self.config.interval;
        if self.away.is_some_and(|passed| passed > 0) {
            next = next.min(begun + self.config.backoff_min);
        }
        loop {
            // No order is needed: a failure is remembered until it is waited for.
            tokio::select! {
                () = tokio::time::sleep_until(next) => return,
                () = target.vitals.wanted() => next = next.min(begun + LOOK_MIN),
                () = target.failure() => {
                    let now = clock::now();
                    if !target.may_try(now) {
                        self.away = Some(0);
                        self.sink.ready(target.id, false);
                    }
                    let left = Duration::from_nanos(target.backoff_until().0.saturating_sub(now.0));
                    next = next.min(Instant::now() + left);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "watch_report_tests.rs"]
mod report_tests;
