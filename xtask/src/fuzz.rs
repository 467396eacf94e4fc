//! `fuzz`: the targets of `router-user/fuzz`, by cargo-fuzz with libFuzzer and the address sanitizer.
//!
//! The stable compiler is told to accept the sanitizer's flags, so that no second toolchain is needed. What a run finds
//! goes below the target directory; the committed corpus is only read. Invariant: a target that fails ends the verb
//! with an error that names the input.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::paths::Workspace;
use crate::run::{self, Running};
use crate::setup::tools::CARGO_FUZZ;

const TARGETS: [(&str, &str); 8] = [
    ("openai_body", "request bodies: the scanner beside serde_json, and the shape"),
    ("scrape", "metrics texts of engines"),
    ("prefix_ops", "placement under events in any order"),
    ("framing", "requests: the router cuts them as hyper does"),
    ("answer", "answers: the router reads them as hyper does"),
    ("events", "streams of events: comments change none"),
    ("replay", "what is sent again, and what never"),
    ("state", "what is saved over restarts"),
];

/// What stands between clients and engines is fuzzed in each CI run, for so many seconds, all at once.
const CI_TARGETS: [&str; 5] = ["openai_body", "framing", "answer", "events", "replay"];
const CI_SECONDS: u64 = 30;

/// Bytes of an input at most: some 256-byte blocks, and windows of the scanner, in number.
const INPUT_BYTES_MAX: usize = 20_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which target; without one, each in turn
    target: Option<String>,
    /// How long each runs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// What `ci` runs, as it does
    #[arg(long, conflicts_with_all = ["target", "seconds"])]
    ci: bool,
}

/// The verb.
///
/// # Errors
/// When there is no such target, it does not build, or it finds something.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    if args.ci {
        return ci(ws);
    }
    let chosen = chosen(args.target.as_deref())?;
    CARGO_FUZZ.ensure(ws)?;
    for target in chosen {
        println!("fuzz {target}: {} s", args.seconds);
        let found = found_dir(ws, target)?;
        run::show(&mut command(ws, target, &found, args.seconds))?;
    }
    Ok(())
}

/// The step of `ci`: builds once, then runs side by side.
///
/// # Errors
/// As [`run()`].
pub(crate) fn ci(ws: &Workspace) -> Result<()> {
    CARGO_FUZZ.ensure(ws)?;
    run::show(&mut cargo_fuzz(ws, "build"))?;
    let mut running = Vec::new();
    for target in CI_TARGETS {
        let found = found_dir(ws, target)?;
        let log = ws.target.join("fuzz").join(format!("{target}.log"));
        let output = fs::File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut command = command(ws, target, &found, CI_SECONDS);
        command.stdout(Stdio::null()).stderr(output);
        running.push((target, log, Running::start(&mut command)?));
    }
    for (target, log, mut process) in running {
        let status = process.0.wait()?;
        let said = fs::read_to_string(&log)?;
        if !status.success() {
            bail!("{target} found something:\n{said}");
        }
        let runs = said.lines().find(|line| line.contains("number_of_executed_units")).unwrap_or_default();
        println!("{target}: {runs}");
    }
    Ok(())
}

fn found_dir(ws: &Workspace, target: &str) -> Result<PathBuf> {
    let found = ws.target.join("fuzz/corpus").join(target);
    fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
    Ok(found)
}

fn chosen(target: Option<&str>) -> Result<Vec<&'static str>> {
    let all = || TARGETS.iter().map(|(name, _)| *name);
    let chosen: Vec<_> = all().filter(|name| target.is_none_or(|wanted| wanted == *name)).collect();
    if chosen.is_empty() {
        let list: Vec<_> = TARGETS.iter().map(|(name, about)| format!("\n{name:<12} {about}")).collect();
        bail!("no fuzz target `{}`; there are:{}", target.unwrap_or_default(), list.concat());
    }
    Ok(chosen)
}

/// `found` comes first: it is where libFuzzer writes.
fn command(ws: &Workspace, target: &str, found: &Path, seconds: u64) -> Command {
    let mut command = cargo_fuzz(ws, "run");
    command
        .arg(target)
        .arg(found)
        .arg(ws.root.join("router-user/fuzz/corpus").join(target))
        .arg("--")
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-artifact_prefix={}/found-", ws.target.join("fuzz").display()))
        .arg("-print_final_stats=1");
    command
}

fn cargo_fuzz(ws: &Workspace, verb: &str) -> Command {
    let mut command = Command::new(ws.tool("cargo-fuzz"));
    command
        .args([verb, "--fuzz-dir"])
        .arg(ws.root.join("router-user/fuzz"))
        .arg("--target-dir")
        .arg(ws.target.join("fuzz"))
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(&ws.root);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_targets_are_those_of_the_fuzz_crate_and_have_a_corpus() {
        let ws = Workspace::find().unwrap();
        let manifest = fs::read_to_string(ws.root.join("router-user/fuzz/Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let bins = manifest["bin"].as_array().unwrap();
        let names: Vec<_> = bins.iter().map(|bin| bin["name"].as_str().unwrap()).collect();
        assert_eq!(names, chosen(None).unwrap());
        for name in names {
            let corpus = fs::read_dir(ws.root.join("router-user/fuzz/corpus").join(name)).unwrap();
            assert!(corpus.count() > 0, "{name}");
        }
        assert!(CI_TARGETS.iter().all(|target| chosen(Some(target)).is_ok()));
    }

    #[test]
    fn a_target_is_chosen_by_its_name() {
        assert_eq!(chosen(Some("scrape")).unwrap(), ["scrape"]);
        let error = chosen(Some("scrap")).unwrap_err().to_string();
        assert!(error.contains("prefix_ops"), "{error}");
    }
}
