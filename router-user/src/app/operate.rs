//! What operators ask for through the admin plane.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response};
use router_policy::BackendId;

use crate::backends::{Registry, Relay, RelayError};
use crate::config::BackendConfig;
use crate::observe::admin::{Operate, OperateError, Operation};

/// Over the engines of a router.
pub(super) struct Operations {
    registry: Arc<Registry>,
    relay: Arc<Relay>,
}

impl Operations {
    pub(super) fn new(registry: Arc<Registry>, relay: Relay) -> Self {
        Self { registry, relay: Arc::new(relay) }
    }
}

fn unsupported<T: Send + 'static>() -> Operation<T> {
    let why = "this router's backends are those it was started with".to_owned();
    Box::pin(std::future::ready(Err(OperateError::Unsupported(why))))
}

impl Operate for Operations {
    fn add(&self, _backend: BackendConfig) -> Operation<Vec<BackendId>> {
        unsupported()
    }

    fn remove(&self, _id: BackendId, _deadline: Option<Duration>) -> Operation<()> {
        unsupported()
    }

    fn drain(&self, _id: BackendId, _deadline: Option<Duration>) -> Operation<()> {
        unsupported()
    }

    fn undrain(&self, _id: BackendId) -> Operation<()> {
        unsupported()
    }

    fn reload(&self) -> Operation<String> {
        unsupported()
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
