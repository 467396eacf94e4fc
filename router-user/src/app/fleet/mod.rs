//! The set of engines while the router serves: who joins, who changes, who drains and leaves.
//!
//! Sources (the configuration, files, DNS, operators) each say their whole list ([`Fleet::set`]); the fleet is their
//! union by address, and does the least that leads there. A backend whose address stays keeps its row, counts, cache
//! model and connections, whatever is configured anew. One that no source names any more drains ([`drain`]) and leaves
//! nothing behind. Invariant: the registry, the ledger, the rows, the watches and the series of metrics hold the same
//! backends; all of them change under one lock, which no request takes.

mod drain;
mod entry;
mod found;
mod merge;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use router_policy::BackendId;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::StartError;
use crate::account::{Account, Ledger};
use crate::backends::{Member, Registry, ReportSink, WatchConfig};
use crate::config::ProbeConfig;
use crate::gossip::Gossip;
use crate::parse::Names;
use crate::proxy::{Reading, RequestMetrics, Shared};
use crate::state::Warm;

pub use drain::Refused;
pub(super) use drain::{Draining, Then};
use entry::Entry;
pub(super) use found::found;

/// The source that is the configuration itself.
pub const CONFIGURATION: &str = "configuration";
/// What operators add by the admin plane; it does not outlive the process.
pub const OPERATOR: &str = "operator";

/// What the fleet changes.
pub(super) struct Parts {
    pub(super) account: Account,
    pub(super) ledger: Arc<Ledger>,
    pub(super) registry: Arc<Registry>,
    pub(super) metrics: Arc<RequestMetrics>,
    /// Where watches run.
    pub(super) runtime: Handle,
    pub(super) watch: WatchConfig,
    /// How engines are probed and judged.
    pub(super) probe: ProbeConfig,
}

/// Who else is told after each change; set once the router is whole.
#[derive(Default)]
struct Followers {
    proxy: Option<Arc<Shared>>,
    gossip: Option<Arc<Gossip>>,
}

/// The set of engines. Dropping it ends their watches.
pub struct Fleet {
    parts: Parts,
    sink: Arc<dyn ReportSink>,
    state: Mutex<State>,
    /// What an earlier router knew of those who are not here yet.
    warm: OnceLock<Arc<Warm>>,
    /// Something drains.
    drains: Notify,
}

#[derive(Default)]
struct State {
    /// What each source said last, in the order they first spoke.
    sources: Vec<(String, Vec<Member>)>,
    entries: Vec<Entry>,
    followers: Followers,
    /// How long what is in flight at a backend that leaves may take to end.
    drain_deadline: Duration,
}

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// URLs of backends that joined.
    pub added: Vec<String>,
    /// Those configured anew.
    pub changed: Vec<String>,
    /// Those that drain now, to leave.
    pub leaving: Vec<String>,
    /// Those that could not join, and why.
    pub refused: Vec<(String, String)>,
}

impl Change {
    /// What happened after it, too.
    pub(super) fn add(&mut self, later: Self) {
        self.added.extend(later.added);
        self.changed.extend(later.changed);
        self.leaving.extend(later.leaving);
        self.refused.extend(later.refused);
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").finish_non_exhaustive()
    }
}

impl Fleet {
    /// A fleet of nobody.
    pub(super) fn new(parts: Parts, drain_deadline: Duration) -> Self {
        let sink: Arc<dyn ReportSink> = Arc::<Ledger>::clone(&parts.ledger);
        let state = Mutex::new(State { drain_deadline, ..State::default() });
        Self { parts, sink, state, warm: OnceLock::new(), drains: Notify::new() }
    }

    /// The counts, the ledger and the targets.
    pub(super) fn parts(&self) -> (Account, Arc<Ledger>, Arc<Registry>) {
        let Parts { account, ledger, registry, .. } = &self.parts;
        (account.clone(), Arc::clone(ledger), Arc::clone(registry))
    }

    /// Who joins from now on finds here what an earlier router knew. Only the first call counts.
    pub(super) fn warm_who_joins(&self, warm: Arc<Warm>) {
        let _second = self.warm.set(warm);
    }

    /// How long what is in flight at a backend that leaves may take to end from now on.
    pub(super) fn set_drain_deadline(&self, deadline: Duration) {
        self.state.lock().drain_deadline = deadline;
    }

    /// Who is told of changes from now on; told of the present state at once.
    pub(super) fn follow(&self, proxy: Arc<Shared>, gossip: Option<Arc<Gossip>>) {
        let mut state = self.state.lock();
        state.followers = Followers { proxy: Some(proxy), gossip };
        self.tell(&state);
    }

    /// All that a source has: members it does not name any more drain, unless another source names them. What cannot
    /// join is refused, and the rest joins. Waits for the lock of the pin directory, so not to be called by a worker.
    pub fn set(&self, source: &str, members: Vec<Member>) -> Change {
        let mut state = self.state.lock();
        match state.sources.iter_mut().find(|(name, _)| name == source) {
            Some((_, before)) => *before = members,
            None => state.sources.push((source.to_owned(), members)),
        }
        state.sources.retain(|(_, members)| !members.is_empty());
        let change = self.change(&mut state);
        self.tell(&state);
        drop(state);
        log(source, &change);
        change
    }

