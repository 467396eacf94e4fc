//! One file a subcommand.

pub mod agent;
pub mod bpf;
pub mod check;
mod client;
pub mod demo;
pub mod edge;
pub mod engine;
mod output;
mod pins;
pub mod replay;
pub mod serve;
pub mod status;
#[cfg(feature = "top")]
pub mod top;
