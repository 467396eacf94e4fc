//! What the policy is told of a backend: its configuration, its readiness, its last report.

use crate::signal::Signal;
use crate::task::Tasks;
use crate::time::Nanos;

/// Configuration of one backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackendSpec {
    /// The base URL, for people; without credentials.
    pub url: String,
    /// The configured model; `None` = whatever the engine lists.
    pub model: Option<String>,
    /// Names under which clients may ask for the configured model.
    pub aliases: Vec<String>,
    /// What it does; requests for other work do not go there.
    pub tasks: Tasks,
    /// At most this many requests in flight; `None` = no limit.
    pub max_in_flight: Option<u32>,
    /// Configured seats (vLLM's `max_num_seqs`).
    pub max_num_seqs: Option<u32>,
    /// Configured KV pool in tokens.
    pub kv_tokens: Option<u64>,
    /// Speed relative to the others before the first samples; 1.0 when absent.
    pub weight: Option<f64>,
}

/// What an engine said of itself in one scrape. Every field is known or unknown on its own.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests running.
    pub running: Signal<u32>,
    /// Requests waiting in the engine's queue.
    pub waiting: Signal<u32>,
    /// Share of the KV pool that running requests hold, 0 to 1; the mean over several engines at one address.
    pub kv_use: Signal<f64>,
    /// KV pool in tokens (`num_gpu_blocks` × `block_size`).
    pub kv_tokens: Signal<u64>,
    /// Seats, where the engine tells them (llama.cpp's `/slots`).
    pub seats: Signal<u32>,
    /// Of everything the engine's text says of itself; equal for equal texts. `None` = nothing to compare.
    pub fingerprint: Option<u64>,
}

/// Models an engine serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Models {
    /// Not known (never answered): matches any model.
    #[default]
    Unknown,
    /// Listed by the engine, at the given time.
    Listed(Vec<String>, Nanos),
}
