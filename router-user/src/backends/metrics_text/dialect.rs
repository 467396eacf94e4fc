//! Whose names mean what. The one place that knows how an engine calls its gauges.

use memchr::memchr2;

/// An engine whose names we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// vLLM, all generations of its names.
    Vllm,
    /// SGLang.
    Sglang,
    /// Text Generation Inference.
    Tgi,
    /// llama.cpp.
    LlamaCpp,
    /// TensorRT-LLM under `trtllm-serve`.
    TrtLlm,
    /// TensorRT-LLM under Triton.
    Triton,
}

impl Engine {
    /// All of them. Of two whose gauges one text holds the first counts.
    pub const ALL: [Self; 6] =
        [Self::Vllm, Self::Sglang, Self::Tgi, Self::LlamaCpp, Self::TrtLlm, Self::Triton];

    /// The name as configuration and status write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Tgi => "tgi",
            Self::LlamaCpp => "llamacpp",
            Self::TrtLlm => "trtllm",
            Self::Triton => "triton",
        }
    }

    /// The engine of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|e| e.as_str() == name)
    }

    /// Name of the gauge of running requests.
    #[must_use]
    pub const fn running_name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm:num_requests_running",
            Self::Sglang => "sglang:num_running_reqs",
            Self::Tgi => "tgi_batch_current_size",
            Self::LlamaCpp => "llamacpp:requests_processing",
            Self::TrtLlm => "trtllm_num_requests_running",
            Self::Triton => TRITON_REQUESTS,
        }
    }

    /// Name of the gauge of waiting requests.
    #[must_use]
    pub const fn waiting_name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm:num_requests_waiting",
            Self::Sglang => "sglang:num_queue_reqs",
            Self::Tgi => "tgi_queue_size",
            Self::LlamaCpp => "llamacpp:requests_deferred",
            Self::TrtLlm => "trtllm_num_requests_waiting",
            Self::Triton => TRITON_REQUESTS,
        }
    }

    /// How all of its names begin.
    const fn prefix(self) -> &'static [u8] {
        match self {
            Self::Vllm => b"vllm:",
            Self::Sglang => b"sglang:",
            Self::Tgi => b"tgi_",
            Self::LlamaCpp => b"llamacpp:",
            Self::TrtLlm => b"trtllm_",
            Self::Triton => b"nv_trt_llm_",
        }
    }

    /// What follows that in the names that are wanted.
    const fn names(self) -> &'static [(&'static [u8], Gauge)] {
        use Gauge as G;
        match self {
            Self::Vllm => &[
                (b"num_requests_running", G::Running),
                (b"num_requests_waiting", G::Waiting),
                // Up to 0.7: pushed out to host memory, still to be done.
                (b"num_requests_swapped", G::Swapped),
                (b"kv_cache_usage_perc", G::KvUse),
                // Up to 0.8, and beside the new name for some versions.
                (b"gpu_cache_usage_perc", G::KvUseOld),
                (b"cache_config_info", G::CacheInfo),
                (b"engine_sleep_state", G::SleepState),
                (b"prompt_tokens_total", G::Counted),
            ],
            Self::Sglang => &[
                (b"num_running_reqs", G::Running),
                (b"num_queue_reqs", G::Waiting),
                (b"token_usage", G::KvUse),
                (b"prompt_tokens_total", G::Counted),
                (b"max_total_num_tokens", G::PoolTokens),
            ],
            Self::Tgi => &[
                (b"batch_current_size", G::Running),
                (b"queue_size", G::Waiting),
                (b"batch_max_total_tokens", G::PoolTokens),
            ],
            Self::LlamaCpp => &[
                (b"requests_processing", G::Running),
                (b"requests_deferred", G::Waiting),
                (b"prompt_tokens_total", G::Counted),
                // Gone from newer builds.
                (b"kv_cache_usage_ratio", G::KvUse),
            ],
            Self::TrtLlm => &[
                (b"num_requests_running", G::Running),
                (b"num_requests_waiting", G::Waiting),
                (b"kv_cache_utilization", G::KvUse),
                (b"kv_cache_max_blocks", G::PoolBlocks),
                (b"kv_cache_tokens_per_block", G::BlockTokens),
            ],
            Self::Triton => {
                &[(b"request_metrics", G::TritonRequests), (b"kv_cache_block_metrics", G::TritonBlocks)]
            }
        }
    }
}

const TRITON_REQUESTS: &str = "nv_trt_llm_request_metrics";
const PROCESS_START: &[u8] = b"process_start_time_seconds";

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gauge {
    Running,
    Waiting,
    Swapped,
    KvUse,
    KvUseOld,
    /// The pool in its labels.
    CacheInfo,
    /// Whether it is awake, one line a state.
    SleepState,
    PoolTokens,
    PoolBlocks,
    BlockTokens,
    /// A counter that only grows while the process lives.
    Counted,
    /// Requests of all states, told apart by a label.
    TritonRequests,
    TritonBlocks,
}

/// What a line's beginning says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// An engine's gauge that is wanted, and what follows its name.
    Wanted(Engine, Gauge, &'a [u8]),
    /// Another line of an engine.
    Of(Engine),
    /// When the process started, and what follows that name.
    ProcessStart(&'a [u8]),
    Other,
}

/// Looks at the beginning of a line that begins with no blank. A few comparisons for most lines.
#[inline]
pub(super) fn look(line: &[u8]) -> Line<'_> {
    let engine = match line.first() {
        Some(b'v') => Engine::Vllm,
        Some(b's') => Engine::Sglang,
        Some(b'l') => Engine::LlamaCpp,
        Some(b'n') => Engine::Triton,
        Some(b't') if line.starts_with(Engine::Tgi.prefix()) => Engine::Tgi,
        Some(b't') => Engine::TrtLlm,
        Some(b'p') => {
            return match line.strip_prefix(PROCESS_START) {
                Some(rest) if ends_name(rest) => Line::ProcessStart(rest),
                _ => Line::Other,
            };
        }
        _ => return Line::Other,
    };
    let Some(rest) = line.strip_prefix(engine.prefix()) else { return Line::Other };
    for (name, gauge) in engine.names() {
        // The first byte tells most apart without a call.
        if rest.first() == name.first()
            && let Some(after) = rest.strip_prefix(*name)
            && ends_name(after)
        {
            return Line::Wanted(engine, *gauge, after);
        }
    }
    Line::Of(engine)
}

/// Whether a name that stands before this is whole.
fn ends_name(after: &[u8]) -> bool {
    after.first().is_none_or(|b| *b == b'{' || b.is_ascii_whitespace())
}

/// The name a sample line begins with.
pub(super) fn name_of(line: &[u8]) -> &[u8] {
    let end = memchr2(b'{', b' ', line).unwrap_or(line.len());
    line[..end].trim_ascii_end()
}
