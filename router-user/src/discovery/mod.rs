//! Who belongs to the fleet: lists of backends become [`Member`]s at addresses, again each time they change.
//!
//! A source is a list: the backends of the configuration, or one backends file. What is named in it is resolved
//! ([`dns`]), by TTL; a file is watched ([`file_watch`]). Whenever what a source says became another, its whole present
//! list is published; what that means for engines and requests is the receiver's. A failure publishes nothing: the last
//! good list stays. One task does all of it ([`Discovery::run`]); it waits for nobody, and nobody for it but the start,
//! for a bounded time.
//!
//! Another kind of source (Kubernetes' endpoints, say) is one file more here: a task as [`file::follow`] that sends the
//! list each time it changes, or why it cannot; a label for [`board`]; and its part of the [`Plan`]. Names in what it
//! sends are resolved as those of all others. It must send whole lists, and nothing where it knows nothing.

mod board;
mod dns;
mod file;
pub mod file_watch;
mod members;
mod names;
mod source;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

pub use board::SourceStatus;
pub use source::SourceId;

use crate::backends::Member;
use crate::config::{BackendConfig, BackendsFile, Config, DnsConfig};
use board::Board;
use dns::{Answer, Asked, Failure, Lookup, Query, Stub};
use file::News;
use names::{Names, Pace};
use source::{Origin, Source};

/// Names asked for at one time.
const LOOKUPS_MAX: usize = 32;

/// The whole question for one name, all servers and tries.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(30);

/// What is to be discovered.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The list of the configuration itself.
    pub backends: Vec<BackendConfig>,
    /// Files with further lists.
    pub files: Vec<BackendsFile>,
    /// How names are asked for.
    pub dns: DnsConfig,
}

impl From<&Config> for Plan {
    fn from(config: &Config) -> Self {
        Self {
            backends: config.backends.clone(),
            files: config.backends_files.clone(),
            dns: config.dns.clone(),
        }
    }
}

/// Takes the present list of a source each time it changed, in the order of its entries, no address twice. Called from
/// the task of [`Discovery`], one call at a time. A source that is no longer planned says the empty list.
pub type Publish = Arc<dyn Fn(SourceId, Vec<Member>) + Send + Sync>;

/// Begins with a plan, and returns once each source was published: with all it names, or, when `wait` is over, with what
/// is known by then. What cannot be resolved is no reason to wait longer, nor an error.
pub async fn start(plan: Plan, publish: Publish, wait: Duration) -> (Discovery, Handle) {
    let lookup = Arc::new(Stub::new(plan.dns.servers.clone()));
    start_with(plan, publish, lookup, wait).await
}

async fn start_with(
    plan: Plan,
    publish: Publish,
    lookup: Arc<dyn Lookup>,
    wait: Duration,
) -> (Discovery, Handle) {
    let (plans, planned) = watch::channel(plan.clone());
    let (tell, news) = mpsc::channel(1);
    let board = Arc::new(Board::default());
    let mut discovery = Discovery {
        publish,
        board: Arc::clone(&board),
        dns: plan.dns.clone(),
        lookup,
        pace: Pace::from(&plan.dns),
        sources: Vec::new(),
        names: Names::default(),
        lookups: JoinSet::new(),
        files: JoinSet::new(),
        tell,
        news,
        planned,
        is_starting: true,
    };
    discovery.apply(plan);
    discovery.publish_changes();
    let until = Instant::now() + wait;
    while !discovery.sources.iter().all(Source::is_published) {
        if timeout_at(until, discovery.step()).await.is_err() {
            tracing::warn!("not all names of backends are resolved; serving with what is known");
            break;
        }
    }
    discovery.is_starting = false;
    discovery.publish_changes();
    (discovery, Handle { plans, board })
}

/// What others may do with a running discovery.
#[derive(Clone, Debug)]
pub struct Handle {
    plans: watch::Sender<Plan>,
    board: Arc<Board>,
}

impl Handle {
    /// Goes by another plan from now on. Names and files that stay are not asked for anew.
    pub fn replace(&self, plan: Plan) {
        // Without a receiver nothing is discovered any more.
        let _ended = self.plans.send(plan);
    }

    /// State of the names and files.
    #[must_use]
    pub fn status(&self) -> Vec<SourceStatus> {
        self.board.status()
    }

    /// Adds the metrics of the sources.
    pub fn register(&self, series: &mut Registry) {
        Arc::clone(&self.board).register(series);
    }
}

/// The task that discovers. Dropping it ends all it began; nothing is published any more.
pub struct Discovery {
    publish: Publish,
    board: Arc<Board>,
    dns: DnsConfig,
    lookup: Arc<dyn Lookup>,
    pace: Pace,
    sources: Vec<Source>,
    names: Names,
    lookups: JoinSet<(Query, Result<Answer, Failure>)>,
    files: JoinSet<()>,
    tell: mpsc::Sender<News>,
    news: mpsc::Receiver<News>,
    planned: watch::Receiver<Plan>,
    /// Whether a source whose names are not all settled waits for them.
    is_starting: bool,
}

