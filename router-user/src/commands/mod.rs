//! One file a subcommand.

pub mod bpf;
pub mod check;
pub mod serve;
pub mod status;
