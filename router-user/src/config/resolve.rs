//! Settings to a checked [`Config`]. Pure: what it needs of the machine comes in as a [`Host`].

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use router_common::edge::EdgeLimits;
use router_policy::{Fallback, PolicyConfig, PolicyName, Tuning};

use super::backends_file::BYTES_MAX;
use super::reader::Reader;
use super::settings::{ConfigError, Setting, Settings};
use super::{
    BackendConfig, BackendsFile, Compat, Config, DnsConfig, EdgeConfig, KernelConfig, KernelHook, KernelMode,
    Limits, LogConfig, LogFormat, LogLevel, ProbeConfig, StateConfig, backend, model_alias, values,
};
use crate::backends::health::Rules;
use crate::edge::Prefix;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const SAVES: RangeInclusive<Duration> = Duration::from_secs(1)..=DAY;
const SILENCE: RangeInclusive<Duration> = Duration::from_millis(100)..=DAY;
/// Backends files at most.
const BACKENDS_FILES_MAX: usize = 64;

/// What is asked of the machine.
pub struct Host<'a> {
    /// Cores, the default of `workers`.
    pub cores: usize,
    /// Reads a key file or a backends file.
    pub read: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl Host<'static> {
    /// This machine.
    #[must_use]
    pub fn this() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            read: &|path| super::read_text(path, BYTES_MAX),
        }
    }
}

/// Checks settings and fills in defaults.
///
/// # Errors
/// The first setting that cannot be used, with where it came from.
pub fn resolve(settings: &Settings, host: &Host<'_>) -> Result<Config, ConfigError> {
    let s = Reader { settings };
    let record = s.optional("record", absolute_or_relative)?;
    let policy = PolicyConfig {
        record: record.is_some(),
        policy: s.read("policy", policy)?,
        prefix_min_match: s.integer("prefix-min-match", 0..=u64::MAX)?,
        fallback: s.read("fallback", |t| {
            values::choice(t, &[Fallback::LeastInFlight, Fallback::LowestQps].map(|f| (f.as_str(), f)))
        })?,
        request_stats_window: s.duration("request-stats-window", Duration::from_secs(1)..=HOUR)?,
        scrape_interval: s.duration("scrape-interval", Duration::from_millis(100)..=HOUR)?,
        index_blocks_max: s.size("index-blocks-max", 1024..=1 << 30)?,
        hash_blocks: s.integer("hash-blocks", 1..=65_536)? as u32,
        tuning: tuning(&s)?,
        ..PolicyConfig::default()
    };
    let modes = [("auto", KernelMode::Auto), ("on", KernelMode::On), ("off", KernelMode::Off)];
    let devices: Vec<String> = settings
        .all("kernel-dev")
        .iter()
        .map(|given| device(&given.text).map_err(|e| ConfigError::at(&given.source, e)))
        .collect::<Result<_, _>>()?;
    let levels = LogLevel::ALL.map(|l| (l.as_str(), l));
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    Ok(Config {
        settings: settings.clone(),
        listen: s.address("listen")?,
        admin_listen: s.read("admin-listen", str::parse)?,
        admin_token_file: s.optional("admin-token-file", absolute_or_relative)?,
        backends: backends(settings, host)?,
        backends_files: backends_files(settings, host)?,
        dns: dns(&s)?,
        watch_config: s.switch("watch-config")?,
        model_aliases: model_alias::read(settings)?,
        policy,
        workers: s.optional("workers", |t| values::integer(t, 1..=1024))?.map_or(host.cores, to_usize),
        kernel: KernelConfig {
            mode: s.read("kernel", |t| values::choice(t, &modes))?,
            pin_dir: s.read("pin-dir", absolute)?,
            cgroup: s.optional("kernel-cgroup", absolute)?,
            hook: s.read("kernel-hook", |t| hook(t, &devices))?,
            devices,
            suspect_after: s.duration("suspect-after", Duration::ZERO..=HOUR)?,
        },
        gossip_dir: s.read("gossip-dir", |t| if t == "off" { Ok(None) } else { absolute(t).map(Some) })?,
        state: StateConfig {
            dir: s.optional("state-dir", absolute)?,
            interval: s.optional_duration("state-interval", SAVES)?,
            max_age: s.duration("state-max-age", SAVES)?,
        },
        edge: EdgeConfig {
            device: s.optional("edge-dev", device)?,
            deny: prefixes(settings, "edge-deny")?,
            allow: prefixes(settings, "edge-allow")?,
            syn_rate: s.integer("edge-syn-rate", 0..=EdgeLimits::MAX)?,
            syn_burst: s.integer("edge-syn-burst", 1..=EdgeLimits::MAX)?,
        },
        proxy_paths: proxy_paths(settings)?,
        debug_headers: s.switch("debug-headers")?,
        compat: s.optional("compat", compat)?,
        metrics_compat: s.optional("metrics-compat", compat)?,
        record,
        session_key: s.read("session-key", member_name)?,
        probe: probe(&s)?,
        limits: limits(&s)?,
        drain_deadline: s.duration("drain-deadline", Duration::ZERO..=DAY)?,
        shutdown_delay: s.duration("shutdown-delay", Duration::ZERO..=HOUR)?,
        shutdown_deadline: s.duration("shutdown-deadline", Duration::ZERO..=HOUR)?,
        seed: s.optional("seed", |t| values::integer(t, 0..=u64::MAX))?,
        log: LogConfig {
            level: s.read("log-level", |t| values::choice(t, &levels))?,
            format: s.read("log-format", |t| values::choice(t, &formats))?,
        },
    })
}