impl Discovery {
    /// Discovers for ever.
    pub async fn run(mut self) {
        loop {
            self.step().await;
        }
    }

    /// Waits for one thing to happen and does what follows from it. What is dropped while it waits loses nothing.
    async fn step(&mut self) {
        let now = Instant::now();
        for query in self.names.take_due(now, LOOKUPS_MAX.saturating_sub(self.lookups.len())) {
            let asked: Asked = self.lookup.ask(&query);
            self.lookups.spawn(async move {
                let answer = timeout(LOOKUP_TIME_MAX, asked).await.unwrap_or(Err(Failure::Timeout));
                (query, answer)
            });
        }
        // As long as all places are taken, the next thing is an answer.
        let next = self.names.next_due().filter(|_| self.lookups.len() < LOOKUPS_MAX);
        tokio::select! {
            Some(done) = self.lookups.join_next(), if !self.lookups.is_empty() => {
                // A question that panicked is asked no more; the rest goes on.
                if let Ok((query, answer)) = done {
                    self.answered(&query, answer);
                }
            }
            Some(news) = self.news.recv() => self.heard(news),
            Ok(()) = self.planned.changed() => {
                let plan = self.planned.borrow_and_update().clone();
                self.apply(plan);
            }
            () = sleep_until(next.unwrap_or(now)), if next.is_some() => return,
        }
        self.publish_changes();
    }

    fn apply(&mut self, plan: Plan) {
        if plan.dns != self.dns {
            self.lookup = Arc::new(Stub::new(plan.dns.servers.clone()));
            self.pace = Pace::from(&plan.dns);
            self.dns = plan.dns;
        }
        let mut old = std::mem::take(&mut self.sources);
        let mut keep = |origin: Origin| match old.iter().position(|source| source.origin == origin) {
            Some(at) => old.remove(at),
            None => Source::new(origin),
        };
        let mut sources = vec![keep(Origin::Configuration)];
        sources[0].entries = Some(plan.backends);
        sources.extend(plan.files.into_iter().map(|file| keep(Origin::File(file))));
        for source in sources.iter_mut().filter(|source| source.task.is_none()) {
            if let Origin::File(file) = &source.origin {
                source.task =
                    Some(self.files.spawn(file::follow(source.id, file.clone(), self.tell.clone())));
            }
        }
        self.sources = sources;
        while self.files.try_join_next().is_some() {}
        for gone in old {
            gone.end(&self.publish);
            // The same file may be there anew, read in another way.
            if !self.sources.iter().any(|source| source.label() == gone.label()) {
                self.board.forget(&gone.label());
            }
        }
        self.keep_names();
    }

    fn answered(&mut self, query: &Query, answer: Result<Answer, Failure>) {
        // Nobody may want to know any more.
        let Some(name) = self.names.get_mut(query) else { return };
        let (now, source) = (Instant::now(), query.to_string());
        match answer {
            Ok(answer) => {
                let change = name.answered(answer, self.pace, now);
                let size = name.size();
                self.board.good(&source, size, change.is_another, change.cut);
                if change.is_another || change.is_recovered {
                    tracing::info!(source, size, cut = change.cut, "a name of backends is resolved");
                }
                if change.is_another {
                    self.keep_names();
                }
            }
            Err(failure) => {
                self.board.bad(&source, failure.to_string());
                if name.failed(failure.clone(), self.pace, now) {
                    let kept = name.size();
                    tracing::warn!(source, error = %failure, kept, "a name of backends cannot be resolved");
                }
            }
        }
    }

    fn heard(&mut self, news: News) {
        let Some(source) = self.sources.iter_mut().find(|source| source.id == news.source) else { return };
        let label = source.label();
        match news.list {
            Ok(entries) => {
                let is_another = source.entries.as_ref() != Some(&entries);
                self.board.good(&label, entries.len(), is_another, 0);
                tracing::info!(source = label, size = entries.len(), "a file of backends is read");
                source.entries = Some(entries);
                self.keep_names();
            }
            Err(error) => {
                let kept = source.entries.as_ref().map_or(0, Vec::len);
                tracing::warn!(source = label, error, kept, "a file of backends cannot be used");
                self.board.bad(&label, error);
                // It has nothing to wait for.
                source.entries.get_or_insert_default();
            }
        }
    }

    fn keep_names(&mut self) {
        let entries = self.sources.iter().flat_map(|source| source.entries.iter().flatten());
        for gone in self.names.keep(entries, Instant::now()) {
            self.board.forget(&gone.to_string());
        }
    }

    fn publish_changes(&mut self) {
        for source in &mut self.sources {
            source.publish(&self.names, self.is_starting, &self.publish);
        }
    }
}

#[cfg(test)]
mod tests;
