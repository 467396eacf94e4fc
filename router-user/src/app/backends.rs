//! From configured backends to members of the fleet: names become addresses. And where watches tell what they find.

use std::net::SocketAddr;

use router_policy::{BackendId, Models, Report, Trust};

use super::StartError;
use crate::account::Ledger;
use crate::backends::{Member, ReportSink, resolve};
use crate::config::BackendConfig;

/// Every configured backend at its addresses.
///
/// # Errors
/// A name that cannot be resolved.
pub(super) fn members(configured: &[BackendConfig]) -> Result<Vec<Member>, StartError> {
    let mut members = Vec::new();
    for backend in configured {
        members.extend(resolve::expand(backend, &addresses(backend)?));
    }
    Ok(members)
}

/// Asks in a thread of its own: the caller's may belong to a runtime, where waiting is forbidden.
fn addresses(backend: &BackendConfig) -> Result<Vec<SocketAddr>, StartError> {
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(resolve::resolve(backend))
    };
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
