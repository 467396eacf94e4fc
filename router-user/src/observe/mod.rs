//! What the router shows: metrics ([`metrics`]), the state of its backends ([`status`]), the admin listener that
//! serves both ([`admin`]), its log ([`tracing`]); and the same of an agent ([`agent`]). It reads and never steers.

pub mod admin;
pub mod agent;
pub mod metrics;
pub mod status;
pub mod tracing;

pub use status::{BackendStatus, IndexStatus, KernelStatus, Status, StatusSource};