fn tuning(s: &Reader<'_>) -> Result<Tuning, ConfigError> {
    const SECONDS: RangeInclusive<f64> = 0.0..=3600.0;
    const RATE: RangeInclusive<f64> = 1.0..=1e7;
    const GAIN: RangeInclusive<f64> = 0.0..=1.0;
    Ok(Tuning {
        disturbance: s.decimal("cost-disturbance", 0.0..=10.0)?,
        context: s.decimal("cost-context", 0.0..=10.0)?,
        decode_seconds_start: s.decimal("decode-seconds-start", SECONDS)?,
        decode_start_samples: s.decimal("decode-start-samples", 0.0..=1000.0)?,
        decode_seconds_min: s.decimal("decode-seconds-min", SECONDS)?,
        prefill_rate_start: s.decimal("prefill-rate-start", RATE)?,
        prefill_rate_min: s.decimal("prefill-rate-min", RATE)?,
        kv_tokens_default: s.integer("kv-tokens-default", 1..=1 << 30)?,
        chars_per_token_start: s.decimal("chars-per-token-start", 1.0..=16.0)?,
        decode_gain: s.decimal("decode-gain", GAIN)?,
        prefill_rate_gain: s.decimal("prefill-rate-gain", GAIN)?,
        chars_per_token_gain: s.decimal("chars-per-token-gain", GAIN)?,
        prefill_rate_min_tokens: s.integer("prefill-rate-min-tokens", 0..=1 << 20)?,
        patience_factor: s.decimal("patience-factor", 0.0..=1000.0)?,
        patience_seconds: s.decimal("patience-seconds", SECONDS)?,
        report_fade_intervals: s.decimal("report-fade-intervals", 0.001..=1000.0)?,
        hash_load_factor: s.decimal("hash-load-factor", 1.0..=100.0)?,
        weigh_by_speed: s.switch("weigh-by-speed")?,
    })
}

fn limits(s: &Reader<'_>) -> Result<Limits, ConfigError> {
    let from_ms = Duration::from_millis;
    let backoff_min = s.duration("backoff-min", from_ms(1)..=HOUR)?;
    Ok(Limits {
        body_bytes_max: s.bytes("body-bytes-max", 1..=1 << 30)?,
        bodies_total_bytes_max: s.bytes("bodies-total-bytes-max", 1..=1 << 40)?,
        head_bytes_max: to_usize(s.bytes("head-bytes-max", 8 << 10..=1 << 20)?),
        head_timeout: s.duration("head-timeout", from_ms(10)..=HOUR)?,
        client_conns_max: s.size("client-conns-max", 1..=1_000_000)?,
        connect_timeout: s.duration("connect-timeout", from_ms(10)..=HOUR)?,
        retry_statuses: s.read("retry-statuses", values::retry_statuses)?,
        retry_budget: s.decimal("retry-budget", 0.0..=1.0)?,
        reroutes_max: s.integer("reroutes-max", 0..=u64::from(u8::MAX))? as u8,
        stream_idle_timeout: s.optional_duration("stream-idle-timeout", SILENCE)?,
        sse_keepalive: s.optional_duration("sse-keepalive", SILENCE)?,
        idle_conns_max: s.size("idle-conns-max", 0..=65_536)?,
        idle_conn_age_max: s.duration("idle-conn-age-max", Duration::ZERO..=HOUR)?,
        backoff_min,
        backoff_max: s.duration("backoff-max", backoff_min..=HOUR)?,
        gone_stream_timeout: s.optional_duration("gone-stream-timeout", from_ms(10)..=HOUR)?,
    })
}

