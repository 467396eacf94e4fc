//! The engine as a state machine: requests and `now` come in, events and the next wake-up go out.
//!
//! Reading order: [`time`], [`profile`] (what a step costs), [`prompt`] (text to tokens and block hashes),
//! [`pool`] (KV blocks and the prefix cache), `sequence`, [`config`], [`event`], [`engine`] (the scheduler), [`stats`].
//!
//! Latencies are those of a model calibrated on measured kernels, not of a GPU.
//! Invariant: the same calls with the same times give the same events, on every machine.

pub mod config;
pub mod engine;
pub mod event;
pub mod pool;
pub mod profile;
pub mod prompt;
mod sequence;
pub mod stats;
pub mod time;

pub use config::{ConfigError, EngineConfig};
pub use engine::Engine;
pub use event::{Event, EventKind, SubmitError};
pub use pool::KvPool;
pub use profile::{Profile, StepWork, UnknownProfile};
pub use prompt::{BLOCK_TOKENS, BlockHash, Prompt, PromptBuilder, TOKEN_BYTES};
pub use sequence::{Request, RequestId};
pub use stats::Stats;
pub use time::Nanos;
