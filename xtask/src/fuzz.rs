//! `fuzz`: the targets of `router-user/fuzz`, by cargo-fuzz with libFuzzer and the address sanitizer.
//!
//! The stable compiler is told to accept the sanitizer's flags, so that no second toolchain is needed. What a run finds
//! goes below the target directory; the committed corpus is only read. Invariant: a target that fails ends the verb
//! with an error that names the input.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::paths::Workspace;
use crate::run;
use crate::setup::tools::CARGO_FUZZ;

const TARGETS: [(&str, &str); 3] = [
    ("openai_body", "request bodies: the scanner beside serde_json, and the shape"),
    ("scrape", "metrics texts of engines"),
    ("prefix_ops", "placement under events in any order"),
];

/// Bytes of an input at most: some 256-byte blocks, and windows of the scanner, in number.
const INPUT_BYTES_MAX: usize = 20_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which target; without one, each in turn
    target: Option<String>,
    /// How long each runs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// The verb.
///
/// # Errors
/// When there is no such target, it does not build, or it finds something.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    let chosen = chosen(args.target.as_deref())?;
    CARGO_FUZZ.ensure(ws)?;
    for target in chosen {
        println!("fuzz {target}: {} s", args.seconds);
        let found = ws.target.join("fuzz/corpus").join(target);
        fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
        run::show(&mut command(ws, target, &found, args.seconds))?;
    }
    Ok(())
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
    let fuzz = ws.root.join("router-user/fuzz");
    let mut command = Command::new(ws.tool("cargo-fuzz"));
    command
        .args(["run", "--fuzz-dir"])
        .arg(&fuzz)
        .arg("--target-dir")
        .arg(ws.target.join("fuzz"))
        .arg(target)
        .arg(found)
        .arg(fuzz.join("corpus").join(target))
        .arg("--")
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-artifact_prefix={}/found-", ws.target.join("fuzz").display()))
        .arg("-print_final_stats=1")
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
    }

    #[test]
    fn a_target_is_chosen_by_its_name() {
        assert_eq!(chosen(Some("scrape")).unwrap(), ["scrape"]);
        let error = chosen(Some("scrap")).unwrap_err().to_string();
        assert!(error.contains("prefix_ops"), "{error}");
    }
}
