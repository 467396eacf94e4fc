//! A router that serves, and how it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_policy::prefix::HashKey;

use super::fleet::Fleet;
use super::reload::Reload;
use super::{StartError, control, kernel, random_u64, state, workers};
use crate::accept::limit::Connections;
use crate::account::{Account, Ledger, Role};
use crate::backends::Registry;
use crate::config::{AdminListen, Config};
use crate::edge::Edge;
use crate::gossip::Gossip;
use crate::proxy::{Proxy, Shared};
use crate::shutdown::{Phase, Switch};

/// A router that serves. Dropping it cuts what is in flight and waits for its threads.
#[derive(Debug)]
pub struct RunningRouter {
    pub(super) addr: SocketAddr,
    pub(super) admin_at: AdminListen,
    pub(super) account: Account,
    pub(super) ledger: Arc<Ledger>,
    pub(super) registry: Arc<Registry>,
    pub(super) hash_key: HashKey,
    pub(super) connections: Arc<Connections>,
    pub(super) shutdown_delay: Duration,
    pub(super) data_plane: Switch,
    pub(super) control_plane: Switch,
    pub(super) workers: Vec<workers::Worker>,
    pub(super) control: Option<control::Control>,
    pub(super) edge: Option<Edge>,
    pub(super) gossip: Option<Arc<Gossip>>,
    pub(super) state: Option<state::Warming>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) reload: Arc<Reload>,
}

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Requests that were cut at the deadline.
    pub cut: u32,
}

impl RunningRouter {
    pub(super) fn start_workers(
        &mut self,
        shared: &Arc<Shared>,
        listener: &std::net::TcpListener,
        config: &Config,
    ) -> Result<(), StartError> {
        for _ in 0..config.workers.max(1) {
            let mark = kernel::mark(&self.account, Role::Router);
            let proxy = Proxy::new(Arc::clone(shared), random_u64()?, mark);
            let listener = listener.try_clone().map_err(StartError::Internal)?;
            self.workers.push(workers::start(self, proxy, listener, (&config.limits).into())?);
        }
        Ok(())
    }

    /// Where clients connect.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where operators connect.
    #[must_use]
    pub const fn admin_at(&self) -> &AdminListen {
        &self.admin_at
    }

    /// Where operators connect by TCP.
    ///
    /// # Panics
    /// They connect to a Unix socket; [`Self::admin_at`] tells.
    #[must_use]
    pub fn admin_addr(&self) -> SocketAddr {
        match &self.admin_at {
            AdminListen::Tcp(addr) => *addr,
            at @ AdminListen::Unix(_) => panic!("the admin plane is at {at}"),
        }
    }

    /// The counts.
    #[must_use]
    pub const fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The counts as other processes and the kernel see them.
    #[must_use]
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// The secret of the prompt hashes, for shapes made outside the proxy.
    #[must_use]
    pub const fn hash_key(&self) -> &HashKey {
        &self.hash_key
    }

    /// The set of engines.
    #[must_use]
    pub const fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Reads the configuration again.
    #[must_use]
    pub const fn reloader(&self) -> &Arc<Reload> {
        &self.reload
    }

    /// The engines.
    #[must_use]
    pub const fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Whether a worker ended although nobody asked it to: the router is of no use any more.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.workers.iter().any(workers::Worker::is_finished)
    }

    /// Says that it is not ready and serves on for the configured delay; then stops accepting, lets what is in flight end
    /// until the deadline, cuts the rest. Blocks until all threads ended;
    /// in a runtime, call it where blocking is allowed.
    pub fn shutdown(mut self, deadline: Duration) -> Shutdown {
        self.data_plane.go(Phase::Leaving);
        // Those who balance before this router need a moment to learn that it goes.
        std::thread::sleep(self.shutdown_delay);
        let until = Instant::now() + deadline;
        self.data_plane.go(Phase::Draining);
        for worker in &self.workers {
            worker.wait(until);
        }
        let cut = self.in_flight();
        self.end();
        Shutdown { cut }
    }

    /// Requests in flight over all backends.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let ids = self.ledger.backends();
        ids.into_iter().filter_map(|id| self.ledger.snapshot(id)).map(|s| s.own.requests).sum()
    }

    fn end(&mut self) {
        self.data_plane.go(Phase::Stopping);
        self.workers.drain(..).for_each(workers::Worker::join);
        // All have ended and no engine is forgotten yet: what is saved now is the last of it.
        drop(self.state.take());
        self.control_plane.go(Phase::Stopping);
        self.control.take().into_iter().for_each(control::Control::join);
        drop(self.gossip.take());
        // Last: what is in flight stays guarded while it drains.
        drop(self.edge.take());
    }
}

impl Drop for RunningRouter {
    fn drop(&mut self) {
        self.end();
    }
}
