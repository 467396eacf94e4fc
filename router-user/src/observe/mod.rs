//! What the router shows: metrics ([`metrics`]), the state of its backends ([`status`]), the admin plane that
//! serves both, with a page, and passes on what operators change ([`admin`]), its log ([`tracing`]); and the same of an agent ([`agent`]); `collector` and `encode` write families for both. Itself it reads and never steers.

pub mod admin;
pub mod agent;
mod collector;
mod encode;
pub mod metrics;
mod reports;
pub mod status;
pub mod tracing;
pub mod vllm;

pub use status::{BackendStatus, IndexStatus, KernelStatus, Requests, Status, StatusSource};
