//! One file a subcommand.

pub mod check;
