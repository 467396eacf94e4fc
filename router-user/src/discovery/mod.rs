//! Who belongs to the fleet: lists of backends become [`Member`]s at addresses, again each time they change.
//!
//! A source is a list: the backends of the configuration, or one backends file. What is named in it is resolved
//! ([`dns`]), by TTL; a file is watched ([`file_watch`]). Whenever what a source says became another, its whole present
//! list is published; what that means for engines and requests is the receiver's. A failure publishes nothing: the last
//! good list stays. One task does all of it ([`Discovery::run`]); it waits for nobody, and nobody for it but the start,
//! for a bounded time.
//!
//! Another kind of source (Kubernetes' endpoints, say) is one file more here: a task as [`file::follow`] that sends the
//! list each time it changes, or why it cannot; a name for [`board`]; and its part of the [`Plan`]. Names in what it
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
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

pub use board::SourceStatus;

use crate::backends::Member;
use crate::config::{BackendConfig, BackendsFile, Config, DnsConfig};
use board::Board;
use dns::{Answer, Asked, Failure, Lookup, Query, Stub};
use file::News;
use names::{Names, Pace};
use source::{Origin, Source};

/// Names asked for at one time.
const LOOKUPS_MAX: usize = 32;

/// A list that names what was never asked for is held back until that is settled, but no longer: else a name that takes
/// the place of another would first take it away.
const HOLD_MAX: Duration = Duration::from_secs(2);

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

/// Takes the whole present list of a source each time it changed, in the order of its entries, no address twice. Called
/// where waiting is allowed, one call at a time. A source that is no longer planned says the empty list.
pub type Publish = Arc<dyn Fn(&str, Vec<Member>) + Send + Sync>;

/// What was discovered at the start.
pub struct First {
    /// What there is by then of each source that has something to say, by its name.
    pub lists: Vec<(String, Vec<Member>)>,
    /// What discovers on.
    pub discovery: Discovery,
    /// What others may do with it.
    pub handle: Handle,
}

/// Begins with a plan, and returns once all that it names is known, or, when `wait` is over, with what is known by then.
/// What cannot be resolved is no reason to wait longer, nor an error. To be called in the runtime in which
/// [`Discovery::run`] is going to run.
pub async fn start(plan: Plan, wait: Duration) -> First {
    let lookup = Arc::new(Stub::new(plan.dns.servers.clone()));
    start_with(plan, lookup, wait).await
}

async fn start_with(plan: Plan, lookup: Arc<dyn Lookup>, wait: Duration) -> First {
    let (plans, planned) = mpsc::channel(1);
    let (tell, news) = mpsc::channel(1);
    let board = Arc::new(Board::default());
    let mut discovery = Discovery {
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
        gone: Vec::new(),
        waiting: Vec::new(),
    };
    discovery.apply(plan);
    let until = Instant::now() + wait;
    while !discovery.is_settled() {
        if timeout_at(until, discovery.step()).await.is_err() {
            tracing::warn!("not all names of backends are resolved yet; serving with what is known");
            break;
        }
    }
    let lists = discovery.changes(Duration::ZERO);
    First { lists, discovery, handle: Handle { plans, board } }
}

/// A plan, and who waits until it is in force.
type Order = (Plan, std::sync::mpsc::SyncSender<()>);

/// What others may do with a running discovery.
#[derive(Clone, Debug)]
pub struct Handle {
    plans: mpsc::Sender<Order>,
    board: Arc<Board>,
}

impl Handle {
    /// Goes by another plan from now on; names and files that stay are not asked for anew. Returns once all that it
    /// names was published, or when `wait` is over; false if nothing is discovered any more. Blocks the thread.
    pub fn replace(&self, plan: Plan, wait: Duration) -> bool {
        let (done, is_done) = std::sync::mpsc::sync_channel(1);
        let is_taken = self.plans.try_send((plan, done)).is_ok();
        if is_taken {
            // What is not settled in time is published when it is.
            let _late = is_done.recv_timeout(wait);
        }
        is_taken
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
    planned: mpsc::Receiver<Order>,
    /// Sources that are no longer planned, and have not yet said so.
    gone: Vec<String>,
    /// Who waits until everything is settled.
    waiting: Vec<std::sync::mpsc::SyncSender<()>>,
}

impl Discovery {
    /// Discovers for ever.
    pub async fn run(mut self, publish: Publish) {
        loop {
            for (source, members) in self.changes(HOLD_MAX) {
                let publish = Arc::clone(&publish);
                // It fails only if the receiver panicked, or the runtime ends.
                let _failed = spawn_blocking(move || publish(&source, members)).await;
            }
            if self.is_settled() {
                // One whose time is over does not listen any more.
                for done in self.waiting.drain(..) {
                    let _gone = done.try_send(());
                }
            }
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
        let next_due = self.names.next_due().filter(|_| self.lookups.len() < LOOKUPS_MAX);
        let held = self.sources.iter().filter_map(Source::held_until).filter(|until| *until > now);
        let next = held.chain(next_due).min();
        tokio::select! {
            Some(done) = self.lookups.join_next(), if !self.lookups.is_empty() => {
                // A question that panicked is asked no more; the rest goes on.
                if let Ok((query, answer)) = done {
                    self.answered(&query, answer);
                }
            }
            Some(news) = self.news.recv() => self.heard(news),
            Some((plan, done)) = self.planned.recv() => {
                self.apply(plan);
                self.waiting.push(done);
            }
            () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
        }
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
            if let Some(task) = &gone.task {
                task.abort();
            }
            // The same file may be there anew, read in another way.
            if !self.sources.iter().any(|source| source.name() == gone.name()) {
                self.board.forget(&gone.name());
                self.gone.push(gone.name());
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
        let name = source.name();
        match news.list {
            Ok(entries) => {
                let is_another = source.entries.as_ref() != Some(&entries);
                self.board.good(&name, entries.len(), is_another, 0);
                tracing::info!(source = name, size = entries.len(), "a file of backends is read");
                source.entries = Some(entries);
                self.keep_names();
            }
            Err(error) => {
                let kept = source.entries.as_ref().map_or(0, Vec::len);
                tracing::warn!(source = name, error, kept, "a file of backends cannot be used");
                self.board.bad(&name, error);
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

    /// Whether each source spoke and each name in it was answered, or both failed, once.
    fn is_settled(&self) -> bool {
        self.sources.iter().all(|source| source.is_settled(&self.names))
    }

    /// The sources that have others to say than they said last; one that is not settled is held back for so long.
    fn changes(&mut self, hold: Duration) -> Vec<(String, Vec<Member>)> {
        let now = Instant::now();
        let gone = std::mem::take(&mut self.gone).into_iter().map(|name| (name, Vec::new()));
        let changed =
            self.sources.iter_mut().filter_map(|s| Some((s.name(), s.change(&self.names, now, hold)?)));
        gone.chain(changed).collect()
    }
}

#[cfg(test)]
mod tests;
