//! One task an engine: asks it each interval whether it serves and what it holds, and tells the sink.
//!
//! Rules. Ready = not backed off, not asleep, and it serves or its model is configured. No connection is the one proof that an
//! engine is gone: it is backed off and not ready at once, and when it answers again its cache counts as lost. A
//! question that is not answered in time changes nothing, for a busy engine does so too. After a failed connection,
//! the data plane's too, the next question comes when the back-off ends, at the latest at the interval.

use std::sync::Arc;
use std::time::Duration;

use router_policy::{BackendId, Models, Nanos, Report, Signal, Why};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Target;
use super::probe::{Life, Mark, Prober, models};
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
    /// The engine was restarted: what it cached is gone.
    fn cache_lost(&self, id: BackendId);
}

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
    /// Called with each socket before it connects.
    pub mark: Option<Mark>,
}

impl WatchConfig {
    /// As configured, with 2 s for an answer.
    #[must_use]
    pub fn new(config: &Config, mark: Option<Mark>) -> Self {
        Self {
            interval: config.policy.scrape_interval,
            timeout: Duration::from_secs(2),
            backoff_min: config.limits.backoff_min,
            backoff_max: config.limits.backoff_max,
            mark,
        }
    }
}

/// Watches all targets, the first round of each at once. Dropping the set ends the watch and closes its connections.
#[must_use]
pub fn watch_all(targets: &[Arc<Target>], sink: &Arc<dyn ReportSink>, config: &WatchConfig) -> JoinSet<()> {
    let mut set = JoinSet::new();
    for target in targets {
        set.spawn(watch(Arc::clone(target), Arc::clone(sink), config.clone()));
    }
    set
}

/// Watches one target for ever. Dropping the future ends the watch and closes its connection.
pub async fn watch(target: Arc<Target>, sink: Arc<dyn ReportSink>, config: WatchConfig) {
    if target.has_configured_model {
        sink.ready(target.id, true);
    }
    let apart = Prober::of_metrics(&target, config.timeout, config.mark.clone());
    let scraper = Scraper::new(Arc::clone(&target), apart);
    let prober = Prober::new(target, config.timeout, config.mark.clone());
    let mut watcher =
        Watcher { prober, scraper, sink, config, state: State::New, gone: false, was_ready: false };
    loop {
        let next = Instant::now() + watcher.config.interval;
        watcher.round().await;
        watcher.pause(next).await;
    }
}

/// What people are told of, once per change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Serves,
    DoesNotServe,
    NotThere,
}

struct Watcher {
    prober: Prober,
    scraper: Scraper,
    sink: Arc<dyn ReportSink>,
    config: WatchConfig,
    state: State,
    /// Connections were refused since it last answered.
    gone: bool,
    /// At the last round.
    was_ready: bool,
}

impl Watcher {
    async fn round(&mut self) {
        let (id, target) = (self.prober.target().id, Arc::clone(self.prober.target()));
        let asked = clock::now();
        let scrape = match models(&mut self.prober).await {
            Life::Serves(listed) => {
                self.answers(&target, asked);
                let models = listed.map_or(Models::Unknown, |ids| Models::Listed(ids, clock::now()));
                self.sink.models(id, models);
                self.enter(State::Serves, "the engine serves", "");
                true
            }
            Life::DoesNotServe(why) => {
                self.answers(&target, asked);
                self.enter(State::DoesNotServe, "the engine does not serve", &why);
                true
            }
            Life::Busy => false,
            Life::Breaks(e) => {
                // A forwarder in front of an engine that is gone does so: no sign of life, and no refusal.
                self.enter(State::DoesNotServe, "the engine does not serve", &e.to_string());
                self.gone = true;
                false
            }
            Life::NotThere(e) => {
                target.connect_failed(clock::now(), self.config.backoff_min, self.config.backoff_max);
                let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
                self.enter(State::NotThere, "the engine is not there", &why);
                self.gone = true;
                self.scraper.forget(&why);
                self.sink.report(
                    id,
                    Report { seats: Signal::Unknown(Why::Unreachable), ..unknown(Why::Unreachable) },
                );
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

    fn tell_ready(&mut self, target: &Target) {
        let serves = self.state == State::Serves || target.has_configured_model;
        self.was_ready = serves && !self.scraper.is_asleep() && target.may_try(clock::now());
        self.sink.ready(target.id, self.was_ready);
    }

    async fn scrape(&mut self, id: BackendId) {
        self.sink.report_begins(id);
        let scraped = self.scraper.scrape(&mut self.prober).await;
        if scraped.lost_cache {
            self.sink.cache_lost(id);
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

    fn enter(&mut self, state: State, message: &'static str, why: &str) {
        let backend = self.prober.target().url.as_str();
        if self.state != state {
            match state {
                State::New | State::Serves => tracing::info!(backend, "{message}"),
                State::DoesNotServe | State::NotThere => tracing::warn!(backend, why, "{message}"),
            }
        }
        self.state = state;
    }

    /// Waits until `next`, or until the back-off of a failed connection ends if that is earlier.
    async fn pause(&self, mut next: Instant) {
        let target = self.prober.target();
        loop {
            // No order is needed: a failure is remembered until it is waited for.
            tokio::select! {
                () = tokio::time::sleep_until(next) => return,
                () = target.failure() => {
                    let now = clock::now();
                    if !target.may_try(now) {
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
