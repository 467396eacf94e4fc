//! `cargo xtask`: sets up, builds, checks and tests Unlatch.
//!
//! Owns every step a person or the CI takes in this repository, so that both take the same one. It does not
//! configure a machine beyond what `setup` says it does. Invariant: every file a verb makes lies below the
//! target directory, except what `ebpf --commit` and `install` are asked to write.
#![expect(clippy::print_stdout, reason = "a command-line tool talks on stdout")]

mod bpf_object;
mod ebpf;
mod paths;
mod run;
mod setup;
mod source_hash;
mod toolchain;
mod versions;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::paths::Workspace;

/// Builds, checks and tests Unlatch.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Bring what this machine lacks for building and testing; a second run does nothing
    Setup,
    /// Build the BPF object from source into the target directory
    Ebpf(ebpf::Args),
}

fn main() -> ExitCode {
    // Not `Result` from main: with RUST_BACKTRACE set it would print a backtrace below every failed command.
    match dispatch(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(verb: Verb) -> Result<()> {
    let workspace = Workspace::find()?;
    match verb {
        Verb::Setup => setup::run(&workspace),
        Verb::Ebpf(args) => ebpf::run(&workspace, &args),
    }
}
