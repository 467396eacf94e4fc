//! Fresh engines and a fresh router for one run, and their end.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use engine_sim::EngineConfig;
use engine_sim::server::{Config as EngineServerConfig, Handle, Server};
use router_policy::{BackendSpec, PolicyConfig};

use crate::account::{Detach, detach};
use crate::app::{Router, RunningRouter};
use crate::commands::output;
use crate::config::{BackendConfig, Config, HealthConfig, KernelConfig, KernelMode, Lookup, MetricsConfig};

/// Time for engines to be found ready.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Engines and the router in front of them. Dropping it stops all and takes its pins off.
pub(super) struct Stage {
    pub(super) engines: Vec<Handle>,
    pub(super) router: Option<RunningRouter>,
    pub(super) pin_dir: PathBuf,
}

/// What engines of a stage are like.
pub(super) struct EngineKind {
    pub(super) config: EngineConfig,
    pub(super) time_scale: f64,
}

impl Stage {
    /// Starts `n` engines, named A, B, C …, and a router with this policy; returns when all are ready.
    pub(super) async fn start(n: usize, kind: &EngineKind, policy: PolicyConfig) -> anyhow::Result<Self> {
        let mut engines = Vec::new();
        for index in 0..n {
            let config = EngineServerConfig {
                listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                name: name(index),
                time_scale: kind.time_scale,
                engine: kind.config,
                ..EngineServerConfig::default()
            };
            engines.push(Server::start(config).await.context("an engine did not start")?);
        }
        let pin_dir = PathBuf::from(format!("/sys/fs/bpf/unlatch-demo-{}", std::process::id()));
        let config = router_config(&engines, policy, pin_dir.clone());
        let router = Router::start(config).context("the router did not start")?;
        let stage = Self { engines, router: Some(router), pin_dir };
        stage.wait_ready().await?;
        Ok(stage)
    }

    /// The router.
    pub(super) fn router(&self) -> &RunningRouter {
        self.router.as_ref().expect("invariant: taken only by stop and drop")
    }

    async fn wait_ready(&self) -> anyhow::Result<()> {
        let ledger = self.router().ledger();
        let all_ready = || ledger.backends().iter().all(|&id| ledger.snapshot(id).is_some_and(|s| s.ready));
        let wait = async {
            while !all_ready() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(READY_WITHIN, wait).await.context("an engine was not found ready within 10 s")
    }

    /// Stops all.
    pub(super) async fn stop(mut self) {
        self.take_down();
        for engine in self.engines.drain(..) {
            engine.stop().await;
        }
    }

    fn take_down(&mut self) {
        if let Some(router) = self.router.take() {
            let is_pinned = router.account().state().is_on();
            router.shutdown(Duration::from_millis(100));
            // No other router uses a directory of this process's own; what cannot be taken off is said.
            if is_pinned && let Err(error) = detach(&self.pin_dir, Detach::Forced) {
                output::tell(format_args!("pins stay behind under {}: {error}", self.pin_dir.display()));
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.take_down();
    }
}

/// The name of an engine: A to Z, then AA …
pub(super) fn name(index: usize) -> String {
    let letter = char::from(b'A' + (index % 26) as u8);
    letter.to_string().repeat(index / 26 + 1)
}

fn router_config(engines: &[Handle], policy: PolicyConfig, pin_dir: PathBuf) -> Config {
    let backend = |engine: &Handle| BackendConfig {
        spec: BackendSpec { url: engine.url(), ..BackendSpec::default() },
        host: engine.addr().ip().to_string(),
        port: engine.addr().port(),
        lookup: Lookup::Address,
        base_path: String::new(),
        types: Vec::new(),
        labels: Vec::new(),
        api_key: None,
        metrics: MetricsConfig::default(),
        health: HealthConfig::default(),
    };
    let free_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Config {
        listen: free_port,
        admin_listen: free_port.into(),
        backends: engines.iter().map(backend).collect(),
        policy,
        workers: 1,
        kernel: KernelConfig { mode: KernelMode::Auto, pin_dir, ..KernelConfig::default() },
        gossip_dir: None,
        ..Config::default()
    }
}
