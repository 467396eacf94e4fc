//! The cargo tools of exact versions, built with their own lock files below `target/tools`.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::paths::Workspace;
use crate::run;
use crate::setup::Outcome;

/// One program from crates.io.
pub(crate) struct Tool {
    name: &'static str,
    pub(crate) version: &'static str,
    /// Where speed does not matter, `dev` halves the wait.
    profile: &'static str,
}

pub(crate) const BPF_LINKER: Tool = Tool { name: "bpf-linker", version: "0.10.3", profile: "release" };
pub(crate) const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", profile: "dev" };
/// Not part of `setup`: only `fuzz` wants it.
pub(crate) const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2", profile: "dev" };

impl Tool {
    /// Whether the program is there, starts, and is the wanted version.
    pub(crate) fn is_present(&self, ws: &Workspace) -> bool {
        let text = run::capture(Command::new(ws.tool(self.name)).arg("--version"));
        text.is_ok_and(|text| text.split_whitespace().nth(1) == Some(self.version))
    }

    /// Installs the program unless it is there.
    ///
    /// # Errors
    /// When cargo cannot fetch or build it.
    pub(crate) fn ensure(&self, ws: &Workspace) -> Result<Outcome> {
        let place = ws.show(&ws.tool(self.name));
        if self.is_present(ws) {
            return Ok(Outcome::Present(format!("{} {place}", self.version)));
        }
        println!("  {}: building {} {} (a minute or two)", self.name, self.name, self.version);
        let build = ws.tools().join("build");
        let mut cargo = run::cargo();
        cargo
            .args(["install", self.name, "--version", &format!("={}", self.version), "--locked", "--force"])
            .args(["--quiet", "--profile", self.profile, "--root"])
            .arg(ws.tools())
            .arg("--target-dir")
            .arg(&build)
            .env("CARGO_NET_RETRY", "5")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            // `cargo install` warns when the place is not in PATH; nobody calls these by name.
            .env("PATH", path_with(ws)?);
        run::show(&mut cargo).with_context(|| {
            format!(
                "crates.io must be reachable for `cargo install {} --version {}`",
                self.name, self.version
            )
        })?;
        // Half a gigabyte that nobody needs again.
        fs::remove_dir_all(&build).ok();
        anyhow::ensure!(self.is_present(ws), "{place} was built but does not start as {}", self.version);
        Ok(Outcome::Brought(format!("built {} as {place}", self.version)))
    }
}

fn path_with(ws: &Workspace) -> Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain([ws.tools().join("bin")]);
    std::env::join_paths(dirs).context("the target directory's path has a colon")
}
