//! `build`: the BPF object, where its toolchain is, and the router that embeds it.

use std::path::PathBuf;

use anyhow::Result;

use crate::ebpf;
use crate::paths::Workspace;
use crate::run;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build as it is meant to be run: optimised, with line tables
    #[arg(long)]
    release: bool,
}

/// What is optimised for: a short build or a fast program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

impl Profile {
    /// The profile's directory below the target directory.
    const fn dir(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

/// The verb.
///
/// # Errors
/// When something does not build.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    let binary = router(ws, if args.release { Profile::Release } else { Profile::Dev })?;
    println!("{}", ws.show(&binary));
    Ok(())
}

/// Builds object and router; returns the binary.
///
/// # Errors
/// When something does not build.
pub(crate) fn router(ws: &Workspace, profile: Profile) -> Result<PathBuf> {
    ebpf::build_if_possible(ws)?;
    let mut cargo = run::cargo();
    cargo.args(["build", "--locked", "--package", "router-user"]).current_dir(&ws.root);
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    run::show(&mut cargo)?;
    Ok(binary(ws, profile))
}

/// Where cargo leaves the router.
pub(crate) fn binary(ws: &Workspace, profile: Profile) -> PathBuf {
    ws.target.join(profile.dir()).join("unlatch")
}
