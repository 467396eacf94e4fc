//! `deny`: duplicate crates, licences and sources of dependencies, by cargo-deny and `deny.toml`.
//!
//! Not the advisories: their database is another download, and it changes while the checkout does not.

use std::process::Command;

use anyhow::{Result, bail};

use crate::paths::Workspace;
use crate::run;
use crate::setup::tools::CARGO_DENY;

/// Runs the three checks on the locked dependencies.
///
/// # Errors
/// When cargo-deny is missing or refuses something.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    if !CARGO_DENY.is_present(ws) {
        bail!("cargo-deny {} is missing: run `cargo xtask setup`", CARGO_DENY.version);
    }
    let mut deny = Command::new(ws.tool("cargo-deny"));
    deny.args([
        "--locked",
        "--all-features",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]);
    run::show(deny.current_dir(&ws.root))
}
