//! The real router on free ports of the loopback, in this process.

use std::net::SocketAddr;
use std::time::Duration;

use router_policy::{BackendId, BackendSpec, PolicyConfig, PolicyName};
use router_user::app::{Router, RunningRouter};
use router_user::config::{
    BackendConfig, Config, HealthConfig, KernelConfig, KernelMode, Limits, Lookup, MetricsConfig,
};

use crate::client::ask;
use crate::wait;

/// A configuration for tests: free ports, counts in memory, a fixed seed, two workers. Engines are asked once, at the
/// start, and after a failed connection when its back-off ends; so it is the proxy that meets an engine's death.
#[must_use]
pub fn config(backends: &[SocketAddr]) -> Config {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Config {
        listen: any,
        admin_listen: any.into(),
        backends: backends.iter().map(|&addr| backend(addr)).collect(),
        policy: PolicyConfig {
            policy: PolicyName::LeastInFlight,
            scrape_interval: Duration::from_secs(3600),
            ..PolicyConfig::default()
        },
        workers: 2,
        kernel: KernelConfig { mode: KernelMode::Off, ..KernelConfig::default() },
        gossip_dir: None,
        debug_headers: true,
        limits: Limits { connect_timeout: Duration::from_secs(2), ..Limits::default() },
        shutdown_deadline: wait::DEADLINE,
        seed: Some(1),
        ..Config::default()
    }
}

/// One engine that serves model `m`.
#[must_use]
pub fn backend(addr: SocketAddr) -> BackendConfig {
    let spec =
        BackendSpec { url: format!("http://{addr}"), model: Some("m".into()), ..BackendSpec::default() };
    BackendConfig {
        spec,
        host: addr.ip().to_string(),
        port: addr.port(),
        lookup: Lookup::Address,
        base_path: String::new(),
        types: Vec::new(),
        labels: Vec::new(),
        api_key: None,
        metrics: MetricsConfig::default(),
        health: HealthConfig::default(),
    }
}

/// Starts a router and waits until its backends are ready and were asked once (what has no model is ready only then).
#[must_use]
#[track_caller]
pub fn start(config: Config) -> RunningRouter {
    let count = config.backends.len();
    let router = Router::start(config).unwrap();
    let is_ready = |id| router.ledger().snapshot(id).is_some_and(|s| s.ready);
    wait::until("all backends become ready", || {
        let ids = router.ledger().backends();
        ids.len() == count && ids.into_iter().all(is_ready)
    });
    router
}

/// Requests in flight at the backend of a row.
#[must_use]
pub fn in_flight(router: &RunningRouter, row: usize) -> u32 {
    let id = BackendId::new(row).unwrap();
    router.ledger().snapshot(id).map_or(0, |s| s.own.requests)
}

/// The sum of a metric's series, as `/metrics` says; of those with `label` in their labels.
///
/// # Panics
/// The admin plane does not answer, or a value is no number.
#[must_use]
#[track_caller]
pub fn metric(router: &RunningRouter, name: &str, label: &str) -> f64 {
    metric_at(router.admin_addr(), name, label)
}

/// The same of any router, by its admin address.
///
/// # Panics
/// As [`metric`].
#[must_use]
#[track_caller]
pub fn metric_at(admin: SocketAddr, name: &str, label: &str) -> f64 {
    let text = ask(admin, "GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n").text();
    let series = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
    let values = series.filter(|line| line.contains(label)).map(|line| line.rsplit(' ').next().unwrap());
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

/// What `/status` says of the backend of a row.
///
/// # Panics
/// The admin plane does not answer, or knows no such row.
#[must_use]
#[track_caller]
pub fn status(router: &RunningRouter, row: usize) -> serde_json::Value {
    let text = ask(router.admin_addr(), "GET /status HTTP/1.1\r\nhost: h\r\n\r\n").text();
    let mut status: serde_json::Value = serde_json::from_str(&text).unwrap();
    status["backends"][row].take()
}

/// Waits until nothing is in flight anywhere.
#[track_caller]
pub fn wait_idle(router: &RunningRouter) {
    wait::until("in flight returns to 0", || router.in_flight() == 0);
}
