//! One file a subcommand.

pub mod bpf;
pub mod check;
pub mod demo;
pub mod engine;
pub mod replay;
pub mod serve;
pub mod status;
