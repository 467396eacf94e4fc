//! `unlatch bpf status|detach`: what is attached and pinned, and taking it off.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output;
use super::pins::PinArgs;
use super::status::UNAVAILABLE;
use crate::account::view::{self, Pinned, View};
use crate::account::{At, Detach, DetachError, Link, detach};
use crate::edge::{self, EdgeError};

/// The programs and maps that are attached and pinned
#[derive(Args, Clone, Debug)]
pub struct BpfArgs {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    pins: PinArgs,
}

#[derive(Subcommand, Clone, Debug)]
enum Verb {
    /// Show what is attached and pinned
    Status,
    /// Take off every program and remove every pin; the totals are lost
    Detach {
        /// Also under running routers, and what is of another layout
        #[arg(long)]
        force: bool,
    },
}

/// Shows or takes off; exits 69 if that cannot be done.
///
/// # Errors
/// The answer cannot be written.
pub fn run(args: &BpfArgs) -> anyhow::Result<ExitCode> {
    let refused = match args.verb {
        Verb::Status => match status(&args.pins.pin_dir) {
            Ok(text) => return output::answer(&text).map(|()| ExitCode::SUCCESS),
            Err(error) => error.to_string(),
        },
        Verb::Detach { force } => {
            let how = if force { Detach::Forced } else { Detach::Careful };
            match detach_all(&args.pins.pin_dir, how) {
                Ok(text) => return output::answer(&text).map(|()| ExitCode::SUCCESS),
                Err(error) => error.to_string(),
            }
        }
    };
    output::tell(format_args!("unlatch bpf: {refused}"));
    Ok(ExitCode::from(UNAVAILABLE))
}

fn status(pin_dir: &Path) -> Result<String, EdgeError> {
    let pinned = view::pinned(pin_dir)?;
    let edge = edge::view::pinned(pin_dir)?;
    if pinned.maps.is_empty() && pinned.links.is_empty() {
        let text = format!("nothing is pinned under {}\n", pinned.path.display());
        return Ok(text + &edge_lines(&edge, "program  ", "edge maps"));
    }
    let mut text = format!("pins      {}\nmaps      {}\n", pinned.path.display(), pinned.maps.join(" "));
    match View::open(pin_dir) {
        Ok(view) => {
            for (slot, worker) in view.workers() {
                let gone = if view.is_alive(slot) { "" } else { ", gone" };
                let _ = writeln!(text, "router    pid {} in slot {slot}{gone}", worker.pid);
            }
        }
        Err(error) => {
            let _ = writeln!(text, "unreadable: {error}");
        }
    }
    for link in &pinned.links {
        let _ = writeln!(text, "program   {}", describe(link));
    }
    Ok(text + &edge_lines(&edge, "program  ", "edge maps"))
}

/// The edge guard's share of a listing: its programs and its maps, each with a word before.
fn edge_lines(edge: &edge::view::Pinned, program: &str, maps: &str) -> String {
    let mut text = String::new();
    for device in &edge.devices {
        let (name, mode) = (device.label(), device.mode.as_str());
        let _ = writeln!(text, "{program} edge_guard on device {name} ({mode})");
    }
    if !edge.maps.is_empty() {
        let _ = writeln!(text, "{maps} {}", edge.maps.join(" "));
    }
    text
}

/// Takes off the load signal and the edge guard, or nothing.
fn detach_all(pin_dir: &Path, how: Detach) -> anyhow::Result<String> {
    let edge = edge::view::pinned(pin_dir)?;
    if how == Detach::Careful && !edge.pids.is_empty() {
        return Err(DetachError::Live(edge.pids).into());
    }
    let text = report(&detach(pin_dir, how)?);
    edge::view::detach(pin_dir)?;
    Ok(text + &edge_lines(&edge, "detached", "unpinned"))
}

fn describe(link: &Link) -> String {
    let Link { program, program_id, tag, at, path, .. } = link;
    let program = format!("{program} (id {program_id}, tag {tag})");
    match at {
        At::Gone => {
            format!("{program} without effect, its cgroup or device is gone: {}", path.display())
        }
        At::Cgroup(_) | At::Device(_) => format!("{program} on {}", link.place()),
    }
}

fn report(was: &Pinned) -> String {
    if was.maps.is_empty() && was.links.is_empty() {
        return format!("nothing was pinned under {}\n", was.path.display());
    }
    let mut text = String::new();
    for link in &was.links {
        let _ = writeln!(text, "detached {}", describe(link));
    }
    let _ = writeln!(text, "unpinned {}", was.maps.join(" "));
    text
}
