//! `unlatch demo`: embedded engines, a real router, real sockets; ends by itself.
//!
//! [`burst`] is the story of eight sessions under three policies, [`real`] replays recorded agent sessions.
//! [`stage`] starts and stops engines and router, [`client`] is the client, [`ideal`] the engine model's own
//! answer, [`kernel_view`] the kernel's counters. Nothing stays attached or pinned, also after Ctrl-C.

mod burst;
mod client;
mod ideal;
mod kernel_view;
mod real;
mod sessions;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

/// `unlatch demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Replay recorded agent sessions over HTTP instead (under 5 minutes).
    #[arg(long)]
    pub real: bool,
    /// Sessions to replay with --real: JSON lines, plain or .zst; the built-in slice when absent.
    #[arg(long, value_name = "FILE", requires = "real")]
    pub trace: Option<PathBuf>,
    /// Engines with --real, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "real", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub engines: u8,
    /// How much faster than real time the engines of --real run, 1 to 100; pauses shrink alike.
    #[arg(long, value_name = "X", default_value_t = 4, requires = "real", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub time_scale: u8,
}

/// Runs the demo. Exit 0 if it showed what it should, 1 if not.
///
/// # Errors
/// An engine or a router that could not start, an answer that broke off, an unreadable trace.
pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the demo's threads")?;
    runtime.block_on(async {
        let mut stop = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let demo = async {
            if args.real {
                let sessions = sessions::load(args.trace.as_deref())?;
                real::run(&sessions, usize::from(args.engines), f64::from(args.time_scale)).await
            } else {
                burst::run().await
            }
        };
        // Whichever ends first; a signal drops the demo, whose stage cleans up when dropped.
        tokio::select! {
            shown = demo => Ok(if shown? { ExitCode::SUCCESS } else { ExitCode::from(1) }),
            _ = tokio::signal::ctrl_c() => interrupted(),
            _ = stop.recv() => interrupted(),
        }
    })
}

fn interrupted() -> anyhow::Result<ExitCode> {
    anyhow::bail!("interrupted; nothing is left attached or pinned")
}
