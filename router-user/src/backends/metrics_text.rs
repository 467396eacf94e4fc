//! What an engine's `/metrics` text says of its load. Pure: bytes and a time in, a [`Report`] out.
//!
//! It reads the gauges of vLLM and llama.cpp by whole names, so that `vllm:num_requests_waiting_by_reason` is not
//! taken for `vllm:num_requests_waiting`, and adds up the lines of several engines behind one address. A name that is
//! not there is unknown, never zero; a value that is no count (NaN, infinite, negative, a fraction) makes its signal
//! unknown too. Legal but unusual text is read: blanks, timestamps, exemplars, no newline at the end.

use router_policy::{Nanos, Report, Signal, Why};

/// Bytes of a text read at most; callers stop there.
pub const TEXT_BYTES_MAX: usize = 8 << 20;

/// Bytes of a line at most; a longer line counts as malformed if it has a wanted name.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Whose gauges a text holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Nobody's that we know.
    #[default]
    Unknown,
    /// vLLM's.
    Vllm,
    /// llama.cpp's.
    LlamaCpp,
}

impl Engine {
    /// Name of the gauge of running requests.
    #[must_use]
    pub const fn running_name(self) -> &'static str {
        match self {
            Self::Unknown | Self::Vllm => VLLM_RUNNING,
            Self::LlamaCpp => LLAMA_RUNNING,
        }
    }

    /// Name of the gauge of waiting requests.
    #[must_use]
    pub const fn waiting_name(self) -> &'static str {
        match self {
            Self::Unknown | Self::Vllm => VLLM_WAITING,
            Self::LlamaCpp => LLAMA_WAITING,
        }
    }
}

const VLLM_RUNNING: &str = "vllm:num_requests_running";
const VLLM_WAITING: &str = "vllm:num_requests_waiting";
const VLLM_CACHE: &str = "vllm:cache_config_info";
const LLAMA_RUNNING: &str = "llamacpp:requests_processing";
const LLAMA_WAITING: &str = "llamacpp:requests_deferred";
const PROCESS_START: &str = "process_start_time_seconds";

/// What a text says.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// The gauges; `seats` is left unheard.
    pub report: Report,
    /// Whose they are.
    pub engine: Engine,
    /// Unix time at which the process started, where the text says it: another one means that its cache is gone.
    pub process_start_seconds: Option<f64>,
}

/// Reads a text that was true at `at`. O(bytes).
#[must_use]
pub fn parse(text: &[u8], at: Nanos) -> Parsed {
    let (mut vllm, mut llama) = (Pair::default(), Pair::default());
    let mut cache = Sum::default();
    let mut process_start_seconds = None;
    for line in text.split(|&b| b == b'\n') {
        let line = line.trim_ascii_start();
        let name = &line[..line.iter().position(|b| ends_name(*b)).unwrap_or(line.len())];
        let sample = || if line.len() > LINE_BYTES_MAX { None } else { sample(&line[name.len()..]) };
        let count = || sample().and_then(|s| as_count(s.value));
        match name {
            _ if name == VLLM_RUNNING.as_bytes() => vllm.running.add(count()),
            _ if name == VLLM_WAITING.as_bytes() => vllm.waiting.add(count()),
            _ if name == VLLM_CACHE.as_bytes() => cache.add(sample().and_then(|s| pool_tokens(s.labels))),
            _ if name == LLAMA_RUNNING.as_bytes() => llama.running.add(count()),
            _ if name == LLAMA_WAITING.as_bytes() => llama.waiting.add(count()),
            _ if name == PROCESS_START.as_bytes() => {
                process_start_seconds =
                    sample().and_then(|s| s.value.parse().ok()).filter(|v: &f64| v.is_finite());
            }
            _ => {}
        }
    }
    let (engine, pair) = match (vllm.is_there(), llama.is_there()) {
        (true, _) => (Engine::Vllm, vllm),
        (false, true) => (Engine::LlamaCpp, llama),
        (false, false) => (Engine::Unknown, vllm),
    };
    let report = Report {
        running: pair.running.count(at),
        waiting: pair.waiting.count(at),
        kv_tokens: cache.signal(at),
        seats: Signal::default(),
    };
    Parsed { report, engine, process_start_seconds }
}

