//! Debian packages whose programs the tests and benchmarks start.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::paths::find_program;
use crate::run;
use crate::setup::Outcome;

/// A program and the package that brings it.
pub(crate) type Wanted = (&'static str, &'static str);

/// What `cargo xtask test`, the demo and the gates start.
pub(crate) const FOR_TESTS: &[Wanted] =
    &[("bpftool", "bpftool"), ("ip", "iproute2"), ("valgrind", "valgrind")];

/// What the tier `browser` starts; hundreds of megabytes, so apart from the others.
pub(crate) const FOR_BROWSER: &[Wanted] = &[("chromium", "chromium")];

/// Installs the packages of the programs that are missing.
///
/// # Errors
/// When one is missing and this user may not install, or apt fails.
pub(crate) fn ensure(wanted: &[Wanted]) -> Result<Outcome> {
    let missing = missing(wanted, |program| find_program(program).is_some());
    if missing.is_empty() {
        let names: Vec<_> = wanted.iter().map(|(program, _)| *program).collect();
        return Ok(Outcome::Present(names.join(", ")));
    }
    let by_hand = format!("run `apt-get install {}` as root", missing.join(" "));
    if find_program("apt-get").is_none() {
        bail!("no apt-get here: install {} by other means", missing.join(", "));
    }
    if !is_root() {
        bail!("{by_hand}");
    }
    run::retry(2, "apt-get", || {
        run::capture(apt_get().arg("update"))?;
        run::capture(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(&missing))
    })
    .with_context(|| by_hand.clone())?;
    if let Some((program, _)) = wanted.iter().find(|(program, _)| find_program(program).is_none()) {
        bail!("apt-get installed {}, but there is no {program}", missing.join(" "));
    }
    Ok(Outcome::Brought(format!("installed {} by apt-get", missing.join(", "))))
}

fn missing(wanted: &[Wanted], is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    wanted.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect()
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.args(["-qq", "-o", "Acquire::Retries=3"]).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_programs_name_their_package() {
        assert_eq!(missing(FOR_TESTS, |program| program != "ip"), ["iproute2"]);
        assert!(missing(FOR_TESTS, |_| true).is_empty());
    }
}
