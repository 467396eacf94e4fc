//! What operators ask for through the admin plane.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response};
use router_policy::BackendId;

use super::RunningRouter;
use super::backends;
use super::fleet::{Fleet, Refused};
use super::reload::{Reload, ReloadError};
use crate::backends::{Registry, Relay, RelayError};
use crate::config::BackendConfig;
use crate::observe::admin::{Operate, OperateError, Operation};

/// Over the engines of a router.
pub(super) struct Operations {
    fleet: Arc<Fleet>,
    reload: Arc<Reload>,
    registry: Arc<Registry>,
    relay: Arc<Relay>,
}

impl Operations {
    pub(super) fn new(router: &RunningRouter, relay: Relay) -> Self {
        Self {
            fleet: Arc::clone(&router.fleet),
            reload: Arc::clone(&router.reload),
            registry: Arc::clone(&router.registry),
            relay: Arc::new(relay),
        }
    }

    /// Does what may wait for files and locks where that is allowed.
    fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Fleet, &Reload) -> Result<T, OperateError> + Send + 'static,
    ) -> Operation<T> {
        let (fleet, reload) = (Arc::clone(&self.fleet), Arc::clone(&self.reload));
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || work(&fleet, &reload)).await;
            done.unwrap_or_else(|_panic| Err(OperateError::Conflict("it failed within".to_owned())))
        })
    }
}

impl From<Refused> for OperateError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NoBackend => Self::NoSuchBackend,
            other => Self::Conflict(other.to_string()),
        }
    }
}

impl Operate for Operations {
    fn add(&self, backend: BackendConfig) -> Operation<Vec<BackendId>> {
        let registry = Arc::clone(&self.registry);
        self.apart(move |fleet, _| {
            let members = backends::members(&[backend]).map_err(|e| OperateError::Invalid(e.to_string()))?;
            let addrs: Vec<_> = members.iter().map(|member| member.addr).collect();
            let change = fleet.add(members);
            if let Some((_, why)) = change.refused.into_iter().next() {
                return Err(OperateError::Conflict(why));
            }
            Ok(registry.all().iter().filter(|t| addrs.contains(&t.addr)).map(|t| t.id).collect())
        })
    }

    fn remove(&self, id: BackendId, deadline: Option<Duration>) -> Operation<()> {
        self.apart(move |fleet, _| Ok(fleet.remove(id, deadline)?))
    }

    fn drain(&self, id: BackendId, deadline: Option<Duration>) -> Operation<()> {
        self.apart(move |fleet, _| Ok(fleet.drain(id, deadline)?))
    }

    fn undrain(&self, id: BackendId) -> Operation<()> {
        self.apart(move |fleet, _| Ok(fleet.undrain(id)?))
    }

    fn reload(&self) -> Operation<String> {
        self.apart(|_, reload| match reload.reload() {
            Ok(reloaded) => Ok(reloaded.to_string()),
            Err(error @ ReloadError::Fixed) => Err(OperateError::Unsupported(error.to_string())),
            Err(error) => Err(OperateError::Invalid(crate::error::chain(&error))),
        })
    }

    fn ask(&self, id: BackendId, request: Request<Bytes>) -> Operation<Response<Bytes>> {
        let (target, relay) = (self.registry.get(id), Arc::clone(&self.relay));
        Box::pin(async move {
            let target = target.ok_or(OperateError::NoSuchBackend)?;
            relay.ask(target, request).await.map_err(|error| match error {
                RelayError::Busy => OperateError::Busy,
                RelayError::Timeout => OperateError::EngineTimeout,
                RelayError::Path => OperateError::Invalid(error.to_string()),
                error => OperateError::Engine(error.to_string()),
            })
        })
    }
}
