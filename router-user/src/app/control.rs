//! The control thread: watches engines and answers operators, apart from the data plane, so that neither can slow it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use prometheus_client::registry::Registry as Series;
use router_policy::{Nanos, PolicyName};
use tokio::runtime::Runtime;

use super::discover::Sources;
use super::fleet::{Fleet, Then};
use super::operate::Operations;
use super::{RunningRouter, StartError, health, kernel};
use crate::account::suspect::others_rx;
use crate::account::{Account, Hook, Ledger, Role, State, Suspicion};
use crate::backends::ScrapeFailure;
use crate::backends::{Registry, Relay, Target};
use crate::clock;
use crate::config::{Compat, Config, KernelMode};
use crate::discovery::Discovery;
use crate::observe::admin::{self, Admin, AdminToken, Listener};
use crate::observe::metrics;
use crate::observe::status::{DrainStatus, pool};
use crate::observe::vllm::VllmCollector;
use crate::observe::{BackendStatus, IndexStatus, KernelStatus, Requests, Status, StatusSource};
use crate::proxy::compat::Exposition;
use crate::proxy::metrics::RequestMetrics;
use crate::shutdown::{Ending, Phase};

/// The control thread.
#[derive(Debug)]
pub(super) struct Control(JoinHandle<()>);

/// What the thread's parts are made of.
pub(super) struct Plane {
    pub(super) listener: Listener,
    pub(super) token: Arc<AdminToken>,
    pub(super) series: Series,
    pub(super) metrics: Arc<RequestMetrics>,
    pub(super) discovery: Discovery,
    pub(super) sources: Sources,
}

/// Its runtime.
pub(super) fn runtime() -> Result<Runtime, StartError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Internal)
}

/// Starts it; beside it, what writes the metrics. Engines are watched, and operators answered, until the control plane's switch says stopping.
pub(super) fn start(
    router: &RunningRouter,
    config: &Config,
    runtime: Runtime,
    plane: Plane,
) -> Result<(Control, Exposition), StartError> {
    let Plane { listener, token, mut series, metrics: requests, discovery, sources } = plane;
    let source = Arc::new(Source {
        ledger: Arc::clone(&router.ledger),
        registry: Arc::clone(&router.registry),
        account: router.account.clone(),
        policy: config.policy.policy,
        hook: (config.kernel.mode != KernelMode::Off).then(|| kernel::hook(&config.kernel)),
        suspect_after: config.kernel.suspect_after,
        since: clock::now(),
        fleet: Arc::clone(&router.fleet),
        sources: sources.clone(),
        data_plane: router.data_plane.listen(),
        metrics: Arc::clone(&requests),
    });
    if config.metrics_compat == Some(Compat::Vllm) {
        series.register_collector(Box::new(VllmCollector {
            source: Arc::<Source>::clone(&source),
            requests,
            window: config.policy.request_stats_window,
        }));
    }
    let relay = Relay::new(kernel::mark(&router.account, Role::Probe));
    let operate = Operations::new(router, relay);
    let admin = Arc::new(Admin::new(series, Arc::<Source>::clone(&source), Arc::new(operate), token));
    let exposition = {
        // Weak: what is answered reads the fleet, which has the proxy, which has this.
        let admin = Arc::downgrade(&admin);
        let write = move || admin.upgrade().map_or_else(String::new, |admin| admin.metrics());
        Exposition { content_type: metrics::CONTENT_TYPE, write: Arc::new(write) }
    };
    runtime.spawn(discovery.run(sources.publish(Arc::clone(&router.fleet))));
    let ending = router.control_plane.listen();
    let body = move || {
        if let Err(error) = runtime.block_on(run(&source, listener, admin, ending)) {
            tracing::error!(%error, "the admin plane cannot be served");
        }
    };
    let thread = std::thread::Builder::new().name("unlatch-control".to_owned());
    Ok((Control(thread.spawn(body).map_err(StartError::Internal)?), exposition))
}

impl Control {
    pub(super) fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }
}

/// The life of the thread. What it spawns ends with its runtime.
async fn run(
    source: &Source,
    listener: Listener,
    admin: Arc<Admin>,
    mut ending: Ending,
) -> std::io::Result<()> {
    if let Some(reader) = source.account.log_reader() {
        tokio::spawn(async move {
            if let Err(error) = reader.run().await {
                tracing::warn!(%error, "the programs' log cannot be read any more");
            }
        });
    }
    tokio::spawn(kernel::look_after(source.account.clone()));
    let drains = Arc::clone(&source.fleet);
    tokio::spawn(async move { drains.look_after_drains().await });
    let (ledger, registry) = (Arc::clone(&source.ledger), Arc::clone(&source.registry));
    tokio::spawn(health::look_after(ledger, registry, source.account.clone()));
    tokio::select! {
        // The end first: a busy operator must not put it off.
        biased;
        () = ending.reached(Phase::Stopping) => Ok(()),
        failed = admin::serve(listener, admin) => failed,
    }
}

