//! The names of SGLang, TGI, llama.cpp and trtllm-serve for what routers read of them.
//!
//! Not here: anything these engines export that has no counterpart in the model.

use serde_json::{Value, json};

use super::family::{Family, escape};
use super::view::View;
use crate::model::BLOCK_TOKENS;

/// SGLang.
pub(super) fn sglang(view: &View<'_>) -> Vec<Family> {
    let model = escape(view.model);
    let labels = format!("engine_type=\"unified\",model_name=\"{model}\",pp_rank=\"0\",tp_rank=\"0\"");
    let gauge = |name: &str, help: &'static str, value: f64| {
        Family::gauge(&format!("sglang:{name}"), help, &labels, value)
    };
    vec![
        gauge("num_running_reqs", "The number of running requests.", view.running().into()),
        gauge("num_queue_reqs", "The number of requests in the waiting queue.", view.waiting().into()),
        gauge("token_usage", "The token usage.", view.kv_usage()),
        gauge("num_used_tokens", "The number of used tokens.", view.used_tokens().into()),
        gauge(
            "max_total_num_tokens",
            "Tokens that the KV cache holds.",
            view.config.max_model_tokens().into(),
        ),
        gauge("cache_hit_rate", "The cache hit rate.", view.hit_rate()),
        Family::counter("sglang:prompt_tokens_total", "Prefill tokens.", &labels, view.stats.prompt_tokens),
        Family::counter(
            "sglang:generation_tokens_total",
            "Generation tokens.",
            &labels,
            view.stats.generated_tokens,
        ),
    ]
}

/// Text-generation-inference; it has no labels.
pub(super) fn tgi(view: &View<'_>) -> Vec<Family> {
    let gauge = |name: &str, help: &'static str, value: u32| Family::gauge(name, help, "", value);
    vec![
        gauge("tgi_batch_current_size", "Current batch size.", view.running()),
        gauge("tgi_queue_size", "Current queue size.", view.waiting()),
        gauge("tgi_batch_current_max_tokens", "Tokens the current batch may grow to.", view.used_tokens()),
        gauge("tgi_batch_max_total_tokens", "Tokens a batch may have.", view.config.max_model_tokens()),
    ]
}

/// llama.cpp; it has no labels, and its prompt tokens are those not found in the cache.
pub(super) fn llamacpp(view: &View<'_>) -> Vec<Family> {
    let stats = view.stats;
    let gauge = |name: &str, help: &'static str, value: u32| {
        Family::gauge(&format!("llamacpp:{name}"), help, "", value)
    };
    let counter = |name: &str, help: &'static str, value: u64| {
        Family::counter(&format!("llamacpp:{name}"), help, "", value)
    };
    let computed = stats.prompt_tokens - stats.cache_hit_tokens;
    vec![
        counter(
            "prompt_tokens_total",
            "Number of prompt tokens processed, excluding cached tokens",
            computed,
        ),
        counter(
            "prompt_tokens_cached_total",
            "Number of prompt tokens reused from the cache",
            stats.cache_hit_tokens,
        ),
        counter("tokens_predicted_total", "Number of generation tokens processed", stats.generated_tokens),
        counter("n_decode_total", "Total number of llama_decode() calls", stats.steps),
        gauge("requests_processing", "Number of requests processing", view.running()),
        gauge("requests_deferred", "Number of requests deferred", view.waiting()),
    ]
}

/// llama.cpp's `/slots`: one object a seat, those in use first.
pub(in crate::server) fn slots(view: &View<'_>) -> Value {
    let (seats, running) = (view.config.max_num_seqs, view.running());
    let context = view.config.max_model_tokens() / seats.max(1);
    (0..seats).map(|id| json!({"id": id, "n_ctx": context, "is_processing": id < running})).collect()
}

/// trtllm-serve's `/prometheus/metrics`.
pub(super) fn trtllm(view: &View<'_>) -> Vec<Family> {
    let stats = view.stats;
    let labels = format!("engine_type=\"unified\",model_name=\"{}\"", escape(view.model));
    let gauge = |name: &str, help: &'static str, value: f64| {
        Family::gauge(&format!("trtllm_{name}"), help, &labels, value)
    };
    let counter = |name: &str, help: &'static str, tokens: u64| {
        Family::counter(&format!("trtllm_{name}"), help, &labels, tokens / u64::from(BLOCK_TOKENS))
    };
    vec![
        gauge("num_requests_running", "Requests running.", view.running().into()),
        gauge("num_requests_waiting", "Requests waiting.", view.waiting().into()),
        gauge("kv_cache_utilization", "Share of KV blocks in use.", view.kv_usage()),
        gauge("kv_cache_hit_rate", "Share of blocks found in the cache.", view.hit_rate()),
        counter("kv_cache_reused_blocks_total", "Blocks found in the cache.", stats.cache_hit_tokens),
        counter(
            "kv_cache_missed_blocks_total",
            "Blocks not found in the cache.",
            stats.prompt_tokens - stats.cache_hit_tokens,
        ),
        gauge("kv_cache_max_blocks", "KV blocks.", view.config.num_gpu_blocks.into()),
        gauge("kv_cache_tokens_per_block", "Tokens of a block.", BLOCK_TOKENS.into()),
    ]
}

/// trtllm-serve's `/metrics`: the latest iteration, as JSON.
pub(super) fn trtllm_iterations(view: &View<'_>) -> Value {
    let (blocks, used) = (view.config.num_gpu_blocks, view.used_blocks());
    json!([{
        "iter": view.stats.steps,
        "numActiveRequests": view.running(),
        "numQueuedRequests": view.waiting(),
        "kvCacheStats": {
            "maxNumBlocks": blocks,
            "usedNumBlocks": used,
            "freeNumBlocks": blocks - used.min(blocks),
            "tokensPerBlock": BLOCK_TOKENS,
            "cacheHitRate": view.hit_rate(),
        },
    }])
}
