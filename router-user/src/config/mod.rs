//! The checked configuration of one router: what flags, environment and file ([`mod@file`]) resolve to ([`mod@resolve`]).
//! It does not read the command line ([`crate::cli`] does) and acts on nothing. Invariant: a [`Config`] that came
//! out of [`resolve`] is within the bounds the help states.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use router_policy::{BackendSpec, PolicyConfig};

use crate::account::suspect::SUSPECT_AFTER;
use crate::backends::health::Rules;
use crate::backends::metrics_text::Engine;
use crate::edge::Prefix;

pub mod backend;
pub mod file;
mod keys;
pub mod resolve;
pub mod settings;
pub mod values;

pub use settings::ConfigError;

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
    /// The edge guard.
    pub edge: EdgeConfig,
    /// Where the host's router processes tell each other their placements; `None` = they do not.
    pub gossip_dir: Option<PathBuf>,
    /// Extra path prefixes that are proxied.
    pub proxy_paths: Vec<String>,
    /// File that decision records are appended to; `None` = none are kept.
    pub record: Option<PathBuf>,
    /// Header, else member of the body, that names the session; lower case.
    pub session_key: String,
    /// Whether responses carry `x-unlatch-backend` and `x-unlatch-decision`.
    pub debug_headers: bool,
    /// How engines are probed and judged.
    pub probe: ProbeConfig,
    /// Bounds.
    pub limits: Limits,
    /// After SIGTERM, requests in flight have this long to end.
    pub shutdown_deadline: Duration,
    /// Seed of the policy's random choices; `None` = from the operating system.
    pub seed: Option<u64>,
    /// What is logged.
    pub log: LogConfig,
}

impl Default for Config {
    /// What an empty configuration resolves to, but with one worker.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8001)),
            admin_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8002)),
            backends: Vec::new(),
            policy: PolicyConfig::default(),
            workers: 1,
            kernel: KernelConfig::default(),
            edge: EdgeConfig::default(),
            gossip_dir: Some(PathBuf::from("/run/unlatch/gossip")),
            proxy_paths: Vec::new(),
            record: None,
            session_key: "x-session-id".to_owned(),
            debug_headers: false,
            probe: ProbeConfig::default(),
            limits: Limits::default(),
            shutdown_deadline: Duration::from_secs(30),
            seed: None,
            log: LogConfig::default(),
        }
    }
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogConfig {
    /// From which level on.
    pub level: LogLevel,
    /// How a line looks.
    pub format: LogFormat,
}

/// From which level on is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// Someone must act.
    Error,
    /// Degraded.
    Warn,
    /// The life of the process.
    #[default]
    Info,
    /// Each request.
    Debug,
    /// Each decision.
    Trace,
}

impl LogLevel {
    /// All levels.
    pub const ALL: [Self; 6] = [Self::Off, Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The level as flags and configuration write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
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
    /// Where it tells its load.
    pub metrics: MetricsConfig,
    /// Where it tells how it does.
    pub health: HealthConfig,
}

/// Where an engine tells its load, as far as that is not as usual.
#[derive(Clone, Debug, Default)]
pub struct MetricsConfig {
    /// Whose names they are; `None` = as the text shows.
    pub engine: Option<Engine>,
    /// The path, whole; `None` = `/metrics` below the backend's path.
    pub path: Option<String>,
    /// The port; `None` = the backend's.
    pub port: Option<u16>,
    /// Key sent there; `None` = the backend's, if the port is the backend's.
    pub key: Option<Secret>,
}

/// Where an engine tells how it does, as far as that is not as for all.
#[derive(Clone, Debug, Default)]
pub struct HealthConfig {
    /// The path, below the backend's.
    pub path: Option<String>,
    /// Statuses that are good.
    pub statuses: Option<Vec<u16>>,
}

/// How all engines are probed and judged.
#[derive(Clone, Debug)]
pub struct ProbeConfig {
    /// Path below each backend's; `None` = only models are asked.
    pub path: Option<String>,
    /// Statuses of it that are good.
    pub statuses: Vec<u16>,
    /// For an answer.
    pub timeout: Duration,
    /// From inference to inference of our own; `None` = there is none.
    pub inference: Option<Duration>,
    /// For its answer.
    pub inference_timeout: Duration,
    /// When engines are suspected, ejected and taken back.
    pub rules: Rules,
}

/// The usual path, which an engine may lack.
pub const HEALTH_PATH: &str = "/health";

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            path: Some(HEALTH_PATH.to_owned()),
            statuses: vec![200],
            timeout: Duration::from_secs(2),
            inference: None,
            inference_timeout: Duration::from_secs(30),
            rules: Rules::default(),
        }
    }
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
    /// What they are attached to.
    pub hook: KernelHook,
    /// The network devices, with [`KernelHook::Tcx`]; else none.
    pub devices: Vec<String>,
    /// A backend that leaves requests without a byte for longer, while others answer, is suspected; zero: none is.
    pub suspect_after: Duration,
}

/// What programs are attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelHook {
    /// A cgroup.
    Cgroup,
    /// Network devices.
    Tcx,
}

impl Default for KernelConfig {
    fn default() -> Self {
        Self {
            mode: KernelMode::Auto,
            pin_dir: PathBuf::from("/sys/fs/bpf/unlatch"),
            cgroup: None,
            hook: KernelHook::Cgroup,
            devices: Vec::new(),
            suspect_after: SUSPECT_AFTER,
        }
    }
}

/// The edge guard.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// The device it is attached to; `None` = there is none.
    pub device: Option<String>,
    /// Sources whose packets are dropped.
    pub deny: Vec<Prefix>,
    /// Sources that are neither dropped nor limited.
    pub allow: Vec<Prefix>,
    /// Connections a source may open per second; 0 = any number.
    pub syn_rate: u64,
    /// Connections a source may open at once.
    pub syn_burst: u64,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self { device: None, deny: Vec::new(), allow: Vec::new(), syn_rate: 100, syn_burst: 200 }
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
    /// Statuses of an engine after which another is asked.
    pub retry_statuses: Vec<u16>,
    /// Such retries per request, over time.
    pub retry_budget: f64,
    /// Longest silence within an answer, if there is a limit.
    pub stream_idle_timeout: Option<Duration>,
    /// Silence within a stream of events after which a comment is sent, if one is.
    pub sse_keepalive: Option<Duration>,
    /// Idle connections kept per backend and worker.
    pub idle_conns_max: usize,
    /// An idle connection is not reused after this long (uvicorn and llama.cpp close at 5 s).
    pub idle_conn_age_max: Duration,
    /// First back-off of a backend that refuses connections; doubles to the maximum.
    pub backoff_min: Duration,
    /// Longest back-off.
    pub backoff_max: Duration,
    /// Longest silence of an answer whose backend refuses connections, if there is a limit.
    pub gone_stream_timeout: Option<Duration>,
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
            retry_statuses: vec![429, 503],
            retry_budget: 0.2,
            stream_idle_timeout: Some(Duration::from_secs(600)),
            sse_keepalive: None,
            idle_conns_max: 256,
            idle_conn_age_max: Duration::from_secs(4),
            backoff_min: Duration::from_millis(250),
            backoff_max: Duration::from_secs(10),
            gone_stream_timeout: Some(Duration::from_secs(5)),
        }
    }
}
