//! One file a subcommand.

pub mod bpf;
pub mod status;
