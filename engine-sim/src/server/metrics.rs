//! `/metrics`: the names, types and labels of vLLM 0.9 and later, and `/stats`, our own view.
//!
//! Only series that the model has a value for are written; latency histograms are not among them.

use std::fmt::{Display, Write};

use serde_json::{Value, json};

use crate::model::{BLOCK_TOKENS, EngineConfig, Stats};

/// The text exposition of one engine.
pub(super) fn exposition(model: &str, config: &EngineConfig, stats: &Stats) -> String {
    let model = escape(model);
    let mut out = Exposition {
        text: String::with_capacity(4096),
        labels: format!("engine=\"0\",model_name=\"{model}\""),
    };
    out.one("vllm:num_requests_running", GAUGE, "Requests in the running batch.", stats.running);
    out.one("vllm:num_requests_waiting", GAUGE, "Requests waiting to be processed.", stats.waiting);
    out.each(
        "vllm:num_requests_waiting_by_reason",
        GAUGE,
        "Requests waiting, by reason.",
        &[("reason=\"capacity\"", u64::from(stats.waiting)), ("reason=\"deferred\"", 0)],
    );
    out.each(
        "vllm:engine_sleep_state",
        GAUGE,
        "Whether the engine is awake.",
        &[
            ("sleep_state=\"awake\"", 1),
            ("sleep_state=\"weights_offloaded\"", 0),
            ("sleep_state=\"discard_all\"", 0),
        ],
    );
    out.one("vllm:kv_cache_usage_perc", GAUGE, "Share of KV blocks in use, 0 to 1.", stats.kv_usage());
    out.one(
        "vllm:prefix_cache_queries_total",
        COUNTER,
        "Prompt tokens looked up in the cache.",
        stats.prompt_tokens,
    );
    out.one(
        "vllm:prefix_cache_hits_total",
        COUNTER,
        "Prompt tokens found in the cache.",
        stats.cache_hit_tokens,
    );
    out.one("vllm:num_preemptions_total", COUNTER, "Preemptions.", stats.preempted);
    out.one("vllm:prompt_tokens_total", COUNTER, "Prompt tokens of admitted requests.", stats.prompt_tokens);
    out.one("vllm:prompt_tokens_cached_total", COUNTER, "Those found in the cache.", stats.cache_hit_tokens);
    out.one("vllm:generation_tokens_total", COUNTER, "Tokens generated.", stats.generated_tokens);
    out.each(
        "vllm:request_success_total",
        COUNTER,
        "Requests ended, by reason.",
        &[
            ("finished_reason=\"stop\"", 0),
            ("finished_reason=\"length\"", stats.served),
            ("finished_reason=\"abort\"", stats.aborted),
        ],
    );
    let (blocks, tokens) = (stats.total_blocks, config.max_model_tokens());
    let cache = format!(
        "block_size=\"{BLOCK_TOKENS}\",enable_prefix_caching=\"True\",kv_cache_size_tokens=\"{tokens}\",num_gpu_blocks=\"{blocks}\""
    );
    out.labels = "engine=\"0\"".to_owned();
    out.each("vllm:cache_config_info", GAUGE, "The KV cache.", &[(&cache, 1)]);
    out.text
}

/// Our own view, as JSON.
pub(super) fn stats_json(
    name: &str,
    config: &EngineConfig,
    stats: &Stats,
    refused_connections: u64,
) -> Value {
    json!({
        "name": name,
        "profile": config.profile.name,
        "max_num_seqs": config.max_num_seqs,
        "running": stats.running,
        "waiting": stats.waiting,
        "arriving": stats.arriving,
        "running_peak": stats.running_peak,
        "waiting_peak": stats.waiting_peak,
        "seat_queue_peak": stats.seat_queue_peak,
        "served": stats.served,
        "aborted": stats.aborted,
        "refused": stats.refused,
        "refused_connections": refused_connections,
        "preempted": stats.preempted,
        "prompt_tokens": stats.prompt_tokens,
        "cache_hit_tokens": stats.cache_hit_tokens,
        "generated_tokens": stats.generated_tokens,
        "steps": stats.steps,
        "kv_blocks_used": stats.used_blocks,
        "kv_blocks": stats.total_blocks,
    })
}

const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

struct Exposition {
    text: String,
    /// On every series.
    labels: String,
}

impl Exposition {
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        push_line(&mut self.text, format_args!("{name}{{{}}} {value}", self.labels));
    }

    fn each(&mut self, name: &str, kind: &str, help: &str, series: &[(&str, u64)]) {
        self.head(name, kind, help);
        for (label, value) in series {
            push_line(&mut self.text, format_args!("{name}{{{},{label}}} {value}", self.labels));
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        push_line(&mut self.text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }
}

fn push_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("invariant: writing to a string cannot fail");
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
