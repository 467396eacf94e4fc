//! Every flag of their router, and what it is here.

use Means::{Lacking, NoEffect, Ours};
use Takes::{Nothing, Value};

/// One of their flags.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name without dashes; in a dynamic configuration with `_` for `-`.
    pub name: &'static str,
    /// Whether a value follows.
    pub takes: Takes,
    /// What it is here.
    pub means: Means,
}

/// Whether a flag has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// One.
    Value,
    /// None: it is a switch.
    Nothing,
}

/// What a flag is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A key of ours, or several.
    Ours(&'static str),
    /// Taken without effect, and why.
    NoEffect(&'static str),
    /// Refused, and what to use instead.
    Lacking(&'static str),
}

impl Flag {
    /// The flag of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// Whether it is a key of ours by the same name too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        super::super::settings::Key::find(self.name).is_some()
    }
}

/// Whether the text of a flag that we share is as they write it and we do not: seconds without a unit, other names of
/// levels.
#[must_use]
pub fn says_theirs(name: &str, text: &str) -> bool {
    match name {
        "request-stats-window" => text.parse::<f64>().is_ok_and(|n| n != 0.0),
        "log-level" => matches!(text, "warning" | "critical"),
        _ => false,
    }
}

const fn flag(name: &'static str, takes: Takes, means: Means) -> Flag {
    Flag { name, takes, means }
}

const K8S: Means =
    Lacking("Kubernetes is not asked; name the engines by --static-backends, or by a DNS name in --backend");
const LMCACHE: Means =
    Lacking("LMCache's controller is not asked; --policy prefix-cost knows what was placed where");
const DISAGGREGATED: Means = Lacking("prefill and decode are not placed apart");
const SEMANTIC: Means = Lacking("answers are not cached");
const BATCH: Means = Lacking("there is no batch API; it can stand in front");
const SENTRY: Means = Lacking("errors are in the log, --log-format json, and in /metrics");
const OTEL: Means =
    Lacking("no traces are exported; traceparent goes through to the engine, and --record keeps decisions");
const PRIORITY: Means = Lacking("a request's priority goes to the engine as it came, and places nothing");
const RETRIES: Means = Lacking("see --retry-statuses, --retry-budget and --reroutes-max");
const PII: Means = Lacking("bodies are passed on as they came");
const PROVIDERS: Means = Lacking("only engines of your own are backends");

/// Their flags: those of its README and parser up to September 2026, and those of its open changes that have a name.
pub const FLAGS: [Flag; 74] = [
    flag("host", Value, Ours("listen")),
    flag("port", Value, Ours("listen")),
    flag("service-discovery", Value, NoEffect("which backends there are follows from --backend")),
    flag("static-backends", Value, Ours("backend")),
    flag("static-models", Value, Ours("backend")),
    flag("static-aliases", Value, Ours("model-alias")),
    flag("static-model-labels", Value, Ours("backend")),
    flag("static-model-types", Value, Ours("backend")),
    flag("static-backend-health-checks", Nothing, Ours("inference-probe")),
    flag("routing-logic", Value, Ours("policy")),
    flag("session-key", Value, Ours("session-key")),
    flag("prefix-min-match-length", Value, Ours("prefix-min-match")),
    flag("prefixaware-fallback", Value, Ours("fallback")),
    flag("engine-stats-interval", Value, Ours("scrape-interval")),
    flag("request-stats-window", Value, Ours("request-stats-window")),
    flag("max-instance-failover-reroute-attempts", Value, Ours("reroutes-max")),
    flag("dynamic-config-json", Value, Ours("config")),
    flag("dynamic-config-yaml", Value, Ours("config")),
    flag("log-level", Value, Ours("log-level")),
    flag("log-format", Value, Ours("log-format")),
    flag(
        "log-stats",
        Nothing,
        NoEffect("statistics are not logged; they are in /metrics, /status and `unlatch top`"),
    ),
    flag(
        "log-stats-interval",
        Value,
        NoEffect("statistics are not logged; they are in /metrics, /status and `unlatch top`"),
    ),
    flag("request-rewriter", Value, NoEffect("bodies are passed on as they came")),
    flag("k8s-service-discovery-type", Value, K8S),
    flag("k8s-port", Value, K8S),
    flag("k8s-namespace", Value, K8S),
    flag("k8s-label-selector", Value, K8S),
    flag("k8s-watcher-timeout-seconds", Value, K8S),
    flag("backend-health-check-timeout-seconds", Value, Ours("inference-probe-timeout")),
    flag("static-backend-health-check-timeout-seconds", Value, Ours("inference-probe-timeout")),
    flag("static-backend-health-check-interval", Value, Ours("inference-probe")),
    flag("static-fallback-models", Value, Lacking("a request is served by the model it names or not at all")),
    flag("external-backends", Value, PROVIDERS),
    flag("external-providers-config", Value, PROVIDERS),
    flag("lmcache-controller-port", Value, LMCACHE),
    flag("lmcache-health-check-interval", Value, LMCACHE),
    flag("lmcache-worker-timeout", Value, LMCACHE),
    flag("kv-aware-threshold", Value, LMCACHE),
    flag("tokenizer-name", Value, LMCACHE),
    flag("prefix-chunk-size", Value, Lacking("prompts are compared in blocks of 256 characters")),
    flag("prefill-model-labels", Value, DISAGGREGATED),
    flag("decode-model-labels", Value, DISAGGREGATED),
    flag("nixl-proxy-host", Value, DISAGGREGATED),
    flag("nixl-proxy-port", Value, DISAGGREGATED),
    flag("nixl-peer-host", Value, DISAGGREGATED),
    flag("nixl-peer-init-port", Value, DISAGGREGATED),
    flag("nixl-peer-alloc-port", Value, DISAGGREGATED),
    flag("priority-header", Value, PRIORITY),
    flag("priority-field", Value, PRIORITY),
    flag("priority-default", Value, PRIORITY),
    flag("priority-threshold", Value, PRIORITY),
    flag("enable-retries", Nothing, RETRIES),
    flag("max-retries", Value, RETRIES),
    flag("initial-backoff-ms", Value, RETRIES),
    flag("max-backoff-ms", Value, RETRIES),
    flag("backoff-multiplier", Value, RETRIES),
    flag("jitter-factor", Value, RETRIES),
    flag("callbacks", Value, Lacking("there are no hooks in Python; a proxy in front can have them")),
    flag("enable-batch-api", Nothing, BATCH),
    flag("file-storage-class", Value, BATCH),
    flag("file-storage-path", Value, BATCH),
    flag("batch-processor", Value, BATCH),
    flag("feature-gates", Value, Lacking("nothing here is behind a gate")),
    flag("semantic-cache-model", Value, SEMANTIC),
    flag("semantic-cache-dir", Value, SEMANTIC),
    flag("semantic-cache-threshold", Value, SEMANTIC),
    flag("pii-analyzer", Value, PII),
    flag("sentry-dsn", Value, SENTRY),
    flag("sentry-traces-sample-rate", Value, SENTRY),
    flag("sentry-profile-session-sample-rate", Value, SENTRY),
    flag("otel-endpoint", Value, OTEL),
    flag("otel-service-name", Value, OTEL),
    flag("otel-secure", Nothing, OTEL),
    flag(
        "api-key",
        Value,
        Lacking("clients are not asked for a key; of an engine it is api-key-file= in --backend"),
    ),
];
