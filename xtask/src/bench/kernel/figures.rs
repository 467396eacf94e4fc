//! What the kernel tier measures while it tests: truth, kills, memory, end to end. Run at full length, its lines shown.

use anyhow::{Context, Result, bail};

use crate::build::{self, Profile};
use crate::paths::Workspace;
use crate::run;

/// The cases that measure.
const CASES: [&str; 4] = ["cost::", "truth::", "kills::", "memory::"];

/// How a case begins a line that is meant for people who measure.
const MARK: &str = "FIGURE ";

/// Runs the cases one after another, and prints what they measured.
///
/// # Errors
/// A case failed, or none measured anything.
pub(super) fn show(ws: &Workspace) -> Result<()> {
    let mut cargo = run::cargo();
    cargo.args(["test", "--quiet", "--locked", "-p", "router-tests", "--test", "kernel", "--"]);
    cargo.args(CASES).args(["--show-output", "--test-threads=1"]).current_dir(&ws.root);
    cargo.env("UNLATCH_BIN", build::binary(ws, Profile::Dev)).env("UNLATCH_LONG", "1");
    let output = cargo.output().with_context(|| format!("cannot start `{}`", run::line(&cargo)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = lines(&text);
    for line in &lines {
        println!("{line}");
    }
    if !output.status.success() {
        bail!("a case failed:\n{text}");
    }
    if lines.is_empty() {
        bail!("nothing was measured:\n{text}");
    }
    Ok(())
}

fn lines(output: &str) -> Vec<&str> {
    output.lines().filter_map(|line| line.strip_prefix(MARK)).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_figures_are_shown() {
        let output = "running 2 tests\n..\n---- a stdout ----\nFIGURE a: 1 ms\nnoise\nFIGURE b: 2\n";
        assert_eq!(super::lines(output), ["a: 1 ms", "b: 2"]);
    }
}
