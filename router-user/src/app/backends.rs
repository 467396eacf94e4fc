//! From configured backends to rows: names become addresses, addresses rows, rows targets.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use hyper::header::HeaderValue;
use router_common::BackendAddr;
use router_policy::BackendId;

use super::StartError;
use crate::account::{Account, Ledger};
use crate::backends::{Registry, Target};
use crate::config::{BackendConfig, Config};
use crate::proxy::metrics::ProxyMetrics;

/// Takes in every configured backend. A name with several addresses becomes several backends; one address given
/// twice is one backend.
pub(super) fn take_in(
    config: &Config,
    account: &Account,
    ledger: &Ledger,
    registry: &Registry,
    metrics: &ProxyMetrics,
) -> Result<(), StartError> {
    let mut targets: Vec<Arc<Target>> = Vec::new();
    for backend in &config.backends {
        for addr in resolve(backend)? {
            if targets.iter().any(|t| t.addr == addr) {
                tracing::warn!(backend = backend.spec.url, %addr, "this address is already a backend");
                continue;
            }
            let id = account
                .register(BackendAddr::from_socket_addr(addr), &backend.spec.url)
                .map_err(|e| refuse(backend, &e.to_string()))?;
            let pool = backend.spec.model.as_deref().unwrap_or("default");
            metrics.set_backend(id, pool, &backend.spec.url);
            ledger.set_backend(id, backend.spec.clone());
            ledger.ready(id, backend.spec.model.is_some());
            targets.push(Arc::new(target(id, addr, backend)?));
        }
    }
    registry.set(targets);
    Ok(())
}

fn resolve(backend: &BackendConfig) -> Result<Vec<SocketAddr>, StartError> {
    let failed = |source| StartError::Resolve { url: backend.spec.url.clone(), source };
    let host = backend.host.trim_start_matches('[').trim_end_matches(']');
    Ok((host, backend.port).to_socket_addrs().map_err(failed)?.collect())
}

fn target(id: BackendId, addr: SocketAddr, backend: &BackendConfig) -> Result<Target, StartError> {
    let header = |text: String| HeaderValue::try_from(text);
    let host = if backend.host.contains(':') && !backend.host.starts_with('[') {
        format!("[{}]", backend.host)
    } else {
        backend.host.clone()
    };
    let authority = if backend.port == 80 { host } else { format!("{host}:{}", backend.port) };
    let authority = header(authority).map_err(|_| refuse(backend, "its host is no header value"))?;
    let authorization = match &backend.api_key {
        Some(key) => {
            let mut value = header(format!("Bearer {}", key.reveal()))
                .map_err(|_| refuse(backend, "its key is no header value"))?;
            value.set_sensitive(true);
            Some(value)
        }
        None => None,
    };
    let url = backend.spec.url.clone();
    let has_model = backend.spec.model.is_some();
    Ok(Target::new(id, url, addr, authority, backend.base_path.clone(), authorization, has_model))
}

fn refuse(backend: &BackendConfig, why: &str) -> StartError {
    StartError::Backend { url: backend.spec.url.clone(), why: why.to_owned() }
}
