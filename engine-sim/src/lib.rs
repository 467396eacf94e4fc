//! The simulated inference engine.
//!
//! Reading order: [`model`], a pure and deterministic model of a continuous-batching engine in virtual time
//! (no IO, no clock, no task, no randomness), [`faults`], as pure: which request gets which fault, then [`server`],
//! a thin HTTP server that lets the model run in real time and speaks as much of vLLM's dialect as a router looks at.
//!
//! Invariant: every number a client can see (tokens, cache hits, queue length, timing) comes from the model;
//! the server only turns texts into prompts and tokens into texts.
#![warn(missing_docs)]

pub mod faults;
mod mix;
pub mod model;
pub mod server;

pub use faults::{Dialect, Fault, Faults, Rule};
pub use model::{Engine, EngineConfig, Nanos, Profile, Prompt, Request, RequestId};
pub use server::{Config, Handle, Server, StartError};
