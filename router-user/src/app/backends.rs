//! From a backend that an operator adds to members of the fleet. And where watches tell what they find.

use router_policy::{BackendId, Models, Report, Trust};

use crate::account::Ledger;
use crate::backends::{Member, ReportSink, resolve};
use crate::config::{BackendConfig, Lookup};

/// A backend at its addresses, as the system's resolver says them now; they are not followed.
///
/// # Errors
/// It cannot be resolved, or must be followed.
pub(super) fn members(backend: &BackendConfig) -> Result<Vec<Member>, String> {
    if backend.lookup == Lookup::Service {
        return Err(
            "srv+http:// is for the configuration and for files of backends, where it is followed".to_owned()
        );
    }
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(resolve::resolve(backend))
    };
    let asked = std::thread::scope(|scope| scope.spawn(ask).join());
    let addrs = asked.unwrap_or_else(|_panic| Err(std::io::Error::other("the resolver panicked")));
    Ok(resolve::expand(backend, &addrs.map_err(|e| format!("cannot resolve {}: {e}", backend.spec.url))?))
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
