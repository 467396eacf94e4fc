//! The wiring of one router, in the order data flows: listener, account, policy and ledger, engines, proxy, workers,
//! and the control thread that watches engines and answers operators.
//!
//! Owns the threads. A router runs on threads of its own, so that it can be started from anywhere: the command line,
//! a demo inside a runtime, a test. Invariant: when [`RunningRouter`] is gone, so are its threads, sockets and counts.

mod backends;
mod control;
mod edge;
mod gossip;
mod health;
mod kernel;
mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::TryRng;
use rand::rngs::SysRng;
use router_policy::prefix::HashKey;
use router_policy::{Placement, PolicyName};

use crate::accept;
use crate::accept::limit::Connections;
use crate::account::{Account, KernelError, Ledger, Role, RowError};
use crate::backends::{Registry, Target};
use crate::config::{Config, KernelMode};
use crate::decisions::Recorder;
use crate::edge::Edge;
use crate::forward::retry::RetryBudget;
use crate::gossip::Gossip;
use crate::observe::status::pool;
use crate::parse::Names;
use crate::proxy::body::Budget;
use crate::proxy::metrics::RequestMetrics;
use crate::proxy::{KeepRecord, Proxy, Shared};
use crate::shutdown::{Phase, Switch};

/// Why a router does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is in use, not ours, or not allowed.
    #[error("cannot listen on {addr}")]
    Bind {
        /// Which.
        addr: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The kernel was asked for (`--kernel on`) and is not to be had, or there is no memory.
    #[error("cannot count in the kernel")]
    Kernel(#[from] KernelError),
    /// A backend's name has no address.
    #[error("cannot resolve backend {url}")]
    Resolve {
        /// Which.
        url: String,
        /// Why.
        source: std::io::Error,
    },
    /// A backend cannot be taken in.
    #[error("cannot use backend {url}: {why}")]
    Backend {
        /// Which.
        url: String,
        /// Why.
        why: String,
    },
    /// A backend has no row in the table of counts.
    #[error("cannot count requests to {url}")]
    Row {
        /// Which.
        url: String,
        /// Why.
        source: RowError,
    },
    /// The file of decision records cannot be opened.
    #[error("cannot write decision records to {}", path.display())]
    Record {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No thread, no random numbers.
    #[error("cannot start: {0}")]
    Internal(std::io::Error),
}

impl StartError {
    /// The exit code of the process.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Bind { .. }
            | Self::Kernel(_)
            | Self::Resolve { .. }
            | Self::Backend { .. }
            | Self::Row { .. }
            | Self::Record { .. } => 69,
            Self::Internal(_) => 70,
        }
    }
}

/// Starts routers.
#[derive(Clone, Copy, Debug)]
pub struct Router;

