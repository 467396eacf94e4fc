//! `test`: every tier that this machine can run, counted honestly.
//!
//! Tiers: `unit` (tests beside the code and in `tests/` of the crates), `doc`, one for each test binary of the
//! package router-tests, and `matrix` (the router on other kernels). What cargo tests is selected from the same
//! default members, so that it resolves one set of features and compiles every dependency once; but `long`, of
//! `--long`, is built with optimisation. Invariant: the last line is the sum of all tiers, and a tier that does not
//! build is a failure in it.

mod matrix;
mod parse;

use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::build::{self, Profile};
use crate::ebpf;
use crate::paths::Workspace;
use crate::run::{self, Watchdog};
use crate::setup::{self, node_sdk, sdk};
use crate::test::parse::{Parser, Totals};

const TIER_PACKAGE: &str = "router-tests";
/// Name of [`long_tier`].
const LONG: &str = "long";

/// Far beyond what a tier takes: a test that hangs must not hang the gate. Compiling is done before.
const LIMIT: Duration = Duration::from_secs(600);
const LONG_LIMIT: Duration = Duration::from_secs(3600);

#[derive(Default, clap::Args)]
pub(crate) struct Args {
    /// Also what takes minutes per case
    #[arg(long)]
    long: bool,
    /// Only this tier; repeatable
    #[arg(long, value_name = "NAME")]
    tier: Vec<String>,
}

/// What is run and counted together.
struct Tier {
    name: String,
    tests: Tests,
}

enum Tests {
    /// A `cargo test` of this selection.
    Cargo(Vec<String>),
    /// [`matrix`].
    Matrix,
}

