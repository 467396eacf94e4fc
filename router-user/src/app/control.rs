//! The control thread: watches engines and answers operators, apart from the data plane, so that neither can slow it.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use prometheus_client::registry::Registry as Series;
use router_policy::{Nanos, PolicyName};
use tokio::runtime::Runtime;

use super::{RunningRouter, StartError, health, kernel};
use crate::account::suspect::others_rx;
use crate::account::{Account, Hook, Ledger, Role, State, Suspicion};
use crate::backends::ScrapeFailure;
use crate::backends::{Registry, ReportSink, Target, WatchConfig, watch_all};
use crate::clock;
use crate::config::{Config, KernelMode};
use crate::observe::admin::{self, Admin};
use crate::observe::status::pool;
use crate::observe::{BackendStatus, IndexStatus, KernelStatus, Status, StatusSource};
use crate::shutdown::{Ending, Phase};

/// The control thread.
#[derive(Debug)]
pub(super) struct Control(JoinHandle<()>);

/// Its runtime.
pub(super) fn runtime() -> Result<Runtime, StartError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Internal)
}

/// Starts it. Engines are watched, and operators answered, until the control plane's switch says stopping.
pub(super) fn start(
    router: &RunningRouter,
    config: &Config,
    runtime: Runtime,
    admin: TcpListener,
    series: Series,
) -> Result<Control, StartError> {
    let source = Source {
        ledger: Arc::clone(&router.ledger),
        registry: Arc::clone(&router.registry),
        account: router.account.clone(),
        policy: config.policy.policy,
        hook: (config.kernel.mode != KernelMode::Off).then(|| kernel::hook(&config.kernel)),
        suspect_after: config.kernel.suspect_after,
        since: clock::now(),
        data_plane: router.data_plane.listen(),
    };
    let watch = WatchConfig::new(config, kernel::mark(&router.account, Role::Probe));
    let ending = router.control_plane.listen();
    let body = move || {
        if let Err(error) = runtime.block_on(run(source, watch, admin, series, ending)) {
            tracing::error!(%error, "the admin plane cannot be served");
        }
    };
    let thread = std::thread::Builder::new().name("unlatch-control".to_owned());
    Ok(Control(thread.spawn(body).map_err(StartError::Internal)?))
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
    source: Source,
    watch: WatchConfig,
    admin: TcpListener,
    series: Series,
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
    let (ledger, registry) = (Arc::clone(&source.ledger), Arc::clone(&source.registry));
    tokio::spawn(health::look_after(ledger, registry, source.account.clone()));
    let sink: Arc<dyn ReportSink> = Arc::<Ledger>::clone(&source.ledger);
    let _watches = watch_all(&source.registry.all(), &sink, &watch);
    let admin_listener = tokio::net::TcpListener::from_std(admin)?;
    tokio::select! {
        // The end first: a busy operator must not put it off.
        biased;
        () = ending.reached(Phase::Stopping) => {}
        () = admin::serve(admin_listener, Arc::new(Admin::new(series, Arc::new(source)))) => {}
    }
    Ok(())
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
    data_plane: Ending,
}

impl StatusSource for Source {
    fn status(&self) -> Status {
        let now = clock::now();
        let mut backends: Vec<_> = self.registry.all().iter().filter_map(|t| self.backend(t)).collect();
        self.suspect(&mut backends, now);
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

    fn backend(&self, target: &Target) -> Option<BackendStatus> {
        let snapshot = self.ledger.snapshot(target.id)?;
        Some(BackendStatus {
            id: target.id,
            url: target.url.clone(),
            pool: pool(snapshot.spec.model.as_deref()).to_owned(),
            snapshot,
            backoff_until: target.backoff_until(),
            heard: target.heard(),
            held_against: target.vitals.verdict().cause,
            scrape_failures: ScrapeFailure::ALL.map(|why| target.scrape_failures(why)),
            kernel: self.account.kernel_row(target.id),
            suspect: None,
        })
    }
}
