//! `lint`: formatting, clippy and documentation, with warnings refused.
//!
//! Default members only: the BPF crate compiles for its own target and is checked by `ebpf`; formatting covers it.

use anyhow::Result;

use crate::paths::Workspace;
use crate::run;

/// The verb: all three, in the order of what they cost.
///
/// # Errors
/// With the first that finds something.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    fmt(ws)?;
    clippy(ws)?;
    docs(ws)
}

pub(crate) fn fmt(ws: &Workspace) -> Result<()> {
    run::show(run::cargo().args(["fmt", "--all", "--", "--check"]).current_dir(&ws.root))
}

pub(crate) fn clippy(ws: &Workspace) -> Result<()> {
    let mut cargo = run::cargo();
    cargo.args(["clippy", "--locked", "--all-targets", "--", "-D", "warnings"]);
    run::show(cargo.current_dir(&ws.root))
}

/// Private items too: most of what is documented here is read in the source, links included. So a link from a public
/// item to a private one is fine.
pub(crate) fn docs(ws: &Workspace) -> Result<()> {
    let mut cargo = run::cargo();
    cargo.args(["doc", "--locked", "--no-deps", "--document-private-items"]);
    run::show(
        cargo.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links").current_dir(&ws.root),
    )
}
