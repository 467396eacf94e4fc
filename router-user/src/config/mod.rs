//! The checked configuration of one router: what flags, environment and file resolve to. Units end names.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use router_policy::{BackendSpec, PolicyConfig};

/// Everything `unlatch serve` was asked for, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Data plane.
    pub listen: SocketAddr,
    /// Metrics, health, status.
    pub admin_listen: SocketAddr,
    /// The engines, in the order given.
    pub backends: Vec<BackendConfig>,
    /// Policy and its numbers.
    pub policy: PolicyConfig,
    /// Threads of the data plane, at least 1.
    pub workers: usize,
    /// Kernel counting.
    pub kernel: KernelConfig,
    /// Extra path prefixes that are proxied.
    pub proxy_paths: Vec<String>,
    /// Whether responses carry `x-unlatch-backend` and `x-unlatch-decision`.
    pub debug_headers: bool,
    /// Bounds.
    pub limits: Limits,
    /// After SIGTERM, requests in flight have this long to end.
    pub shutdown_deadline: Duration,
    /// Seed of the policy's random choices; `None` = from the operating system.
    pub seed: Option<u64>,
}

/// One engine as configured. A name that resolves to several addresses becomes several backends.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// What the policy is told.
    pub spec: BackendSpec,
    /// Host of the URL: a name or an address.
    pub host: String,
    /// Port of the URL; 80 when absent.
    pub port: u16,
    /// Path of the URL, put before every request's path; no trailing slash.
    pub base_path: String,
    /// Labels from configuration.
    pub labels: Vec<(String, String)>,
    /// Key sent as `Authorization: Bearer …` instead of the client's.
    pub api_key: Option<Secret>,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Whether the kernel counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelMode {
    /// If it may, else in process memory.
    #[default]
    Auto,
    /// Refuse to start without.
    On,
    /// Process memory.
    Off,
}

/// Kernel counting.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// Whether.
    pub mode: KernelMode,
    /// Pins live in `<pin_dir>/v<layout version>/`.
    pub pin_dir: PathBuf,
    /// The cgroup the programs attach to; `None` = this process's own.
    pub cgroup: Option<PathBuf>,
}

impl Default for KernelConfig {
    fn default() -> Self {
        Self { mode: KernelMode::Auto, pin_dir: PathBuf::from("/sys/fs/bpf/unlatch"), cgroup: None }
    }
}

/// Bounds of the data plane.
#[derive(Clone, Debug)]
pub struct Limits {
    /// One request body; beyond it 413.
    pub body_bytes_max: u64,
    /// All request bodies held at once; beyond it 503.
    pub bodies_total_bytes_max: u64,
    /// Request line and headers; beyond it 431.
    pub head_bytes_max: usize,
    /// Time for a request's head to arrive.
    pub head_timeout: Duration,
    /// Client connections at once; beyond it new ones wait in the accept queue.
    pub client_conns_max: usize,
    /// Connecting to a backend.
    pub connect_timeout: Duration,
    /// Idle connections kept per backend and worker.
    pub idle_conns_max: usize,
    /// An idle connection is not reused after this long (uvicorn and llama.cpp close at 5 s).
    pub idle_conn_age_max: Duration,
    /// First back-off of a backend that refuses connections; doubles to the maximum.
    pub backoff_min: Duration,
    /// Longest back-off.
    pub backoff_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 64 << 20,
            bodies_total_bytes_max: 1 << 30,
            head_bytes_max: 64 << 10,
            head_timeout: Duration::from_secs(30),
            client_conns_max: 16_384,
            connect_timeout: Duration::from_secs(5),
            idle_conns_max: 256,
            idle_conn_age_max: Duration::from_secs(4),
            backoff_min: Duration::from_millis(250),
            backoff_max: Duration::from_secs(10),
        }
    }
}
