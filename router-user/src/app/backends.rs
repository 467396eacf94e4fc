//! From configured backends to rows: names become addresses, addresses rows, rows targets.

use std::net::SocketAddr;
use std::sync::Arc;

use router_common::BackendAddr;
use router_policy::{BackendId, Models, Report, Trust};
use tokio::runtime::Runtime;

use super::StartError;
use crate::account::{Account, Ledger};
use crate::backends::{HealthAt, Registry, ReportSink, Target, resolve};
use crate::config::{BackendConfig, ProbeConfig};

/// Takes in every configured backend. A name with several addresses becomes several backends; one address given
/// twice is one backend, with the first one's configuration.
pub(super) fn take_in(
    configured: &[BackendConfig],
    probe: &ProbeConfig,
    runtime: &Runtime,
    account: &Account,
    ledger: &Ledger,
    registry: &Registry,
) -> Result<(), StartError> {
    let mut targets: Vec<Arc<Target>> = Vec::new();
    for backend in configured {
        let refuse = |why: String| StartError::Backend { url: backend.spec.url.clone(), why };
        for member in resolve::expand(backend, &addresses(backend, runtime)?) {
            let (spec, addr) = (member.config.spec.clone(), member.addr);
            if targets.iter().any(|t| t.addr == addr) {
                tracing::warn!(backend = spec.url, %addr, "this address is already a backend");
                continue;
            }
            let id = account
                .register(BackendAddr::from_socket_addr(addr), &spec.url)
                .map_err(|source| StartError::Row { url: spec.url.clone(), source })?;
            let target = resolve::target(id, &member).map_err(|e| refuse(e.to_string()))?;
            let target =
                target.with_health(HealthAt::new(&member.config.health, probe)).with_rules(probe.rules);
            ledger.set_backend(id, spec);
            // Before the first client, not when the watch comes to it.
            ledger.ready(id, target.has_configured_model);
            targets.push(Arc::new(target));
        }
    }
    registry.set(targets);
    Ok(())
}

/// Asks in a thread of its own: the caller's may belong to a runtime, where waiting for another one is forbidden.
fn addresses(backend: &BackendConfig, runtime: &Runtime) -> Result<Vec<SocketAddr>, StartError> {
    let ask = || runtime.block_on(resolve::resolve(backend));
    let asked = std::thread::scope(|scope| scope.spawn(ask).join());
    let failed = |source| StartError::Resolve { url: backend.spec.url.clone(), source };
    asked.unwrap_or_else(|_panic| Err(std::io::Error::other("the resolver panicked"))).map_err(failed)
}

/// What the watch of the engines finds goes to the ledger.
impl ReportSink for Ledger {
    fn report_begins(&self, id: BackendId) {
        self.report_begins(id);
    }

    fn report(&self, id: BackendId, report: Report) -> Report {
        self.report(id, report)
    }

    fn models(&self, id: BackendId, models: Models) {
        self.models(id, models);
    }

    fn ready(&self, id: BackendId, ready: bool) {
        self.ready(id, ready);
    }

    fn trust(&self, id: BackendId, trust: Trust) {
        self.trust(id, trust);
    }

    fn cache_lost(&self, id: BackendId) {
        self.cache_lost(id);
    }
}