/// What the admin plane reads.
struct Source {
    ledger: Arc<Ledger>,
    registry: Arc<Registry>,
    account: Account,
    policy: PolicyName,
    /// What the kernel's programs are wanted at.
    hook: Option<Hook>,
    suspect_after: std::time::Duration,
    since: Nanos,
    fleet: Arc<Fleet>,
    sources: Sources,
    data_plane: Ending,
    metrics: Arc<RequestMetrics>,
}

impl StatusSource for Source {
    fn status(&self) -> Status {
        let now = clock::now();
        let mut backends: Vec<_> = self.registry.all().iter().filter_map(|t| self.backend(t)).collect();
        self.suspect(&mut backends, now);
        self.tell_fleet(&mut backends);
        Status {
            now,
            policy: self.policy,
            uptime: std::time::Duration::from_nanos(now.0.saturating_sub(self.since.0)),
            is_draining: self.data_plane.phase() >= Phase::Draining,
            kernel: self.kernel(),
            index: self.ledger.index_status(|blocks, bytes, counters| IndexStatus {
                blocks,
                bytes,
                counters,
            }),
            requests: Requests {
                decisions: self.metrics.decisions_by_reason(),
                ttft_buckets: self.metrics.ttft_buckets(),
            },
            sources: self.sources.handle().status(),
            backends,
        }
    }
}

impl Source {
    fn kernel(&self) -> KernelStatus {
        let state = self.account.state();
        let line = match state {
            State::On { missing, .. } if missing.is_empty() => "counting".to_owned(),
            State::On { missing, .. } => missing.join("; "),
            State::Off { reason } => reason.clone(),
        };
        let programs = self.hook.as_ref().map_or_else(Vec::new, |hook| state.programs(hook));
        KernelStatus { line, programs }
    }

    /// Marks the backends that the kernel sees bad signs of; silence is one only while others of the pool answer.
    fn suspect(&self, backends: &mut [BackendStatus], now: Nanos) {
        let seen: Vec<_> = backends
            .iter()
            .map(|b| {
                let others = backends.iter().filter(|o| o.id != b.id && o.pool == b.pool);
                let loads = others.filter_map(|o| o.kernel.as_ref()).map(|row| &row.load);
                Suspicion::of(b.kernel.as_ref()?, others_rx(loads), now, self.suspect_after)
            })
            .collect();
        for (backend, suspect) in backends.iter_mut().zip(seen) {
            backend.suspect = suspect;
        }
    }

    /// Who names each, and who drains.
    fn tell_fleet(&self, backends: &mut [BackendStatus]) {
        let (sources, draining) = (self.fleet.sources(), self.fleet.draining());
        for backend in backends {
            let addr = self.registry.get(backend.id).map(|target| target.addr);
            let names = |addrs: &[SocketAddr]| addr.is_some_and(|addr| addrs.contains(&addr));
            backend.source = sources.iter().find(|(_, addrs)| names(addrs)).map(|(name, _)| name.clone());
            let drain = draining.iter().find(|(id, _)| *id == backend.id);
            backend.drain = drain.map(|(_, drain)| DrainStatus {
                seconds: drain.since.elapsed().as_secs_f64(),
                left_seconds: drain
                    .until
                    .map(|until| until.saturating_duration_since(Instant::now()).as_secs_f64()),
                is_leaving: drain.then == Then::Leave,
                is_done: drain.is_done,
            });
        }
    }

    fn backend(&self, target: &Target) -> Option<BackendStatus> {
        let snapshot = self.ledger.snapshot(target.id)?;
        let mut heard = target.heard();
        heard.asleep |= target.is_put_to_sleep();
        Some(BackendStatus {
            id: target.id,
            url: target.url.clone(),
            pool: pool(snapshot.spec.model.as_deref()).to_owned(),
            snapshot,
            placed: self.metrics.placed_at(target.id),
            backoff_until: target.backoff_until(),
            heard,
            held_against: target.vitals.verdict().cause,
            scrape_failures: ScrapeFailure::ALL.map(|why| target.scrape_failures(why)),
            kernel: self.account.kernel_row(target.id),
            suspect: None,
            source: None,
            drain: None,
        })
    }
}
