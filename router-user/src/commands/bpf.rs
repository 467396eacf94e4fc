//! `unlatch bpf status|detach`: what is attached and pinned, and taking it off.
#![expect(clippy::print_stdout, reason = "this command's answer")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::status::UNAVAILABLE;
use crate::account::view::{self, Pinned, View};
use crate::account::{Detach, KernelError, Link, detach};

/// The programs and maps that are attached and pinned
#[derive(Args, Clone, Debug)]
pub struct BpfArgs {
    #[command(subcommand)]
    verb: Verb,
    /// Directory of pins
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "UNLATCH_PIN_DIR",
        default_value = "/sys/fs/bpf/unlatch"
    )]
    pin_dir: PathBuf,
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
/// None so far.
pub fn run(args: &BpfArgs) -> anyhow::Result<ExitCode> {
    let refused = match args.verb {
        Verb::Status => match status(&args.pin_dir) {
            Ok(()) => return Ok(ExitCode::SUCCESS),
            Err(error) => error.to_string(),
        },
        Verb::Detach { force } => {
            let how = if force { Detach::Forced } else { Detach::Careful };
            match detach(&args.pin_dir, how) {
                Ok(was) => {
                    report(&was);
                    return Ok(ExitCode::SUCCESS);
                }
                Err(error) => error.to_string(),
            }
        }
    };
    eprintln!("unlatch bpf: {refused}");
    Ok(ExitCode::from(UNAVAILABLE))
}

fn status(pin_dir: &Path) -> Result<(), KernelError> {
    let pinned = view::pinned(pin_dir)?;
    if pinned.maps.is_empty() && pinned.links.is_empty() {
        println!("nothing is pinned under {}", pinned.path.display());
        return Ok(());
    }
    println!("pins      {}", pinned.path.display());
    println!("maps      {}", pinned.maps.join(" "));
    match View::open(pin_dir) {
        Ok(view) => {
            for (slot, worker) in view.workers() {
                println!("router    pid {} in slot {slot}", worker.pid);
            }
        }
        Err(error) => println!("unreadable: {error}"),
    }
    for link in &pinned.links {
        println!("program   {}", describe(link));
    }
    Ok(())
}

fn describe(link: &Link) -> String {
    let Link { program, program_id, tag, cgroup_id, path } = link;
    match cgroup_id {
        0 => format!(
            "{program} (id {program_id}, tag {tag}) without effect, its cgroup is gone: {}",
            path.display()
        ),
        id => format!("{program} (id {program_id}, tag {tag}) on cgroup {id}"),
    }
}

fn report(was: &Pinned) {
    if was.maps.is_empty() && was.links.is_empty() {
        println!("nothing was pinned under {}", was.path.display());
        return;
    }
    for link in &was.links {
        println!("detached {}", describe(link));
    }
    println!("unpinned {}", was.maps.join(" "));
}
