//! The names, types and labels of vLLM 0.9 and later.

use super::family::{Family, Kind, escape};
use super::view::View;
use crate::model::BLOCK_TOKENS;

pub(super) fn families(view: &View<'_>) -> Vec<Family> {
    let labels = format!("engine=\"0\",model_name=\"{}\"", escape(view.model));
    let stats = view.stats;
    let gauge = |name: &str, help: &'static str, value: f64| {
        Family::gauge(&format!("vllm:{name}"), help, &labels, value)
    };
    let counter = |name: &str, help: &'static str, value: u64| {
        Family::counter(&format!("vllm:{name}"), help, &labels, value)
    };
    let each = |kind, name: &str, help: &'static str, series: &[(&str, u64)]| {
        Family::each(kind, &format!("vllm:{name}"), help, &labels, series)
    };
    let waiting = [("reason=\"capacity\"", u64::from(view.waiting())), ("reason=\"deferred\"", 0)];
    let is_level = |level| u64::from(view.sleep_level == Some(level));
    let sleep = [
        ("sleep_state=\"awake\"", u64::from(view.sleep_level.is_none())),
        ("sleep_state=\"weights_offloaded\"", is_level(1)),
        ("sleep_state=\"discard_all\"", is_level(2)),
    ];
    let ended = [
        ("finished_reason=\"stop\"", 0),
        ("finished_reason=\"length\"", stats.served),
        ("finished_reason=\"abort\"", stats.aborted),
    ];
    vec![
        Family::gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            "",
            view.started_at_s,
        ),
        gauge("num_requests_running", "Requests in the running batch.", view.running().into()),
        gauge("num_requests_waiting", "Requests waiting to be processed.", view.waiting().into()),
        each(Kind::Gauge, "num_requests_waiting_by_reason", "Requests waiting, by reason.", &waiting),
        each(Kind::Gauge, "engine_sleep_state", "Whether the engine is awake.", &sleep),
        gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", view.kv_usage()),
        counter("prefix_cache_queries_total", "Prompt tokens looked up in the cache.", stats.prompt_tokens),
        counter("prefix_cache_hits_total", "Prompt tokens found in the cache.", stats.cache_hit_tokens),
        counter("num_preemptions_total", "Preemptions.", stats.preempted),
        counter("prompt_tokens_total", "Prompt tokens of admitted requests.", stats.prompt_tokens),
        counter("prompt_tokens_cached_total", "Those found in the cache.", stats.cache_hit_tokens),
        counter("generation_tokens_total", "Tokens generated.", stats.generated_tokens),
        each(Kind::Counter, "request_success_total", "Requests ended, by reason.", &ended),
        cache_config(view),
    ]
}

/// It has no model name.
fn cache_config(view: &View<'_>) -> Family {
    let (blocks, tokens) = (view.config.num_gpu_blocks, view.config.max_model_tokens());
    let host = match view.config.host_blocks {
        0 => "None".to_owned(),
        blocks => blocks.to_string(),
    };
    let labels = format!(
        "block_size=\"{BLOCK_TOKENS}\",enable_prefix_caching=\"True\",engine=\"0\",\
         kv_cache_size_tokens=\"{tokens}\",num_cpu_blocks=\"{host}\",num_gpu_blocks=\"{blocks}\""
    );
    Family::gauge("vllm:cache_config_info", "The KV cache.", &labels, 1)
}
