//! `ci`: every gate, each timed; what `.ci/run` calls.
//!
//! All steps run even if one fails, the tests last. Everything is compiled in the dev profile: clippy and rustdoc
//! share the check metadata of dependencies, the tests compile them once more with code; a release build, three
//! times as dear, is not part of a gate. Invariant: a green end means that every step ran and ended well.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::paths::Workspace;
use crate::{deny, ebpf, fuzz, instructions, lint, setup, test, tidy};

type Step = (&'static str, fn(&Workspace) -> Result<()>);

const STEPS: [Step; 10] = [
    ("setup", setup::run),
    ("fmt", lint::fmt),
    ("tidy", tidy::run),
    ("clippy", lint::clippy),
    ("docs", lint::docs),
    ("deny", deny::run),
    ("ebpf --check", ebpf::check),
    ("instructions", instructions::gate),
    ("fuzz", fuzz::ci),
    ("tests", test_tiers),
];

/// The verb.
///
/// # Errors
/// When a step failed.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    let mut rows = Vec::new();
    for (name, action) in STEPS {
        println!("\n==== {name}");
        let started = Instant::now();
        let result = action(ws);
        if let Err(error) = &result {
            println!("error: {error:#}");
        }
        let took = started.elapsed();
        println!("==== {name}: {} in {:.1} s", verdict(result.is_ok()), took.as_secs_f64());
        rows.push((name, result.is_ok(), took));
    }
    println!();
    print!("{}", table(&rows));
    let failed = rows.iter().filter(|(_, is_ok, _)| !is_ok).count();
    if failed > 0 {
        bail!("{failed} of {} steps failed", rows.len());
    }
    Ok(())
}

/// Without the setup that `cargo xtask test` begins with: here it is a step of its own.
fn test_tiers(ws: &Workspace) -> Result<()> {
    let totals = test::all_tiers(ws, &test::Args::default())?;
    println!("{}", totals.line());
    if totals.failed > 0 {
        bail!("{} failed", totals.failed);
    }
    Ok(())
}

const fn verdict(is_ok: bool) -> &'static str {
    if is_ok { "ok" } else { "FAILED" }
}

fn table(rows: &[(&str, bool, Duration)]) -> String {
    let row = |name: &str, is_ok, took: Duration| {
        format!("{name:<14}{:<8}{:>8.1} s\n", verdict(is_ok), took.as_secs_f64())
    };
    let mut text: String = rows.iter().map(|(name, is_ok, took)| row(name, *is_ok, *took)).collect();
    let all = rows.iter().all(|(_, is_ok, _)| *is_ok);
    text += &row("all", all, rows.iter().map(|(_, _, took)| *took).sum());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_what_failed_and_sums_the_time() {
        let second = Duration::from_secs(1);
        let text = table(&[("fmt", true, second), ("tests", false, 2 * second)]);
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines, ["fmt ok 1.0 s", "tests FAILED 2.0 s", "all FAILED 3.0 s"]);
    }

    #[test]
    fn the_tests_are_the_last_step() {
        assert_eq!(STEPS.last().map(|(name, _)| *name), Some("tests"));
    }
}
