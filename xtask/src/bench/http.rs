//! `bench http`: the TTFT of a real router between a real client and simulated engines, all processes of their own
//! that talk HTTP over loopback, beside what `unlatch replay` says for the same requests in virtual time.
//!
//! Owns the comparison, and when a run is not valid; requests, client and figures are `unlatch replay --url`'s, the
//! processes `stage`'s. Invariant: both sides get the same requests, and seconds are the engine model's.

mod several;
pub(crate) mod stage;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::Value;

use crate::build::{self, Profile};
use crate::paths::Workspace;
use crate::run;
use stage::Stage;

const ENGINES: usize = 8;
const LOAD: &str = "0.9";
const PROFILE: &str = "h100-70b-tp4";
const KV_TOKENS: &str = "2000000";
const TRACE: &str = "../shared/traces/mooncake_conversation.jsonl.zst";
/// What the mean over HTTP may be of the mean in virtual time.
const RATIO: (f64, f64) = (0.9, 1.1);
/// Requests sent later than this share of the mean TTFT, more than one in a hundred: not the requests asked for.
const LATE_MAX: f64 = 0.1;

/// Mean TTFT over HTTP beside that of the replay in virtual time; exit code 1 if they differ by more than 10 %.
#[derive(Parser)]
#[command(name = "cargo xtask bench http")]
struct Options {
    /// How many times as fast as real the engines run, 1 to 10
    #[arg(long, value_name = "X", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10))]
    time_scale: u32,
    /// Requests sent, at least 100; the first quarter of the time is warm-up
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..))]
    requests: u32,
    /// Decides the arrivals
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Router processes that take the requests in turn and share counts and gossip, 1 to 16: beside one process alone.
    /// More than one needs root and a BPF file system
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    routers: u8,
    /// A trace of `unlatch replay` [default: Mooncake's conversations in ../shared/traces]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Measures and compares.
///
/// # Errors
/// A process that fails, a run that is not valid, or a ratio out of its bounds.
pub(super) fn run(ws: &Workspace, rest: &[String]) -> Result<()> {
    let words = std::iter::once("cargo xtask bench http").chain(rest.iter().map(String::as_str));
    let options = Options::parse_from(words);
    let trace = options.trace.clone().unwrap_or_else(|| ws.root.join(TRACE));
    if !trace.is_file() {
        println!("SKIP http: no trace at {}", trace.display());
        return Ok(());
    }
    let router = build::router(ws, Profile::Release)?;
    let (one, _) = measure(&router, &trace, &options, 1)?;
    if options.routers == 1 {
        return one.judge();
    }
    let (all, stage) = measure(&router, &trace, &options, usize::from(options.routers))?;
    several::judge(&one, &all, &stage)
}

/// Sends all requests to so many routers, and prints what came of it.
fn measure(router: &Path, trace: &Path, options: &Options, routers: usize) -> Result<(Compared, Stage)> {
    let engine = ["--profile", PROFILE, "--kv-tokens", KV_TOKENS];
    let stage = Stage::start(router, ENGINES, &engine, options.time_scale, routers)?;
    let load_before = load_average();
    let mut replay = Command::new(router);
    replay
        .args(["replay", "--json", "--policy", "prefix-cost", "--profile", PROFILE])
        .args(["--kv-tokens", KV_TOKENS, "--engines", &ENGINES.to_string(), "--load", LOAD])
        .args(["--seed", &options.seed.to_string(), "--arrivals", &options.requests.to_string()])
        .args(["--time-scale", &options.time_scale.to_string(), "--url", &stage.urls()])
        .arg("--trace")
        .arg(trace)
        .stderr(Stdio::inherit());
    let rows = run::capture(&mut replay)?;
    println!(
        "router processes: {routers}; {ENGINES} engines of {PROFILE} at load {LOAD}, {} requests at {} x real time, seed {}; load average {load_before}, then {}",
        options.requests,
        options.time_scale,
        options.seed,
        load_average(),
    );
    let compared = Compared::of(&rows)?;
    compared.lines(options.time_scale).iter().for_each(|line| println!("{line}"));
    Ok((compared, stage))
}

/// The two rows of the replay.
struct Compared {
    http: Value,
    replay: Value,
}

