//! `setup`: what a machine with nothing but Rust and Debian lacks for building and testing.
//!
//! Each step looks first and acts only on what is missing, says what it did and how long it took. Looking means
//! the files and programs themselves: no stamp is trusted. A step that cannot help itself says in one line what
//! to do, and the others go on. Invariant: outside the target directory only two things change, both announced:
//! rustup's own component, and Debian packages when run by root.

mod apt;
pub(crate) mod debian;
pub(crate) mod emulator;
pub(crate) mod guest_kernel;
pub(crate) mod node_sdk;
pub(crate) mod rust_src;
pub(crate) mod sdk;
pub(crate) mod tools;

use std::time::Instant;

use anyhow::{Result, bail};

use crate::paths::Workspace;
use crate::toolchain::Rustc;

/// How a step ended.
pub(crate) enum Outcome {
    /// It was there; where or which.
    Present(String),
    /// It was brought; how.
    Brought(String),
}

/// The verb.
///
/// # Errors
/// When something is still missing afterwards.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    let missing = everything(ws)?;
    if missing > 0 {
        bail!("{missing} of the above missing");
    }
    Ok(())
}

/// All steps; returns how many things are still missing, each of which has been named.
///
/// # Errors
/// When there is no usable rustc.
pub(crate) fn everything(ws: &Workspace) -> Result<usize> {
    let rustc = Rustc::find()?;
    let started = Instant::now();
    let steps = [
        step("rust-src", || rust_src::ensure(ws, &rustc)),
        step("bpf-linker", || tools::BPF_LINKER.ensure(ws)),
        step("cargo-deny", || tools::CARGO_DENY.ensure(ws)),
        step("Debian packages", || debian::ensure(debian::FOR_TESTS)),
        step("Chromium", || debian::ensure(debian::FOR_BROWSER)),
        step("OpenAI SDK", || sdk::ensure(ws)),
        step("OpenAI SDK for Node", || node_sdk::ensure(ws)),
    ];
    println!("setup: {:.1} s", started.elapsed().as_secs_f64());
    Ok(steps.iter().filter(|ok| !**ok).count())
}

/// Only what building the BPF object needs.
///
/// # Errors
/// When something of it is missing and cannot be brought.
pub(crate) fn bpf_toolchain(ws: &Workspace) -> Result<()> {
    let rustc = Rustc::find()?;
    let steps = [
        step("rust-src", || rust_src::ensure(ws, &rustc)),
        step("bpf-linker", || tools::BPF_LINKER.ensure(ws)),
    ];
    if steps.contains(&false) {
        bail!("the BPF object cannot be built here; the committed one is embedded instead");
    }
    Ok(())
}

/// Runs one step and reports it; `false` when the thing is still missing.
pub(crate) fn step(name: &str, action: impl FnOnce() -> Result<Outcome>) -> bool {
    let started = Instant::now();
    let outcome = action();
    let seconds = started.elapsed().as_secs_f64();
    match outcome {
        Ok(Outcome::Present(what)) => println!("  {name}: present, {what} ({seconds:.1} s)"),
        Ok(Outcome::Brought(what)) => println!("  {name}: {what} ({seconds:.1} s)"),
        Err(error) => {
            println!("  {name}: MISSING: {error:#} ({seconds:.1} s)");
            return false;
        }
    }
    true
}
