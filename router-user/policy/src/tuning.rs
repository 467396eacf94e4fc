//! The numbers of the policy, each with unit, bounds and the effect of zero. Defaults are policy.md's.

/// Every constant that shapes a decision. Values are checked where they are read from configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// What a token of prefill costs each request in flight beside it, in tokens; 0 to 10. 0: disturbing others is
    /// free. Flat optimum 0.1 to 0.5.
    pub disturbance: f64,
    /// What a prompt token in flight costs in slower decoding, in tokens; 0 to 10. 0: decoding load is free. Flat
    /// optimum 0.03 to 0.1.
    pub context: f64,
    /// Decode time (first byte to end) assumed before any sample, seconds; 0 to 3600.
    pub decode_seconds_start: f64,
    /// Samples that the assumed decode time counts for beside those of an engine, so that one odd answer does not make
    /// waiting for a seat look free; 0 to 1000. 0: the first sample takes its place.
    pub decode_start_samples: f64,
    /// Least mean decode time in the seat term, seconds; 0 to 3600. 0: waiting for a seat may look free.
    pub decode_seconds_min: f64,
    /// Prefill rate assumed before any sample, tokens per second; 1 to 1e7.
    pub prefill_rate_start: f64,
    /// Least mean prefill rate in the seat term, tokens per second; 1 to 1e7.
    pub prefill_rate_min: f64,
    /// KV pool assumed where nobody tells, tokens; 1 to 2^30.
    pub kv_tokens_default: u64,
    /// Bytes of JSON text per prompt token before any usage was seen; 1 to 16.
    pub chars_per_token_start: f64,
    /// Weight of a new sample of decode time; 0 (keep the first) to 1 (keep the last).
    pub decode_gain: f64,
    /// Weight of a new sample of the prefill rate; 0 to 1.
    pub prefill_rate_gain: f64,
    /// Weight of a new sample of characters per token; 0 to 1.
    pub chars_per_token_gain: f64,
    /// Uncached tokens above which a prefill says something about the rate; 0: every one does.
    pub prefill_rate_min_tokens: u64,
    /// Times its predicted prefill that a stream may be unanswered before it counts as waiting for a seat; 0 to 1000.
    pub patience_factor: f64,
    /// Added to that, seconds; 0 to 3600.
    pub patience_seconds: f64,
    /// Report intervals over which a report fades and after which it is stale; above 0 to 1000.
    pub report_fade_intervals: f64,
    /// `session`, `consistent-hash`: a backend is passed over when it has more than this times the mean in flight;
    /// 1 to 100. 1: as even as possible.
    pub hash_load_factor: f64,
    /// Whether a backend's cost is weighed by its speed (mean R / R), for pools of unequal engines.
    pub weigh_by_speed: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            disturbance: 0.2,
            context: 0.05,
            decode_seconds_start: 5.0,
            decode_start_samples: 4.0,
            decode_seconds_min: 0.5,
            prefill_rate_start: 15_000.0,
            prefill_rate_min: 1000.0,
            kv_tokens_default: 400_000,
            chars_per_token_start: 4.0,
            decode_gain: 0.05,
            prefill_rate_gain: 0.1,
            chars_per_token_gain: 0.05,
            prefill_rate_min_tokens: 512,
            patience_factor: 4.0,
            patience_seconds: 0.5,
            report_fade_intervals: 3.0,
            hash_load_factor: 1.25,
            weigh_by_speed: false,
        }
    }
}