fn probe(s: &Reader<'_>) -> Result<ProbeConfig, ConfigError> {
    let from_ms = Duration::from_millis;
    let eject_min = s.duration("eject-min", from_ms(1)..=HOUR)?;
    let count = |name, bounds| s.integer(name, bounds).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    Ok(ProbeConfig {
        path: s.read(
            "health-path",
            |t| {
                if t == "off" { Ok(None) } else { backend::parse_path(t).map(Some) }
            },
        )?,
        statuses: s.read("health-status", |t| values::statuses(t, ','))?,
        timeout: s.duration("probe-timeout", from_ms(10)..=HOUR)?,
        inference: s.optional_duration("inference-probe", Duration::from_secs(1)..=24 * HOUR)?,
        inference_timeout: s.duration("inference-probe-timeout", from_ms(100)..=HOUR)?,
        rules: Rules {
            unhealthy_threshold: count("unhealthy-threshold", 1..=1000)?,
            healthy_threshold: count("healthy-threshold", 1..=1000)?,
            eject_failures: count("eject-failures", 0..=1000)?,
            eject_ratio: s.decimal("eject-ratio", 0.0..=1.0)?,
            eject_requests_min: count("eject-requests-min", 1..=1_000_000)?,
            eject_window: s.duration("eject-window", from_ms(100)..=HOUR)?,
            eject_min,
            eject_max: s.duration("eject-max", eject_min..=HOUR)?,
            slow_start: s.duration("slow-start", Duration::ZERO..=HOUR)?,
            trial_requests: count("trial-requests", 1..=1000)?,
            hung_seconds: s.duration("hung-after", from_ms(10)..=HOUR)?.as_secs_f64(),
            ..Rules::default()
        },
    })
}

fn backends(settings: &Settings, host: &Host<'_>) -> Result<Vec<BackendConfig>, ConfigError> {
    let mut all: Vec<BackendConfig> = Vec::new();
    for given in settings.all("backend") {
        let error = |message: String| ConfigError::at(&given.source, message);
        let one = backend::parse(&given.text, host.read).map_err(error)?;
        backend::add(&mut all, one).map_err(error)?;
    }
    Ok(all)
}

/// The files are read, so that a wrong one is said at once; what reads them for the fleet reads them again.
fn backends_files(settings: &Settings, host: &Host<'_>) -> Result<Vec<BackendsFile>, ConfigError> {
    let mut all: Vec<BackendsFile> = Vec::new();
    for given in settings.all("backends-file") {
        let error = |message: String| ConfigError::at(&given.source, message);
        let file = BackendsFile::new(PathBuf::from(&given.text)).map_err(error)?;
        if all.iter().any(|other| other.path == file.path) {
            return Err(error(format!("{} is given twice", file.path.display())));
        }
        if all.len() == BACKENDS_FILES_MAX {
            return Err(error(format!("more than {BACKENDS_FILES_MAX} files")));
        }
        let text = (host.read)(&file.path)
            .map_err(|e| error(format!("cannot read {}: {e}", file.path.display())))?;
        (file.parse)(&file.path, &text, host.read)?;
        all.push(file);
    }
    Ok(all)
}

fn compat(text: &str) -> Result<Compat, String> {
    values::choice(text, &[("vllm", Compat::Vllm)])
}

fn dns(s: &Reader<'_>) -> Result<DnsConfig, ConfigError> {
    let ttl_min = s.duration("dns-ttl-min", Duration::from_millis(100)..=HOUR)?;
    let servers = s.settings.all("dns-server").iter().map(|given| {
        values::ip_or_socket(&given.text, 53).map_err(|message| ConfigError::at(&given.source, message))
    });
    Ok(DnsConfig {
        servers: servers.collect::<Result<_, _>>()?,
        ttl_min,
        ttl_max: s.duration("dns-ttl-max", ttl_min..=DAY)?,
    })
}

fn proxy_paths(settings: &Settings) -> Result<Vec<String>, ConfigError> {
    let read = |given: &Setting| match given.text.strip_prefix('/') {
        Some(_) if !given.text.contains(['?', '#', '%']) => Ok(given.text.clone()),
        _ => Err(ConfigError::at(&given.source, format!("`{}` is no path like /pooling", given.text))),
    };
    settings.all("proxy-path").iter().map(read).collect()
}

fn prefixes(settings: &Settings, name: &'static str) -> Result<Vec<Prefix>, ConfigError> {
    let read = |given: &Setting| given.text.parse().map_err(|e| ConfigError::at(&given.source, e));
    settings.all(name).iter().map(read).collect()
}

fn hook(text: &str, devices: &[String]) -> Result<KernelHook, String> {
    match values::choice(text, &[("cgroup", KernelHook::Cgroup), ("tcx", KernelHook::Tcx)])? {
        KernelHook::Tcx if devices.is_empty() => Err("`tcx` needs a network device (kernel-dev)".to_owned()),
        hook => Ok(hook),
    }
}

/// The kernel's bound for names of devices is 15 bytes.
fn device(text: &str) -> Result<String, String> {
    if (1..=15).contains(&text.len()) && !text.contains(|c: char| c == '/' || c.is_whitespace()) {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is no name of a network device like eth0"))
    }
}

fn policy(text: &str) -> Result<PolicyName, String> {
    values::choice(text, &PolicyName::ALL.map(|p| (p.as_str(), p)))
}

/// A name that is both a header's and a member's of the body.
fn member_name(text: &str) -> Result<String, String> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if !text.is_empty() && text.len() <= 128 && text.bytes().all(is_token) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("`{text}` is no name like x-session-id"))
    }
}

fn absolute_or_relative(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("no file is named".to_owned()) } else { Ok(PathBuf::from(text)) }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("`{text}` is no absolute path")) }
}

/// Counts fit: their bounds do.
pub(super) fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
