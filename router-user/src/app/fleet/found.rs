//! The fleet of a router that starts.

use std::sync::Arc;

use router_policy::Placement;
use tokio::runtime::Handle;

use super::super::{StartError, kernel};
use super::{Fleet, Parts};
use crate::account::{Account, Ledger, Role};
use crate::backends::{Member, WatchConfig};
use crate::config::{Config, KernelMode};
use crate::proxy::RequestMetrics;

/// With all whom the sources name, counted in the kernel if that is wanted and possible.
///
/// # Errors
/// The kernel is wanted and not to be had, or a backend gets no row.
pub(in crate::app) fn found(
    config: &Config,
    lists: &[(String, Vec<Member>)],
    metrics: &Arc<RequestMetrics>,
    runtime: &Handle,
    seed: u64,
) -> Result<Fleet, StartError> {
    let over = |account: Account| {
        let ledger = Ledger::new(Placement::new(config.policy.clone(), Box::new(account.clone()), seed));
        let parts = Parts {
            watch: WatchConfig::new(config, kernel::mark(&account, Role::Probe)),
            registry: Arc::default(),
            metrics: Arc::clone(metrics),
            runtime: runtime.clone(),
            probe: config.probe.clone(),
            account,
            ledger,
        };
        let fleet = Fleet::new(parts, config.drain_deadline);
        fleet.found(lists.to_vec())?;
        Ok(fleet)
    };
    match over(kernel::open(&config.kernel)?) {
        // Other routers have the rows of this host; in this process's memory there are as many again.
        Err(StartError::Row { source, .. }) if config.kernel.mode == KernelMode::Auto => {
            over(kernel::in_memory(&source).map_err(StartError::Internal)?)
        }
        founded => founded,
    }
}
