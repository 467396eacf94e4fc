//! `unlatch demo`: embedded engines, a real router, real sockets; ends by itself.
//!
//! [`burst`] is the story of eight sessions under three policies, [`real`] replays recorded agent sessions.
//! [`stage`] starts and stops engines and router, `commands/client` is the client, [`ideal`] the engine model's own
//! answer, [`kernel_view`] the kernel's counters. Nothing stays attached or pinned, also after Ctrl-C.

mod burst;
mod ideal;
mod kernel_view;
mod real;
mod sessions;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;

use super::output;
use crate::cli::EXIT_USAGE;
use crate::shutdown::Signals;

/// How often the progress bar moves its clock on.
const TICK: Duration = Duration::from_millis(250);

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

/// Runs the demo. Exit 0 if it showed what it should, 1 if not, 64 if the trace cannot be read.
///
/// # Errors
/// An engine or a router that could not start, an answer that broke off, an interruption.
pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let sessions = match args.real.then(|| sessions::load(args.trace.as_deref())).transpose() {
        Ok(sessions) => sessions,
        Err(error) => {
            output::tell(format_args!("unlatch demo: {error:#}"));
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the demo's threads")?;
    runtime.block_on(async {
        // Before anything is pinned: from then on a signal must find its handler.
        let mut signals = Signals::new().context("cannot listen for signals")?;
        let demo = async {
            match &sessions {
                Some(sessions) => {
                    real::run(sessions, usize::from(args.engines), f64::from(args.time_scale)).await
                }
                None => burst::run().await,
            }
        };
        // Whichever ends first; a signal drops the demo, whose stage cleans up when dropped, and says if it could not.
        tokio::select! {
            shown = demo => Ok(if shown? { ExitCode::SUCCESS } else { ExitCode::from(1) }),
            () = signals.next() => anyhow::bail!("interrupted"),
        }
    })
}

/// Says what the demo does now: in the bar, or in a line where there is no terminal to draw it on.
fn enter(bar: &ProgressBar, phase: String) {
    if bar.is_hidden() {
        output::tell(&phase);
    }
    bar.set_message(phase);
}
