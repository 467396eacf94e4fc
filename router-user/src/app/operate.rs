//! What operators ask for through the admin plane, carried out on the fleet.
//!
//! Changes wait for files, names and locks, so they run where that is allowed; one at a time, as each begins with what
//! the one before left.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response};
use parking_lot::Mutex;
use router_policy::BackendId;

use super::fleet::{Change, Fleet, OPERATOR, Refused};
use super::reload::{self, Reload, ReloadError};
use super::{RunningRouter, backends};
use crate::account::Ledger;
use crate::backends::sleep::{SleepOrder, carry_out};
use crate::backends::{Registry, Relay, RelayError};
use crate::config::BackendConfig;
use crate::observe::admin::{Operate, OperateError, Operation, Reloaded};

/// Over the engines of a router.
pub(super) struct Operations {
    changes: Arc<Changes>,
    registry: Arc<Registry>,
    relay: Arc<Relay>,
    ledger: Arc<Ledger>,
}

struct Changes {
    fleet: Arc<Fleet>,
    registry: Arc<Registry>,
    reload: Arc<Reload>,
    one_at_a_time: Mutex<()>,
}

impl Operations {
    pub(super) fn new(router: &RunningRouter, relay: Relay) -> Self {
        let registry = Arc::clone(&router.registry);
        let changes = Changes {
            fleet: Arc::clone(&router.fleet),
            registry: Arc::clone(&registry),
            reload: Arc::clone(&router.reload),
            one_at_a_time: Mutex::new(()),
        };
        let ledger = Arc::clone(&router.ledger);
        Self { changes: Arc::new(changes), registry, relay: Arc::new(relay), ledger }
    }

    fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Changes) -> Result<T, OperateError> + Send + 'static,
    ) -> Operation<T> {
        let changes = Arc::clone(&self.changes);
        let done = tokio::task::spawn_blocking(move || {
            let _one = changes.one_at_a_time.lock();
            change(&changes)
        });
        let panicked = |_| Err(OperateError::Invalid("the change failed; the log says more".to_owned()));
        Box::pin(async move { done.await.unwrap_or_else(panicked) })
    }
}

impl Operate for Operations {
    fn add(&self, backend: BackendConfig) -> Operation<Vec<BackendId>> {
        self.change(move |changes| changes.add(&backend))
    }

    fn remove(&self, id: BackendId, deadline: Option<Duration>) -> Operation<()> {
        self.change(move |changes| Ok(changes.fleet.remove(id, deadline)?))
    }

    fn drain(&self, id: BackendId, deadline: Option<Duration>) -> Operation<()> {
        self.change(move |changes| Ok(changes.fleet.drain(id, deadline)?))
    }

    fn undrain(&self, id: BackendId) -> Operation<()> {
        self.change(move |changes| Ok(changes.fleet.undrain(id)?))
    }

    fn reload(&self) -> Operation<Reloaded> {
        self.change(|changes| {
            let reload::Reloaded { change, applied, needs_restart } = changes.reload.reload()?;
            let Change { added, changed, leaving, refused } = change;
            Ok(Reloaded { added, changed, leaving, refused, applied, needs_restart })
        })
    }

    fn ask(&self, id: BackendId, request: Request<Bytes>) -> Operation<Response<Bytes>> {
        let (target, relay) = (self.registry.get(id), Arc::clone(&self.relay));
        let (ledger, order) =
            (Arc::clone(&self.ledger), SleepOrder::of(request.method(), request.uri().path()));
        Box::pin(async move {
            let target = target.ok_or(OperateError::NoSuchBackend)?;
            let call = relay.ask(Arc::clone(&target), request);
            Ok(match order {
                Some(order) => carry_out(order, &target, &*ledger, call).await?,
                None => call.await?,
            })
        })
    }
}

impl Changes {
    /// The rows that a backend's addresses have now.
    fn add(&self, backend: &BackendConfig) -> Result<Vec<BackendId>, OperateError> {
        let members = backends::members(backend).map_err(OperateError::Invalid)?;
        let addrs: Vec<_> = members.iter().map(|member| member.addr).collect();
        let sources = self.fleet.sources();
        let others = sources.iter().filter(|(name, _)| name != OPERATOR);
        if let Some((name, _)) = others.into_iter().find(|(_, all)| addrs.iter().any(|a| all.contains(a))) {
            return Err(OperateError::Conflict(format!("{name} names it already: change it there")));
        }
        let Change { refused, .. } = self.fleet.add(members);
        if let Some((url, why)) = refused.first() {
            return Err(OperateError::Conflict(format!("{url} cannot join: {why}")));
        }
        let targets = self.registry.all();
        Ok(targets.iter().filter(|t| addrs.contains(&t.addr)).map(|t| t.id).collect())
    }
}

impl From<Refused> for OperateError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NoBackend => Self::NoSuchBackend,
            why => Self::Conflict(why.to_string()),
        }
    }
}

impl From<ReloadError> for OperateError {
    fn from(error: ReloadError) -> Self {
        match error {
            ReloadError::Fixed => Self::Unsupported(error.to_string()),
            error => Self::Invalid(error.to_string()),
        }
    }
}

impl From<RelayError> for OperateError {
    fn from(error: RelayError) -> Self {
        match error {
            RelayError::Busy => Self::Busy,
            RelayError::Timeout => Self::EngineTimeout,
            RelayError::Path => Self::Invalid(error.to_string()),
            error => Self::Engine(error.to_string()),
        }
    }
}
