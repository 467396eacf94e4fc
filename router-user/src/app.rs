//! The wiring of one router, in the order data flows: listener, account, policy and ledger, engines, proxy, workers,
//! and the control thread that watches engines and answers operators.
//!
//! Owns the threads. A router runs on threads of its own, so that it can be started from anywhere: the command line,
//! a demo inside a runtime, a test. Invariant: when [`RunningRouter`] is gone, so are its threads, sockets and counts.

mod admin;
mod backends;
mod control;
mod discover;
mod edge;
pub mod fleet;
mod gossip;
mod health;
mod kernel;
mod operate;
mod reload;
mod running;
mod state;
mod workers;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use discover::Sources;
use rand::TryRng;
use rand::rngs::SysRng;
pub use reload::{Reload, ReloadError, Reloaded, Reread};
pub use running::{RunningRouter, Shutdown};

use crate::accept;
use crate::accept::limit::Connections;
use crate::account::{KernelError, RowError};
use crate::backends::Registry;
use crate::config::{Compat, Config};
use crate::decisions::Recorder;
use crate::discovery::First;
use crate::forward::retry::RetryBudget;
use crate::observe::admin::TokenError;
use crate::proxy::body::Budget;
use crate::proxy::metrics::RequestMetrics;
use crate::proxy::{KeepRecord, Shared};
use crate::shutdown::Switch;

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
    /// The admin plane's socket cannot be made.
    #[error("cannot listen on unix:{}", path.display())]
    BindUnix {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The admin token cannot be read.
    #[error("cannot take the admin token")]
    Token(#[from] TokenError),
    /// The kernel was asked for (`--kernel on`) and is not to be had, or there is no memory.
    #[error("cannot count in the kernel")]
    Kernel(#[from] KernelError),
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
            | Self::BindUnix { .. }
            | Self::Token(_)
            | Self::Kernel(_)
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
        Self::start_from(config, None)
    }

    /// The same; `reread` reads the configuration again when a reload is asked for.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_from(config: Config, reread: Option<Box<Reread>>) -> Result<RunningRouter, StartError> {
        let bind = |addr| accept::bind(addr).map_err(|source| StartError::Bind { addr, source });
        let listener = bind(config.listen)?;
        let local = |l: &std::net::TcpListener| l.local_addr().map_err(StartError::Internal);
        let addr = local(&listener)?;
        let (admin, admin_at, token) = admin::open(&config)?;

        let seed = config.seed.map_or_else(random_u64, Ok)?;
        let runtime = control::runtime()?;
        let First { lists, discovery, handle } = discover::first((&config).into(), &runtime)?;
        let sources = Sources::new(handle);
        let mut series = prometheus_client::registry::Registry::default();
        sources.handle().register(&mut series);
        let metrics = Arc::new(RequestMetrics::new(&mut series));
        let fleet = fleet::found(&config, &lists, &metrics, runtime.handle(), seed)?;
        let (account, ledger, registry) = fleet.parts();
        let keep_record = recorder(&config, &registry, &mut series)?;
        let connections = Arc::new(Connections::new(config.limits.client_conns_max));
        connections.counters().register(series.sub_registry_with_prefix("unlatch"));

        let edge = edge::start(&config, addr.port(), &mut series);

        let opened = state::open(&config.state, config.policy.index_blocks_max, &mut series);
        // Hashes of an earlier router mean nothing under another secret.
        let fresh = opened.as_ref().and_then(state::Opened::key).map_or_else(random_bytes, Ok)?;
        let (hash_key, gossip) = gossip::start(&config, &ledger, &mut series, fresh);
        let kept = opened.map(|opened| opened.warm(&config.state, &hash_key, &fleet));
        let data_plane = Switch::default();
        let shared = Arc::new(Shared {
            ending: data_plane.listen(),
            ledger: Arc::clone(&ledger),
            registry: Arc::clone(&registry),
            hash_key: hash_key.clone(),
            reading: ArcSwap::from_pointee(reload::reading(&config, Arc::default())),
            budget: Budget::new(config.limits.bodies_total_bytes_max),
            retries: RetryBudget::new(config.limits.retry_budget),
            limits: config.limits.clone(),
            metrics: Arc::clone(&metrics),
            proxy_paths: config.proxy_paths.clone(),
            keep_record,
            compat: (config.compat == Some(Compat::Vllm)).then(OnceLock::new),
            debug_headers: config.debug_headers,
        });
        let gossip = gossip.map(Arc::new);
        fleet.follow(Arc::clone(&shared), gossip.clone());
        let fleet = Arc::new(fleet);
        let reload = Reload::new(
            Arc::clone(&fleet),
            sources.clone(),
            Arc::clone(&shared),
            Arc::clone(&token),
            config.settings.clone(),
            reread,
        );
        let mut router = RunningRouter {
            fleet,
            reload: Arc::new(reload),
            addr,
            admin_at,
            account,
            ledger,
            registry,
            hash_key,
            connections,
            shutdown_delay: config.shutdown_delay,
            data_plane,
            control_plane: Switch::default(),
            workers: Vec::new(),
            control: None,
            edge,
            gossip,
            state: None,
        };
        // From here on a failure drops `router`, which ends the threads there are.
        let plane = control::Plane { listener: admin, token, series, metrics, discovery, sources };
        let (control, exposition) = control::start(&router, &config, runtime, plane)?;
        router.control = Some(control);
        if let Some(compat) = &shared.compat {
            compat.get_or_init(|| exposition);
        }
        router.start_workers(&shared, &listener, &config)?;
        if let Some(kept) = kept {
            let started = kept.start(&config.state, &router.hash_key, &router.ledger, &router.registry);
            router.state = Some(started.map_err(StartError::Internal)?);
        }
        let admin = &router.admin_at;
        tracing::info!(%addr, %admin, workers = router.workers.len(), "serving");
        if config.backends.is_empty() && config.backends_files.is_empty() {
            tracing::warn!("no backend is configured (--backend): every request is answered 503");
        }
        Ok(router)
    }
}

/// What takes decision records, if they are kept.
fn recorder(
    config: &Config,
    registry: &Arc<Registry>,
    series: &mut prometheus_client::registry::Registry,
) -> Result<Option<KeepRecord>, StartError> {
    let Some(path) = &config.record else { return Ok(None) };
    let registry = Arc::clone(registry);
    let url = move |id| registry.get(id).map_or_else(String::new, |target| target.url.clone());
    let recorder = Recorder::start(path, url, series)
        .map_err(|source| StartError::Record { path: path.clone(), source })?;
    Ok(Some(KeepRecord(Arc::new(move |record, request: &str| recorder.take(record, request)))))
}

fn random_bytes<const N: usize>() -> Result<[u8; N], StartError> {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).map_err(|e| StartError::Internal(std::io::Error::other(e)))?;
    Ok(bytes)
}

fn random_u64() -> Result<u64, StartError> {
    random_bytes().map(u64::from_ne_bytes)
}
