//! `demo`: from a fresh machine to a burst of sessions that spreads, in one command.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::build::{self, Profile};
use crate::paths::Workspace;
use crate::run;
use crate::setup;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Replay real agent sessions over HTTP (minutes) instead of the burst
    #[arg(long)]
    real: bool,
    /// Passed on to `unlatch demo`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// The verb; ends as the demo ends.
///
/// # Errors
/// When the router does not build or start. A machine without a BPF toolchain is not an error: the committed
/// object is embedded.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    setup::everything(ws)?;
    let mut demo = Command::new(build::router(ws, Profile::Release)?);
    demo.arg("demo").args(args.real.then_some("--real")).args(&args.rest).current_dir(&ws.root);
    let status = demo.status().with_context(|| format!("cannot start `{}`", run::line(&demo)))?;
    // Ended by a signal: no code of its own.
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