/// The verb.
///
/// # Errors
/// When there is nothing to test with. A failed test is an exit code, so that the totals stay the last line.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    setup::everything(ws)?;
    let totals = all_tiers(ws, args)?;
    println!("{}", totals.line());
    Ok(if totals.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Builds and runs the tiers that are asked for, prints each skip with its reason.
///
/// # Errors
/// When cargo itself cannot be used, or there is no such tier.
pub(crate) fn all_tiers(ws: &Workspace, args: &Args) -> Result<Totals> {
    let mut tiers = tiers(ws)?;
    tiers.push(Tier { name: "matrix".to_owned(), tests: Tests::Matrix });
    tiers.push(long_tier());
    let tiers = chosen(tiers, args)?;
    let mut totals = Totals::default();
    if let Err(error) = build_all(ws) {
        println!("error: {error:#}");
        totals.failed = 1;
        return Ok(totals);
    }
    let mut skips = Vec::new();
    let mut rows = Vec::new();
    for tier in &tiers {
        println!("\n== {}", tier.name);
        let started = Instant::now();
        let is_long = args.long || tier.name == LONG;
        let (of_tier, skipped) = match &tier.tests {
            Tests::Cargo(selection) => run_cargo(ws, &tier.name, selection, is_long)?,
            Tests::Matrix => matrix::run(ws, is_long)?,
        };
        rows.push(format!("{:>7.1} s  {:<8} {}", started.elapsed().as_secs_f64(), tier.name, of_tier.line()));
        skips.extend(skipped.into_iter().map(|skip| format!("SKIP {} {skip}", tier.name)));
        totals.add(of_tier);
    }
    println!();
    for line in skips.iter().chain(&rows) {
        println!("{line}");
    }
    Ok(totals)
}

/// The tiers that are named; else all, but `long` only if asked for.
fn chosen(mut tiers: Vec<Tier>, args: &Args) -> Result<Vec<Tier>> {
    let is_known = |name: &&String| tiers.iter().any(|tier| tier.name == **name);
    if let Some(unknown) = args.tier.iter().find(|name| !is_known(name)) {
        let names: Vec<_> = tiers.iter().map(|tier| tier.name.as_str()).collect();
        bail!("no tier {unknown}; there are {}", names.join(", "));
    }
    tiers.retain(|tier| match args.tier.as_slice() {
        [] => args.long || tier.name != LONG,
        named => named.contains(&tier.name),
    });
    Ok(tiers)
}

/// The object, and everything that a tier compiles or starts. With the tests, so that the router is built with the
/// features that they give its dependencies.
fn build_all(ws: &Workspace) -> Result<()> {
    ebpf::build_if_possible(ws)?;
    run::show(run::cargo().args(["build", "--locked", "--lib", "--bins", "--tests"]).current_dir(&ws.root))
}

fn run_cargo(
    ws: &Workspace,
    name: &str,
    selection: &[String],
    is_long: bool,
) -> Result<(Totals, Vec<String>)> {
    let mut cargo = run::cargo();
    cargo
        .args(["test", "--locked", "--no-fail-fast"])
        .args(selection)
        // libtest shows the output of a passed test, and so its skip, only when asked.
        .args(["--", "--show-output"])
        .env("UNLATCH_BIN", build::binary(ws, Profile::Dev))
        .current_dir(&ws.root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if is_long {
        cargo.env("UNLATCH_LONG", "1");
    }
    if sdk::is_present(ws) {
        cargo.env("UNLATCH_SDK_PYTHON", sdk::python(ws));
    }
    if node_sdk::is_present(ws) {
        cargo.env("UNLATCH_SDK_NODE", node_sdk::folder(ws));
    }
    let mut child = cargo.spawn().with_context(|| format!("cannot start `{}`", run::line(&cargo)))?;
    let stdout = child.stdout.take().context("invariant: standard output is piped")?;
    let limit = if is_long { LONG_LIMIT } else { LIMIT };
    let watchdog = Watchdog::watch(child.id(), limit);
    let mut parser = Parser::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if parser.line(&line) {
            println!("{line}");
        }
    }
    if watchdog.stop() {
        println!("error: tier {} did not end within {} s and was killed", name, limit.as_secs());
    }
    Ok(parser.finish(child.wait()?.success()))
}

fn tiers(ws: &Workspace) -> Result<Vec<Tier>> {
    let mut metadata = run::cargo();
    metadata.args(["metadata", "--no-deps", "--locked", "--format-version", "1"]).current_dir(&ws.root);
    tiers_in(&run::capture(&mut metadata)?)
}

/// What would take an hour without optimisation: built for itself, as the others run as they are developed.
fn long_tier() -> Tier {
    let selection = ["--release", "-p", "router-policy", "--test", "churn"].map(str::to_owned).into();
    Tier { name: LONG.to_owned(), tests: Tests::Cargo(selection) }
}

/// The tiers, from cargo's description of the workspace.
fn tiers_in(metadata: &str) -> Result<Vec<Tier>> {
    let metadata: serde_json::Value = serde_json::from_str(metadata)?;
    let mut unit = vec!["--lib".to_owned(), "--bins".to_owned()];
    let mut named = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata without packages")? {
        for target in package["targets"].as_array().into_iter().flatten() {
            let Some(name) = target["name"].as_str().filter(|_| target["kind"][0] == "test") else {
                continue;
            };
            let selection = ["--test".to_owned(), name.to_owned()];
            if package["name"] == TIER_PACKAGE {
                named.push(Tier { name: name.to_owned(), tests: Tests::Cargo(selection.into()) });
            } else {
                unit.extend(selection);
            }
        }
    }
    let mut tiers = vec![
        Tier { name: "unit".to_owned(), tests: Tests::Cargo(unit) },
        Tier { name: "doc".to_owned(), tests: Tests::Cargo(vec!["--doc".to_owned()]) },
    ];
    tiers.append(&mut named);
    Ok(tiers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_binary_of_the_test_package_is_a_tier_and_others_are_unit_tests() {
        let metadata = r#"{"packages":[
            {"name":"router-policy","targets":[{"name":"router_policy","kind":["lib"]},{"name":"props","kind":["test"]}]},
            {"name":"router-tests","targets":[{"name":"router_tests","kind":["lib"]},
                {"name":"sim","kind":["test"]},{"name":"kernel","kind":["test"]}]}]}"#;
        let tiers = tiers_in(metadata).unwrap();
        let selection = |tier: &Tier| match &tier.tests {
            Tests::Cargo(selection) => selection.join(" "),
            Tests::Matrix => String::new(),
        };
        let list: Vec<_> = tiers.iter().map(|tier| (tier.name.as_str(), selection(tier))).collect();
        let want = [
            ("unit", "--lib --bins --test props"),
            ("doc", "--doc"),
            ("sim", "--test sim"),
            ("kernel", "--test kernel"),
        ];
        assert_eq!(list, want.map(|(name, selection)| (name, selection.to_owned())));
    }

    #[test]
    fn a_tier_alone_is_named_and_long_is_asked_for() {
        let names = |tier: &[&str], long| {
            let all = ["unit", "sim", LONG].map(|name| Tier { name: name.to_owned(), tests: Tests::Matrix });
            let tier = tier.iter().map(|&name| name.to_owned()).collect();
            let names: Vec<_> =
                chosen(all.into(), &Args { long, tier })?.into_iter().map(|tier| tier.name).collect();
            anyhow::Ok(names.join(" "))
        };
        assert_eq!(names(&[], false).unwrap(), "unit sim");
        assert_eq!(names(&[], true).unwrap(), "unit sim long");
        assert_eq!(names(&["sim"], true).unwrap(), "sim");
        assert_eq!(names(&["long"], false).unwrap(), "long");
        let error = names(&["sim", "simm"], false).unwrap_err().to_string();
        assert_eq!(error, "no tier simm; there are unit, sim, long");
    }
}
