//! `bench policy`: how near the default policy comes to the oracle, by `unlatch replay` over the traces of
//! `../shared/traces`.
//!
//! Owns the cells and the arithmetic over them; the measuring is the router's. Invariant: what is compared comes
//! from one run over one set of arrivals.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::build::{self, Profile};
use crate::paths::Workspace;
use crate::run;

const TRACES: [(&str, &str); 2] =
    [("conversation", "mooncake_conversation.jsonl.zst"), ("toolagent_like", "toolagent_like.jsonl.zst")];
const ENGINES: [u32; 3] = [2, 8, 64];
const LOADS: [f64; 2] = [0.7, 0.9];
const KV_TOKENS: &str = "2000000";

/// What is to be reached: geometric means over the oracle, and the mean over least-in-flight's in one place.
const OVER_ORACLE_MAX: f64 = 1.05;
const OVER_LEAST_IN_FLIGHT: (u32, f64, f64) = (8, 0.9, 0.6);

/// One place to measure at.
struct Cell {
    trace: (&'static str, &'static str),
    engines: u32,
    load: f64,
}

/// The default policy's TTFT over that of others.
#[derive(Debug, PartialEq)]
struct Ratios {
    mean_over_oracle: f64,
    p99_over_oracle: f64,
    mean_over_least_in_flight: f64,
}

/// Measures; `--quick` leaves out 64 engines and load 0.7.
///
/// # Errors
/// An unknown flag, or a replay that fails.
pub(super) fn run(ws: &Workspace, rest: &[String]) -> Result<()> {
    let is_quick = match rest {
        [] => false,
        [flag] if flag == "--quick" => true,
        _ => bail!("`bench policy` knows only --quick"),
    };
    let traces = ws.root.join("../shared/traces");
    if let Some((_, missing)) = TRACES.iter().find(|(_, file)| !traces.join(file).is_file()) {
        println!("SKIP policy: no trace at ../shared/traces/{missing}");
        return Ok(());
    }
    let router = build::router(ws, Profile::Release)?;
    println!("TTFT of prefix-cost over that of others:");
    let mut all = Vec::new();
    for cell in cells(is_quick) {
        let mut replay = Command::new(&router);
        replay
            .args(["replay", "--json", "--profile", "h100-70b-tp4", "--kv-tokens", KV_TOKENS])
            .args(["--policy", "oracle,prefix-cost,least-in-flight", "--trace"])
            .arg(traces.join(cell.trace.1))
            .args(["--engines", &cell.engines.to_string(), "--load", &cell.load.to_string()])
            .stderr(Stdio::inherit());
        let ratios = ratios(&run::capture(&mut replay)?)?;
        println!("{}", line(&cell, &ratios));
        all.push(ratios);
    }
    println!("geometric mean over the oracle, at most {OVER_ORACLE_MAX}:");
    for (name, mean) in [
        ("mean", geometric_mean(all.iter().map(|r| r.mean_over_oracle))),
        ("p99", geometric_mean(all.iter().map(|r| r.p99_over_oracle))),
    ] {
        println!("{name:>15} {mean:.3} {}", verdict(mean, OVER_ORACLE_MAX));
    }
    Ok(())
}

fn cells(is_quick: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for trace in TRACES {
        for engines in ENGINES {
            for load in LOADS {
                if !is_quick || (engines <= 8 && load > 0.8) {
                    cells.push(Cell { trace, engines, load });
                }
            }
        }
    }
    cells
}

fn line(cell: &Cell, ratios: &Ratios) -> String {
    let (engines, load, most) = OVER_LEAST_IN_FLIGHT;
    let is_judged = cell.engines == engines && (cell.load - load).abs() < 1e-9;
    let judged = match is_judged {
        true => format!(" {}", verdict(ratios.mean_over_least_in_flight, most)),
        false => String::new(),
    };
    format!(
        "{:>15} {:>2} engines at {}: {:.3} x oracle (p99 {:.3}), {:.3} x least-in-flight{judged}",
        cell.trace.0,
        cell.engines,
        cell.load,
        ratios.mean_over_oracle,
        ratios.p99_over_oracle,
        ratios.mean_over_least_in_flight,
    )
}

fn verdict(found: f64, most: f64) -> String {
    let word = if found <= most { "met" } else { "missed" };
    format!("(at most {most}: {word})")
}

/// From what `replay --json` prints.
fn ratios(json: &str) -> Result<Ratios> {
    let rows: Vec<Value> = serde_json::from_str(json).context("the replay printed no JSON")?;
    let of = |policy: &str, metric: &str| {
        let row = rows.iter().find(|row| row["policy"] == policy);
        let value = row.and_then(|row| row[metric].as_f64()).filter(|value| *value > 0.0);
        value.with_context(|| format!("the replay gave no {metric} of {policy}"))
    };
    let ours = of("prefix-cost", "ttft_mean_s")?;
    Ok(Ratios {
        mean_over_oracle: ours / of("oracle", "ttft_mean_s")?,
        p99_over_oracle: of("prefix-cost", "ttft_p99_s")? / of("oracle", "ttft_p99_s")?,
        mean_over_least_in_flight: ours / of("least-in-flight", "ttft_mean_s")?,
    })
}

/// Of at least one value.
fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (logs.iter().sum::<f64>() / logs.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_one_replay() {
        let row = |policy: &str, mean: f64, p99: f64| {
            format!(r#"{{"policy":"{policy}","ttft_mean_s":{mean},"ttft_p99_s":{p99}}}"#)
        };
        let rows = [row("oracle", 1.0, 8.0), row("prefix-cost", 1.5, 10.0), row("least-in-flight", 3.0, 9.0)];
        let want = Ratios { mean_over_oracle: 1.5, p99_over_oracle: 1.25, mean_over_least_in_flight: 0.5 };
        assert_eq!(ratios(&format!("[{}]", rows.join(","))).unwrap(), want);
        assert!(ratios(&format!("[{}]", rows[..2].join(","))).is_err(), "a policy is missing");
        assert!(ratios("").is_err());
    }

    #[test]
    fn quick_leaves_out_what_takes_long() {
        assert_eq!(cells(false).len(), 12);
        let quick = cells(true);
        assert_eq!(quick.len(), 4);
        assert!(quick.iter().all(|cell| cell.engines <= 8 && cell.load == 0.9));
    }

    #[test]
    fn only_the_cell_with_a_bound_is_judged() {
        let ratios = Ratios { mean_over_oracle: 1.0, p99_over_oracle: 1.0, mean_over_least_in_flight: 0.7 };
        let of = |engines| line(&Cell { trace: TRACES[0], engines, load: 0.9 }, &ratios);
        assert!(of(8).ends_with("(at most 0.6: missed)"), "{}", of(8));
        assert!(of(2).ends_with("x least-in-flight"), "{}", of(2));
    }

    #[test]
    fn the_geometric_mean_weighs_ratios() {
        assert!((geometric_mean([0.5, 2.0].into_iter()) - 1.0).abs() < 1e-12);
    }
}
