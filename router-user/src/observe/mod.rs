//! What the router shows: metrics ([`metrics`]), the state of its backends ([`status`]), the admin listener that
//! serves both ([`admin`]), its log ([`tracing`]); and the same of an agent ([`agent`]); `encode` writes families for both. It reads and never steers.

pub mod admin;
pub mod agent;
mod encode;
pub mod metrics;
mod reports;
pub mod status;
pub mod tracing;
pub mod vllm;

pub use status::{BackendStatus, IndexStatus, KernelStatus, Status, StatusSource};