impl Router {
    /// Starts a router and returns once it listens. Backends become ready by themselves.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind.
    pub fn start(config: Config) -> Result<RunningRouter, StartError> {
        let bind = |addr| accept::bind(addr).map_err(|source| StartError::Bind { addr, source });
        let listener = bind(config.listen)?;
        let admin = bind(config.admin_listen)?;
        let local = |l: &std::net::TcpListener| l.local_addr().map_err(StartError::Internal);
        let (addr, admin_addr) = (local(&listener)?, local(&admin)?);

        let seed = config.seed.map_or_else(random_u64, Ok)?;
        let runtime = control::runtime()?;
        let take_in = |account: Account| {
            let ledger = Ledger::new(Placement::new(config.policy.clone(), Box::new(account.clone()), seed));
            let registry = Arc::new(Registry::default());
            backends::take_in(&config.backends, &config.probe, &runtime, &account, &ledger, &registry)?;
            Ok((account, ledger, registry))
        };
        let (account, ledger, registry) = match take_in(kernel::open(&config.kernel)?) {
            // Other routers have the rows of this host; in this process's memory there are as many again.
            Err(StartError::Row { source, .. }) if config.kernel.mode == KernelMode::Auto => {
                take_in(kernel::in_memory(&source).map_err(StartError::Internal)?)?
            }
            taken_in => taken_in?,
        };

        let mut series = prometheus_client::registry::Registry::default();
        let targets = registry.all();
        let specs: Vec<_> =
            targets.iter().map(|t| ledger.snapshot(t.id).map(|s| s.spec).unwrap_or_default()).collect();
        let pools = specs.iter().map(|spec| pool(spec.model.as_deref()));
        let labels = targets.iter().zip(pools).map(|(t, pool)| (t.id, pool, t.url.as_str()));
        let metrics = Arc::new(RequestMetrics::new(&mut series, labels));
        let keep_record = recorder(&config, &targets, &mut series)?;
        let connections = Arc::new(Connections::new(config.limits.client_conns_max));
        connections.counters().register(series.sub_registry_with_prefix("unlatch"));

        let edge = edge::start(&config, addr.port(), &mut series);

        let (hash_key, gossip) = gossip::start(&config, &targets, &ledger, &mut series, random_bytes()?);
        let shared = Arc::new(Shared {
            ledger: Arc::clone(&ledger),
            registry: Arc::clone(&registry),
            hash_key: hash_key.clone(),
            names: Names::new(&specs),
            budget: Budget::new(config.limits.bodies_total_bytes_max),
            retries: RetryBudget::new(config.limits.retry_budget),
            limits: config.limits.clone(),
            metrics,
            proxy_paths: config.proxy_paths.clone(),
            session_key: (config.policy.policy == PolicyName::Session).then(|| config.session_key.clone()),
            keep_record,
            debug_headers: config.debug_headers,
        });
        let mut router = RunningRouter {
            addr,
            admin_addr,
            account,
            ledger,
            registry,
            hash_key,
            connections,
            data_plane: Switch::default(),
            control_plane: Switch::default(),
            workers: Vec::new(),
            control: None,
            edge,
            gossip,
        };
        // From here on a failure drops `router`, which ends the threads there are.
        router.control = Some(control::start(&router, &config, runtime, admin, series)?);
        for _ in 0..config.workers.max(1) {
            let proxy =
                Proxy::new(Arc::clone(&shared), random_u64()?, kernel::mark(&router.account, Role::Router));
            let listener = listener.try_clone().map_err(StartError::Internal)?;
            router.workers.push(workers::start(&router, proxy, listener, (&config.limits).into())?);
        }
        tracing::info!(%addr, %admin_addr, workers = router.workers.len(), "serving");
        if config.backends.is_empty() {
            tracing::warn!("no backend is configured (--backend): every request is answered 503");
        }
        Ok(router)
    }
}

/// What takes decision records, if they are kept.
fn recorder(
    config: &Config,
    targets: &[Arc<Target>],
    series: &mut prometheus_client::registry::Registry,
) -> Result<Option<KeepRecord>, StartError> {
    let Some(path) = &config.record else { return Ok(None) };
    let urls = targets.iter().map(|t| (t.id, t.url.clone())).collect();
    let recorder = Recorder::start(path, urls, series)
        .map_err(|source| StartError::Record { path: path.clone(), source })?;
    Ok(Some(KeepRecord(Arc::new(move |record, request: &str| recorder.take(record, request)))))
}

/// A router that serves. Dropping it cuts what is in flight and waits for its threads.
#[derive(Debug)]
pub struct RunningRouter {
    addr: SocketAddr,
    admin_addr: SocketAddr,
    account: Account,
    ledger: Arc<Ledger>,
    registry: Arc<Registry>,
    hash_key: HashKey,
    connections: Arc<Connections>,
    data_plane: Switch,
    control_plane: Switch,
    workers: Vec<workers::Worker>,
    control: Option<control::Control>,
    edge: Option<Edge>,
    gossip: Option<Gossip>,
}

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Requests that were cut at the deadline.
    pub cut: u32,
}

impl RunningRouter {
    /// Where clients connect.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where operators connect.
    #[must_use]
    pub const fn admin_addr(&self) -> SocketAddr {
        self.admin_addr
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

    /// Stops accepting, lets what is in flight end until the deadline, cuts the rest. Blocks until all threads ended;
    /// in a runtime, call it where blocking is allowed.
    pub fn shutdown(mut self, deadline: Duration) -> Shutdown {
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

fn random_bytes<const N: usize>() -> Result<[u8; N], StartError> {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).map_err(|e| StartError::Internal(std::io::Error::other(e)))?;
    Ok(bytes)
}

fn random_u64() -> Result<u64, StartError> {
    random_bytes().map(u64::from_ne_bytes)
}