    /// Before the router serves: everybody joins or nobody is asked to.
    ///
    /// # Errors
    /// The first backend that got no row; the fleet is of no use then.
    pub(super) fn found(&self, sources: Vec<(String, Vec<Member>)>) -> Result<(), StartError> {
        let mut state = self.state.lock();
        state.sources = sources;
        state.sources.retain(|(_, members)| !members.is_empty());
        for member in merge::wanted(&state.sources) {
            let url = member.config.spec.url.clone();
            let entry =
                self.join(&state.entries, member).map_err(|source| StartError::Row { url, source })?;
            state.entries.push(entry);
        }
        self.tell(&state);
        Ok(())
    }

    fn change(&self, state: &mut State) -> Change {
        let wanted = merge::wanted(&state.sources);
        let mut change = Change::default();
        let stays: Vec<_> = wanted.iter().map(|member| member.addr).collect();
        for member in wanted {
            match state.entries.iter_mut().find(|e| e.member.addr == member.addr && !e.is_gone()) {
                Some(entry) => {
                    if self.stay(entry, member) {
                        change.changed.push(entry.target.url.clone());
                    }
                }
                None => {
                    let url = member.config.spec.url.clone();
                    match self.join(&state.entries, member) {
                        Ok(entry) => {
                            change.added.push(entry.target.url.clone());
                            // The row of one that just left may be its own again.
                            state.entries.retain(|gone| gone.id != entry.id);
                            state.entries.push(entry);
                        }
                        Err(error) => change.refused.push((url, error.to_string())),
                    }
                }
            }
        }
        // Last: where one takes another's place there is no moment without any.
        let are_settled = self.are_settled(&state.entries);
        for entry in state.entries.iter_mut().filter(|entry| !stays.contains(&entry.member.addr)) {
            if !entry.is_leaving() {
                change.leaving.push(entry.target.url.clone());
                if are_settled || change.added.is_empty() {
                    self.begin(entry, Then::Leave, Some(state.drain_deadline));
                } else {
                    self.begin_soon(entry);
                }
            }
        }
        change
    }

    /// Everybody who follows is told who is there.
    fn tell(&self, state: &State) {
        let here = || state.entries.iter().filter(|e| !e.is_gone());
        self.parts.registry.set(here().map(|e| Arc::clone(&e.target)).collect());
        let Followers { proxy, gossip } = &state.followers;
        if let Some(proxy) = proxy {
            let names = Arc::new(Names::new(here().map(|e| &e.member.config.spec)));
            proxy.reading.rcu(|before| Reading { names: Arc::clone(&names), ..Reading::clone(before) });
        }
        if let Some(gossip) = gossip {
            gossip.set_rows(here().map(|e| (e.id, e.address())).collect());
        }
    }

    /// Who drains, and since when; in the order they joined.
    pub(super) fn draining(&self) -> Vec<(BackendId, Draining)> {
        let state = self.state.lock();
        state.entries.iter().filter_map(|e| Some((e.id, e.draining()?))).collect()
    }

    /// The addresses that each source names, in the order they first spoke.
    pub(super) fn sources(&self) -> Vec<(String, Vec<SocketAddr>)> {
        let state = self.state.lock();
        let addrs = |members: &[Member]| members.iter().map(|m| m.addr).collect();
        state.sources.iter().map(|(name, members)| (name.clone(), addrs(members))).collect()
    }

    /// Operators' members join.
    pub fn add(&self, members: Vec<Member>) -> Change {
        let mut all = self.operators();
        all.retain(|old| members.iter().all(|new| new.addr != old.addr));
        all.extend(members);
        self.set(OPERATOR, all)
    }

    /// A backend that operators added drains and leaves; `None` = by the configured deadline.
    ///
    /// # Errors
    /// [`Refused`]: there is none, or another source names it.
    pub fn remove(&self, id: BackendId, deadline: Option<Duration>) -> Result<(), Refused> {
        let addr = self.parts.registry.get(id).ok_or(Refused::NoBackend)?.addr;
        let sources = self.sources();
        match sources.iter().find(|(_, addrs)| addrs.contains(&addr)) {
            Some((name, _)) if name == OPERATOR => {
                let mut all = self.operators();
                all.retain(|member| member.addr != addr);
                self.set(OPERATOR, all);
                if let Some(deadline) = deadline {
                    self.set_deadline(id, deadline);
                }
                Ok(())
            }
            Some((name, _)) => Err(Refused::NamedBy(name.clone())),
            None => Err(Refused::Leaving),
        }
    }

    fn operators(&self) -> Vec<Member> {
        let state = self.state.lock();
        state.sources.iter().find(|(name, _)| name == OPERATOR).map_or_else(Vec::new, |(_, all)| all.clone())
    }
}

fn log(source: &str, change: &Change) {
    let Change { added, changed, leaving, refused } = change;
    if !change.is_empty() {
        tracing::info!(source, ?added, ?changed, ?leaving, "the fleet changed");
    }
    for (backend, why) in refused {
        tracing::error!(source, backend, why, "a backend cannot join the fleet");
    }
}
