//! The checked configuration of one router: what flags, environment and file ([`mod@file`]) resolve to ([`mod@resolve`]).
//! It does not read the command line ([`crate::cli`] does) and acts on nothing. Invariant: a [`Config`] that came
//! out of [`resolve`] is within the bounds the help states.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use router_policy::{BackendSpec, PolicyConfig};

use crate::account::suspect::SUSPECT_AFTER;
use crate::backends::metrics_text::Engine;
use crate::edge::Prefix;

mod admin;
pub mod backend;
pub mod backends_file;
pub mod document;
pub mod file;
mod keys;
mod limits;
mod log;
mod model_alias;
pub mod model_type;
mod probe;
pub mod production_stack;
mod reader;
pub mod resolve;
pub mod settings;
pub mod values;

pub use admin::AdminListen;
pub use backends_file::BackendsFile;
pub use limits::Limits;
pub use log::{LogConfig, LogFormat, LogLevel};
pub use model_type::ModelType;
pub use probe::{HEALTH_PATH, HealthConfig, ProbeConfig};
pub use settings::{ConfigError, Settings};

/// Reads a file of at most so many bytes.
///
/// # Errors
/// It cannot be read, is larger, or is no text.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {bytes_max} bytes")));
    }
    Ok(text)
}

/// Everything `unlatch serve` was asked for, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Data plane.
    pub listen: SocketAddr,
    /// Metrics, health, status, administration.
    pub admin_listen: AdminListen,
    /// File with the token that changing calls need; `None` = over TCP there are none.
    pub admin_token_file: Option<PathBuf>,
    /// The engines, in the order given.
    pub backends: Vec<BackendConfig>,
    /// Files with further engines.
    pub backends_files: Vec<BackendsFile>,
    /// How names are asked for.
    pub dns: DnsConfig,
    /// Whether the configuration file is read again when it changes.
    pub watch_config: bool,
    /// Names that stand for models, and those.
    pub model_aliases: Vec<(String, String)>,
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
    /// Warm restarts.
    pub state: StateConfig,
    /// Extra path prefixes that are proxied.
    pub proxy_paths: Vec<String>,
    /// File that decision records are appended to; `None` = none are kept.
    pub record: Option<PathBuf>,
    /// Header, else member of the body, that names the session; lower case.
    pub session_key: String,
    /// Whether responses carry `x-unlatch-backend` and `x-unlatch-decision`.
    pub debug_headers: bool,
    /// Whose ways are offered on the data port beside our own.
    pub compat: Option<Compat>,
    /// Whose names of metrics are exported beside our own.
    pub metrics_compat: Option<Compat>,
    /// How engines are probed and judged.
    pub probe: ProbeConfig,
    /// Bounds.
    pub limits: Limits,
    /// After SIGTERM, the router serves on for so long while it says that it is not ready.
    pub shutdown_delay: Duration,
    /// After that, requests in flight have this long to end.
    pub shutdown_deadline: Duration,
    /// Seed of the policy's random choices; `None` = from the operating system.
    pub seed: Option<u64>,
    /// What is logged.
    pub log: LogConfig,
    /// How long requests in flight at a backend that leaves the fleet may take to end.
    pub drain_deadline: Duration,
    /// The texts it was read from, by which a later one is compared with it.
    pub settings: Settings,
}

impl Default for Config {
    /// What an empty configuration resolves to, but with one worker.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8001)),
            admin_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8002)).into(),
            admin_token_file: None,
            backends: Vec::new(),
            backends_files: Vec::new(),
            dns: DnsConfig::default(),
            watch_config: false,
            model_aliases: Vec::new(),
            policy: PolicyConfig::default(),
            workers: 1,
            kernel: KernelConfig::default(),
            edge: EdgeConfig::default(),
            gossip_dir: Some(PathBuf::from("/run/unlatch/gossip")),
            state: StateConfig::default(),
            proxy_paths: Vec::new(),
            record: None,
            session_key: "x-session-id".to_owned(),
            debug_headers: false,
            compat: None,
            metrics_compat: None,
            probe: ProbeConfig::default(),
            limits: Limits::default(),
            shutdown_delay: Duration::ZERO,
            shutdown_deadline: Duration::from_secs(30),
            seed: None,
            log: LogConfig::default(),
            drain_deadline: Duration::from_secs(600),
            settings: Settings::default(),
        }
    }
}

/// Whose ways are offered beside our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// The router of the vLLM production stack.
    Vllm,
}

/// How names are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfig {
    /// The servers that are asked; none: those of `/etc/resolv.conf`.
    pub servers: Vec<SocketAddr>,
    /// The soonest a name is asked for again, and the first back-off of one that failed.
    pub ttl_min: Duration,
    /// The latest.
    pub ttl_max: Duration,
}

impl Default for DnsConfig {
    fn default() -> Self {
        Self { servers: Vec::new(), ttl_min: Duration::from_secs(1), ttl_max: Duration::from_secs(60) }
    }
}

/// What the host of a backend's URL is asked for in the DNS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lookup {
    /// Its addresses; the port is the URL's.
    #[default]
    Address,
    /// Its SRV records, each a host and a port; the URL's port means nothing.
    Service,
}

/// One engine as configured. A name that resolves to several addresses becomes several backends.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendConfig {
    /// What the policy is told.
    pub spec: BackendSpec,
    /// Host of the URL: a name or an address.
    pub host: String,
    /// Port of the URL; 80 when absent.
    pub port: u16,
    /// What the host is asked for.
    pub lookup: Lookup,
    /// Path of the URL, put before every request's path; no trailing slash.
    pub base_path: String,
    /// What its model is for; empty = not known. What it is asked for follows from it (`spec.tasks`).
    pub types: Vec<ModelType>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// Warm restarts.
#[derive(Clone, Debug)]
pub struct StateConfig {
    /// Where states are saved; `None` = nowhere.
    pub dir: Option<PathBuf>,
    /// From save to save; `None` = at the end only.
    pub interval: Option<Duration>,
    /// What was saved of an engine longer ago is not used.
    pub max_age: Duration,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self { dir: None, interval: Some(Duration::from_secs(60)), max_age: Duration::from_secs(3600) }
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