impl Compared {
    fn of(json: &str) -> Result<Self> {
        let rows: Vec<Value> = serde_json::from_str(json).context("the replay printed no JSON")?;
        let row = |name: &str| {
            let row = rows.iter().find(|row| row["policy"] == name).cloned();
            row.with_context(|| format!("the replay gave no row `{name}`"))
        };
        Ok(Self { http: row("http")?, replay: row("prefix-cost")? })
    }

    fn lines(&self, time_scale: u32) -> Vec<String> {
        let mut lines =
            vec![format!("{:<12} {:>9} {:>9} {:>6}", "model's s", "over HTTP", "replay", "ratio")];
        for (name, metric) in [
            ("TTFT mean", "ttft_mean_s"),
            ("TTFT p50", "ttft_p50_s"),
            ("TTFT p99", "ttft_p99_s"),
            ("e2e mean", "e2e_mean_s"),
            ("hit ratio", "hit_ratio"),
        ] {
            let (http, replay) = (number(&self.http, metric), number(&self.replay, metric));
            lines.push(format!("{name:<12} {http:>9.3} {replay:>9.3} {:>6.3}", http / replay));
        }
        let late = number(&self.http, "late_p99_s");
        let real_ms = late * 1e3 / f64::from(time_scale);
        lines.push(format!(
            "sent late by {late:.3} s at most, 99 % of the requests ({real_ms:.1} ms of real time)"
        ));
        lines
    }

    fn judge(&self) -> Result<()> {
        self.check()?;
        let (http, replay) = (number(&self.http, "ttft_mean_s"), number(&self.replay, "ttft_mean_s"));
        let ratio = http / replay;
        if !(RATIO.0..=RATIO.1).contains(&ratio) {
            bail!("mean TTFT over HTTP is {ratio:.3} x the replay's, not {} to {}", RATIO.0, RATIO.1);
        }
        println!("mean TTFT over HTTP is {ratio:.3} x the replay's ({} to {}: met)", RATIO.0, RATIO.1);
        Ok(())
    }

    /// Whether the run is valid.
    fn check(&self) -> Result<()> {
        let replay = number(&self.replay, "ttft_mean_s");
        let refused = number(&self.http, "refused") + number(&self.replay, "refused");
        if refused > 0.0 {
            bail!("not valid: {refused} requests failed");
        }
        let late = number(&self.http, "late_p99_s");
        if late.is_nan() || late > LATE_MAX * replay {
            bail!("not valid: the client was late, so the machine is too busy for this time scale");
        }
        Ok(())
    }
}

/// Of the last minute.
pub(super) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().filter(|word| !word.is_empty()).unwrap_or("unknown").to_owned()
}

/// Not a number where there is none: it fails every comparison.
pub(super) fn number(row: &Value, metric: &str) -> f64 {
    row[metric].as_f64().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(http_mean: f64, late: f64, refused: u64) -> Compared {
        let rows = format!(
            r#"[{{"policy":"prefix-cost","ttft_mean_s":1.0,"refused":0}},
            {{"policy":"http","ttft_mean_s":{http_mean},"late_p99_s":{late},"refused":{refused}}}]"#
        );
        Compared::of(&rows).unwrap()
    }

    #[test]
    fn a_ratio_within_its_bounds_passes_and_no_other() {
        for (mean, passes) in [(1.0, true), (0.91, true), (1.09, true), (0.89, false), (1.11, false)] {
            assert_eq!(compared(mean, 0.01, 0).judge().is_ok(), passes, "{mean}");
        }
    }

    #[test]
    fn a_late_client_or_a_failed_request_makes_a_run_invalid() {
        for found in [compared(1.0, 0.2, 0), compared(1.0, 0.01, 1), compared(1.0, 1e9, 0)] {
            assert!(found.judge().unwrap_err().to_string().starts_with("not valid"));
        }
    }

    #[test]
    fn what_the_replay_leaves_out_is_no_result() {
        assert!(Compared::of("[]").is_err());
        assert!(Compared::of("").is_err());
        let empty = Compared { http: Value::Null, replay: Value::Null };
        assert!(empty.judge().is_err());
        assert!(compared(1.5, 0.08, 0).lines(4).iter().any(|line| line.contains("20.0 ms of real time")));
    }
}