/// The two gauges of one engine family.
#[derive(Default)]
struct Pair {
    running: Sum,
    waiting: Sum,
}

impl Pair {
    fn is_there(&self) -> bool {
        !(matches!(self.running, Sum::Missing) && matches!(self.waiting, Sum::Missing))
    }
}

/// Sum over the lines of one name.
#[derive(Default)]
enum Sum {
    #[default]
    Missing,
    Of(u64),
    Malformed,
}

impl Sum {
    fn add(&mut self, value: Option<u64>) {
        let sum = match (&self, value) {
            (Self::Missing, Some(v)) => Some(v),
            (Self::Of(sum), Some(v)) => sum.checked_add(v),
            (Self::Malformed, _) | (_, None) => None,
        };
        *self = sum.map_or(Self::Malformed, Self::Of);
    }

    const fn signal(&self, at: Nanos) -> Signal<u64> {
        match self {
            Self::Missing => Signal::Unknown(Why::Missing),
            Self::Of(sum) => Signal::known(*sum, at),
            Self::Malformed => Signal::Unknown(Why::Malformed),
        }
    }

    fn count(&self, at: Nanos) -> Signal<u32> {
        match self.signal(at) {
            Signal::Known { value, .. } => {
                u32::try_from(value).map_or(Signal::Unknown(Why::Malformed), |v| Signal::known(v, at))
            }
            Signal::Unknown(why) => Signal::Unknown(why),
        }
    }
}

/// What follows a name: labels without their braces, and the value.
struct Sample<'a> {
    labels: &'a [u8],
    value: &'a str,
}

fn sample(rest: &[u8]) -> Option<Sample<'_>> {
    let rest = rest.trim_ascii_start();
    let (labels, rest) = match rest.strip_prefix(b"{") {
        Some(inner) => {
            let end = labels_end(inner)?;
            (&inner[..end], &inner[end + 1..])
        }
        None => (&[][..], rest),
    };
    // A timestamp or an exemplar may follow the value.
    let value = rest.trim_ascii_start().split(|b| b.is_ascii_whitespace()).next()?;
    Some(Sample { labels, value: std::str::from_utf8(value).ok()? })
}

/// Where the closing brace stands that is not inside quotes.
fn labels_end(labels: &[u8]) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    labels.iter().position(|&b| {
        let closes = b == b'}' && !quoted;
        quoted ^= b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        closes
    })
}

/// The value of a label, as it is written between its quotes.
fn label<'a>(labels: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = labels;
    loop {
        rest = rest.trim_ascii_start();
        let equals = rest.iter().position(|&b| b == b'=')?;
        let key = rest[..equals].trim_ascii_end();
        let value = rest[equals + 1..].trim_ascii_start().strip_prefix(b"\"")?;
        let mut escaped = false;
        let end = value.iter().position(|&b| {
            let closes = b == b'"' && !escaped;
            escaped = b == b'\\' && !escaped;
            closes
        })?;
        if key == name.as_bytes() {
            return Some(&value[..end]);
        }
        rest = value[end + 1..].trim_ascii_start();
        rest = rest.strip_prefix(b",").unwrap_or(rest);
    }
}

/// KV pool of one engine: `num_gpu_blocks` × `block_size`; both say `None` before the pool is made.
fn pool_tokens(labels: &[u8]) -> Option<u64> {
    let number = |name| std::str::from_utf8(label(labels, name)?).ok()?.parse::<u64>().ok();
    let tokens = number("num_gpu_blocks")?.checked_mul(number("block_size")?)?;
    (tokens > 0).then_some(tokens)
}

/// A gauge's text as a count.
fn as_count(text: &str) -> Option<u64> {
    let value = text.parse::<f64>().ok()?;
    // NaN fails each comparison. The cast is exact: a whole number within u32.
    (value >= 0.0 && value <= f64::from(u32::MAX) && value.fract() == 0.0).then_some(value as u64)
}

const fn ends_name(b: u8) -> bool {
    b == b'{' || b.is_ascii_whitespace()
}

#[cfg(test)]
#[path = "metrics_text_tests.rs"]
mod tests;
