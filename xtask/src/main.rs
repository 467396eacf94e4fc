//! `cargo xtask`: sets up, builds, checks and tests Unlatch.
//!
//! Owns every step a person or the CI takes in this repository, so that both take the same one. It does not
//! configure a machine beyond what `setup` says it does. Invariant: every file a verb makes lies below the
//! target directory, except what `ebpf --commit` and `install` are asked to write.
#![expect(clippy::print_stdout, reason = "a command-line tool talks on stdout")]

mod bench;
mod bpf_object;
mod build;
mod ci;
mod demo;
mod deny;
mod ebpf;
mod fuzz;
mod install;
mod instructions;
mod lint;
mod paths;
mod run;
mod setup;
mod source_hash;
mod test;
mod tidy;
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
    /// Build the BPF object and the router
    Build(build::Args),
    /// Install the binary, the systemd unit and an example configuration
    Install(install::Args),
    /// Set up, build, and run the demo
    Demo(demo::Args),
    /// Set up, build, and run every test tier that this machine can run
    Test(test::Args),
    /// Check rules of this repository: who uses what, file length, leftovers
    Tidy,
    /// Check formatting, clippy and documentation
    Lint,
    /// Check licences, sources and duplicates of dependencies
    Deny,
    /// Measure; without a name, list what can be measured
    Bench(bench::Args),
    /// Fuzz what reads bytes from outside, and the placement
    Fuzz(fuzz::Args),
    /// Run every gate, as the CI does
    Ci,
}

fn main() -> ExitCode {
    // Not `Result` from main: with RUST_BACKTRACE set it would print a backtrace below every failed command.
    dispatch(Cli::parse().verb).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn dispatch(verb: Verb) -> Result<ExitCode> {
    let ws = Workspace::find()?;
    match verb {
        Verb::Setup => setup::run(&ws)?,
        Verb::Ebpf(args) => ebpf::run(&ws, &args)?,
        Verb::Build(args) => build::run(&ws, &args)?,
        Verb::Install(args) => install::run(&ws, &args)?,
        Verb::Demo(args) => return demo::run(&ws, &args),
        Verb::Test(args) => return test::run(&ws, &args),
        Verb::Tidy => tidy::run(&ws)?,
        Verb::Lint => lint::run(&ws)?,
        Verb::Deny => deny::run(&ws)?,
        Verb::Bench(args) => bench::run(&ws, &args)?,
        Verb::Fuzz(args) => fuzz::run(&ws, &args)?,
        Verb::Ci => ci::run(&ws)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_a_verb_does_not_know_is_passed_on() {
        for line in ["demo --trace f --real", "demo --real --trace f", "bench peers --rounds 5"] {
            let words = ["cargo xtask"].into_iter().chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
        assert!(
            Cli::try_parse_from(["cargo xtask", "test", "--lnog"]).is_err(),
            "a mistyped flag is refused"
        );
    }
}
