//! One backend of the fleet: joining, being configured anew, leaving.

use std::sync::Arc;
use std::time::Instant;

use router_common::BackendAddr;
use router_policy::BackendId;
use tokio::task::AbortHandle;

use super::super::state::{LOAD_MAX, warm_up};
use super::Fleet;
use super::drain::{Draining, Standing, Then};
use crate::account::RowError;
use crate::backends::{HealthAt, Member, Target, resolve, watch};
use crate::config::BackendConfig;
use crate::observe::status::pool;

/// One backend.
pub(super) struct Entry {
    /// What is configured of it now.
    pub(super) member: Member,
    pub(super) id: BackendId,
    pub(super) target: Arc<Target>,
    pub(super) standing: Standing,
    /// `None` once it is gone.
    pub(super) watch: Option<Watching>,
}

/// A watch, which ends with it.
pub(super) struct Watching(AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Entry {
    pub(super) fn address(&self) -> BackendAddr {
        BackendAddr::from_socket_addr(self.member.addr)
    }

    /// Nothing is left of it but its row.
    pub(super) const fn is_gone(&self) -> bool {
        matches!(self.standing, Standing::Gone)
    }

    /// It drains to leave, or is gone.
    pub(super) const fn is_leaving(&self) -> bool {
        use Standing::{Gone, Leaving};
        matches!(self.standing, Gone | Leaving(_) | Standing::Draining(Draining { then: Then::Leave, .. }))
    }

    pub(super) const fn draining(&self) -> Option<Draining> {
        match self.standing {
            Standing::Draining(draining) => Some(draining),
            Standing::Serving | Standing::Leaving(_) | Standing::Gone => None,
        }
    }
}

/// Whether only the policy's part changed: then the engine is asked the same questions at the same place.
fn is_same_target(now: &BackendConfig, before: &BackendConfig) -> bool {
    let as_before = BackendConfig { spec: before.spec.clone(), ..now.clone() };
    as_before == *before && now.spec.model == before.spec.model
}

impl Fleet {
    /// Takes a member in. It gets requests once its watch finds that it serves, or at once if its model is configured.
    pub(super) fn join(&self, entries: &[Entry], mut member: Member) -> Result<Entry, RowError> {
        // A name moved to another address while the address before still drains under it.
        let is_taken = |url: &str| entries.iter().any(|e| !e.is_gone() && e.target.url == url);
        if is_taken(&member.config.spec.url) {
            member.config.spec.url = format!("http://{}{}", member.addr, member.config.base_path);
        }
        let spec = member.config.spec.clone();
        let id = self.parts.account.register(BackendAddr::from_socket_addr(member.addr), &spec.url)?;
        self.parts.ledger.set_backend(id, spec);
        let target = Arc::new(self.target(id, &member));
        if let Some(warm) = self.warm.get() {
            warm_up(warm, &self.parts.ledger, &target, Instant::now() + LOAD_MAX);
        }
        // Before the first client, not when the watch comes to it.
        self.parts.ledger.ready(id, target.has_configured_model);
        Ok(self.entry(member, id, target, Standing::Serving))
    }

    /// A member that is there already; true if it was configured anew. One that was to leave stays.
    pub(super) fn stay(&self, entry: &mut Entry, mut member: Member) -> bool {
        if entry.is_leaving() {
            self.serve_on(entry);
        }
        let (now, before) = (&mut member.config, &entry.member.config);
        if (&now.host, now.port, &now.base_path) == (&before.host, before.port, &before.base_path) {
            // Whether a name has one address or more changes the others' URLs, not this one's.
            now.spec.url.clone_from(&before.spec.url);
        }
        if *now == *before {
            return false;
        }
        self.parts.ledger.set_backend(entry.id, member.config.spec.clone());
        if is_same_target(&member.config, &entry.member.config) {
            self.parts.metrics.add(entry.id, pool(member.config.spec.model.as_deref()), &entry.target.url);
            entry.member = member;
            return true;
        }
        let target = Arc::new(self.target(entry.id, &member).in_place_of(&entry.target));
        let standing = std::mem::replace(&mut entry.standing, Standing::Gone);
        *entry = self.entry(member, entry.id, target, standing);
        true
    }

    fn entry(&self, member: Member, id: BackendId, target: Arc<Target>, standing: Standing) -> Entry {
        self.parts.metrics.add(id, pool(member.config.spec.model.as_deref()), &target.url);
        let watched = watch::watch(Arc::clone(&target), Arc::clone(&self.sink), self.parts.watch.clone());
        let watch = Watching(self.parts.runtime.spawn(watched).abort_handle());
        Entry { member, id, target, standing, watch: Some(watch) }
    }

    fn target(&self, id: BackendId, member: &Member) -> Target {
        let probe = &self.parts.probe;
        resolve::target(id, member)
            .expect("invariant: a parsed backend has host and key that stand in headers")
            .with_health(HealthAt::new(&member.config.health, probe))
            .with_rules(probe.rules)
    }
}
