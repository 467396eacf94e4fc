//! `bench hosts`: what a second router on another host costs, whose requests the first one's counts do not hold.
//!
//! Four engines and one or two routers, each on a host of its own (a network namespace, a cgroup and pins), and a client
//! behind a balancer that hands connections out in turn: one router, two with agents that tell in band, two without.
//! Engines and routers are fresh in each run; requests are the same. Owns the comparison; the hosts are `hosts/net`'s,
//! what runs on them `hosts/stage`'s. Invariant: all goes with the run, but for what a SIGKILL leaves. Needs root.

mod net;
mod split;
mod stage;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::Value;

use self::stage::{Fleet, Stage};
use super::http::{load_average, number};
use crate::build::{self, Profile};
use crate::paths::Workspace;
use crate::run;

const ENGINES: usize = 4;
const LOAD: &str = "0.9";
const PROFILE: &str = "h100-70b-tp4";
const KV_TOKENS: &str = "2000000";
const TRACE: &str = "../shared/traces/mooncake_conversation.jsonl.zst";
/// What the mean TTFT of two routers with agents may be of one router's.
const MOST: f64 = 1.25;
/// Requests sent later than this share of the mean TTFT, more than one in a hundred: not the requests asked for.
const LATE_MAX: f64 = 0.1;

/// Mean TTFT of two routers' hosts over one router's; exit code 1 if it is more than 1.25 with agents.
#[derive(Parser)]
#[command(name = "cargo xtask bench hosts")]
struct Options {
    /// How many times as fast as real the engines run, 1 to 10
    #[arg(long, value_name = "X", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10))]
    time_scale: u32,
    /// Requests sent in each run, at least 100; the first quarter of the time is warm-up
    #[arg(long, value_name = "N", default_value_t = 2500, value_parser = clap::value_parser!(u32).range(100..))]
    requests: u32,
    /// Decides the arrivals
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// A trace of `unlatch replay` [default: Mooncake's conversations in ../shared/traces]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Measures and compares.
///
/// # Errors
/// A process that fails, a run that is not valid, or a ratio that is too great.
pub(super) fn run(ws: &Workspace, rest: &[String]) -> Result<()> {
    if let Some((flag, words)) = rest.split_first() {
        match flag.as_str() {
            split::FLAG => return split::run(words),
            stage::STATUS_FLAG => return stage::print_status(words),
            _ => {}
        }
    }
    let words = std::iter::once("cargo xtask bench hosts").chain(rest.iter().map(String::as_str));
    let options = Options::parse_from(words);
    let trace = options.trace.clone().unwrap_or_else(|| ws.root.join(TRACE));
    if !trace.is_file() {
        println!("SKIP hosts: no trace at {}", trace.display());
        return Ok(());
    }
    let unlatch = build::router(ws, Profile::Release)?;
    println!(
        "{ENGINES} engines of {PROFILE} at load {LOAD}, {} requests at {} x real time, seed {}, in model's seconds:",
        options.requests, options.time_scale, options.seed,
    );
    let mut means = Vec::new();
    for (name, routers, tells) in
        [("one router", 1, true), ("two, agents", 2, true), ("two, no agents", 2, false)]
    {
        let fleet = Fleet { engines: ENGINES, routers, tells, time_scale: options.time_scale };
        let stage = match Stage::start(&unlatch, fleet, &["--profile", PROFILE, "--kv-tokens", KV_TOKENS]) {
            Ok(stage) => stage,
            Err(error) if means.is_empty() => {
                println!("SKIP hosts: {error:#}");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let row = measure(&stage, &unlatch, &options, &trace)?;
        stage.check_told()?;
        means.push(number(&row, "ttft_mean_s"));
        println!("{}, load average {}", line(name, &row, means[0]), load_average());
        valid(&row)?;
    }
    judge(means[1] / means[0])
}

/// Sends the requests; returns what came of them.
fn measure(stage: &Stage, unlatch: &Path, options: &Options, trace: &Path) -> Result<Value> {
    let mut replay = stage.on_clients_host(unlatch);
    replay
        .args(["replay", "--json", "--policy", "prefix-cost", "--profile", PROFILE])
        .args(["--kv-tokens", KV_TOKENS, "--engines", &ENGINES.to_string(), "--load", LOAD])
        .args(["--seed", &options.seed.to_string(), "--arrivals", &options.requests.to_string()])
        .args(["--time-scale", &options.time_scale.to_string(), "--url", &stage.url])
        .arg("--trace")
        .arg(trace)
        .stderr(Stdio::null());
    let rows: Vec<Value> =
        serde_json::from_str(&run::capture(&mut replay)?).context("the replay printed no JSON")?;
    rows.into_iter().find(|row| row["policy"] == "http").context("the replay gave no row `http`")
}

fn line(name: &str, row: &Value, one: f64) -> String {
    let [mean, p50, p99, hits, late] = ["ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "hit_ratio", "late_p99_s"]
        .map(|metric| number(row, metric));
    format!(
        "{name:<15} TTFT mean {mean:.3} ({:.3} x one), p50 {p50:.3}, p99 {p99:.3}; hits {:.1} %; late {late:.3}",
        mean / one,
        100.0 * hits
    )
}

fn valid(row: &Value) -> Result<()> {
    let (refused, late) = (number(row, "refused"), number(row, "late_p99_s"));
    if refused > 0.0 {
        bail!("not valid: {refused} requests failed");
    }
    if late.is_nan() || late > LATE_MAX * number(row, "ttft_mean_s") {
        bail!("not valid: the client was late, so the machine is too busy for this time scale");
    }
    Ok(())
}

fn judge(ratio: f64) -> Result<()> {
    if ratio.is_nan() || ratio > MOST {
        bail!("two routers with agents: {ratio:.3} x one router, not at most {MOST}");
    }
    println!("two routers with agents: {ratio:.3} x one router (at most {MOST}: met)");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{judge, line, valid};

    #[test]
    fn the_ratio_is_judged_and_no_number_is_none() {
        assert!(judge(1.25).is_ok() && judge(0.9).is_ok());
        assert!(judge(1.26).is_err() && judge(f64::NAN).is_err());
    }

    #[test]
    fn a_late_client_or_a_failed_request_makes_a_run_invalid() {
        let row =
            |late: f64, refused: u32| json!({"ttft_mean_s": 1.0, "late_p99_s": late, "refused": refused});
        assert!(valid(&row(0.05, 0)).is_ok());
        assert!(valid(&row(0.2, 0)).is_err() && valid(&row(0.05, 1)).is_err() && valid(&json!({})).is_err());
        assert!(line("two", &row(0.05, 0), 0.5).contains("2.000 x one"));
    }
}
