//! `bench`: measurements that compare within one run, so that a noisy machine moves both sides.
//!
//! `haproxy`: CPU time per request beside HAProxy, by the peers' bench of `../shared/bench`, which starts two mock
//! engines, each router in turn and a load generator, all on loopback. Invariant: it writes below the target
//! directory alone, and takes off what the router pinned. `hosts`, `http`, `kernel`,
//! `policy`: see there.

mod cgroup;
mod hosts;
mod http;
mod kernel;
mod policy;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::build::{self, Profile};
use crate::paths::{Workspace, find_program};
use crate::run;
use crate::setup::{self, debian};

const NAMES: [(&str, &str); 6] = [
    ("haproxy", "CPU time per request beside HAProxy, on loopback (3 minutes)"),
    (
        "kernel",
        "what the BPF programs cost, how true their counts are, and what a kill leaves (4 minutes; root)",
    ),
    (
        "hosts",
        "TTFT of two routers' hosts over one router's, with agents that tell in band and without (8 minutes; root)",
    ),
    ("pick", "what reading and placing a request costs, by size of prompt, fleet and index (2 minutes)"),
    ("http", "TTFT of the real router and engines over HTTP beside the replay in virtual time (5 minutes)"),
    (
        "policy",
        "TTFT of the default policy beside an oracle, in virtual time (half an hour; --quick: a minute)",
    ),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which one; without a name they are listed
    name: Option<String>,
    /// Passed on to the measuring script, as in `--rounds 5 --scenarios small`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// The verb.
///
/// # Errors
/// When there is no such benchmark, or it fails.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<()> {
    match args.name.as_deref() {
        Some("haproxy") => haproxy(ws, &args.rest),
        Some("kernel") => kernel::run(ws, &args.rest),
        Some("pick") => pick(ws),
        Some("hosts") => hosts::run(ws, &args.rest),
        Some("http") => http::run(ws, &args.rest),
        Some("policy") => policy::run(ws, &args.rest),
        name => {
            for (name, about) in NAMES {
                println!("{name:<10} {about}");
            }
            match name {
                None => Ok(()),
                Some(name) => bail!("no benchmark `{name}`"),
            }
        }
    }
}

/// The cargo benches of what lies between a request's bytes and its placement.
fn pick(ws: &Workspace) -> Result<()> {
    for (package, bench) in [
        ("router-user", "parse"),
        ("router-policy", "pick"),
        ("router-policy", "index"),
        ("router-user", "owners"),
    ] {
        println!("\n{package}, {bench}:");
        let mut cargo = run::cargo();
        cargo.args(["bench", "--quiet", "--locked", "-p", package, "--bench", bench]);
        run::show(cargo.current_dir(&ws.root))?;
    }
    Ok(())
}

fn haproxy(ws: &Workspace, rest: &[String]) -> Result<()> {
    let scripts = ws.root.join("../shared/bench");
    if !scripts.join("bench.py").is_file() {
        println!("SKIP haproxy: the peers' bench is not at ../shared/bench");
        return Ok(());
    }
    let Some(python) = find_program("python3") else {
        println!("SKIP haproxy: no python3");
        return Ok(());
    };
    let had_haproxy = find_program("haproxy").is_some();
    if !setup::step("haproxy", || debian::ensure(&[("haproxy", "haproxy")])) {
        println!("SKIP haproxy: it is not installed");
        return Ok(());
    }
    if !had_haproxy && Path::new("/run/systemd/system").is_dir() {
        // Debian starts what it installs; the bench runs its own.
        run::capture(Command::new("systemctl").args(["disable", "--now", "haproxy"]))?;
    }
    let router = build::router(ws, Profile::Release)?;
    let place = ws.target.join("bench");
    let tools = place.join("build");
    let mut cargo = run::cargo();
    cargo.args(["build", "--release", "--locked", "--manifest-path"]).arg(scripts.join("Cargo.toml"));
    run::show(cargo.arg("--target-dir").arg(&tools).current_dir(&place_made(&place)?))?;

    let raw = place.join("haproxy.jsonl");
    fs::write(&raw, "")?;
    let pins = PinDir::new("router");
    let mut bench = Command::new(python);
    bench
        .arg(scripts.join("bench.py"))
        .args(["--peers", "direct,haproxy,custom", "--out"])
        .arg(&raw)
        .args(rest)
        .env("BENCH_BIN", tools.join("release"))
        .env("PEERS_DIR", place.join("peers"))
        .env("PEER_CMD", peer_command(&router, &pins.dir))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(&place);
    let measured = run::show(&mut bench);
    pins.take_off();
    measured?;
    let rows = fs::read_to_string(&raw)?;
    for line in ratios(&rows)? {
        println!("{line}");
    }
    println!("raw: {}", ws.show(&raw));
    Ok(())
}

fn place_made(place: &Path) -> Result<PathBuf> {
    fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
    Ok(place.to_path_buf())
}

/// The router as the bench starts it; the bench fills in the ports.
fn peer_command(router: &Path, pins: &Path) -> String {
    let router = router.display().to_string().replace('{', "{{").replace('}', "}}");
    format!(
        "'{router}' serve --listen 127.0.0.1:{{port}} --admin-listen 127.0.0.1:0 --gossip-dir off \
         --pin-dir {} --backend http://127.0.0.1:{{a}} --backend http://127.0.0.1:{{b}}",
        pins.display()
    )
}

/// Pins of the benched router, which outlive it by design: apart from those of a router in use.
struct PinDir {
    dir: PathBuf,
}

impl PinDir {
    fn new(name: &str) -> Self {
        Self { dir: PathBuf::from(format!("/sys/fs/bpf/unlatch-bench-{}-{name}", std::process::id())) }
    }

    /// The router has ended, so that removing the pins detaches the programs.
    fn take_off(&self) {
        if let Err(error) = fs::remove_dir_all(&self.dir)
            && self.dir.is_dir()
        {
            println!("{} is left behind: {error}", self.dir.display());
        }
    }
}

/// A line a scenario: the medians of one run, and their ratio first.
fn ratios(rows: &str) -> Result<Vec<String>> {
    let mut costs: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).context("the bench wrote a broken line")?;
        // Seconds per 1000 requests are milliseconds per request.
        if let (Some(scenario), Some(peer), Some(ms)) =
            (row["scenario"].as_str(), row["peer"].as_str(), row["router_cpu_s_per_1000"].as_f64())
        {
            costs.entry((scenario.to_owned(), peer.to_owned())).or_default().push(ms);
        }
    }
    let of =
        |scenario: &str, peer: &str| costs.get(&(scenario.to_owned(), peer.to_owned())).map(|ms| median(ms));
    let mut lines = Vec::new();
    for (scenario, _) in costs.keys().filter(|(_, peer)| peer == "custom") {
        if let (Some(ours), Some(theirs)) = (of(scenario, "custom"), of(scenario, "haproxy")) {
            let ratio = ours / theirs;
            lines.push(format!(
                "{scenario}: {ratio:.2} x HAProxy's CPU per request ({ours:.3} ms, {theirs:.3} ms)"
            ));
        }
    }
    if lines.is_empty() {
        bail!("no scenario was measured for both routers; see the bench's output above");
    }
    Ok(lines)
}

/// Of at least one value.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_medians_of_one_scenario() {
        let row = |peer: &str, scenario: &str, cost: &str| {
            format!("{{\"peer\":\"{peer}\",\"scenario\":\"{scenario}\",\"router_cpu_s_per_1000\":{cost}}}\n")
        };
        let rows = [
            row("haproxy", "small", "0.1"),
            row("custom", "small", "0.1"),
            row("custom", "small", "0.3"),
            row("custom", "stream", "1"),
            row("direct", "small", "null"),
        ];
        assert_eq!(
            ratios(&rows.concat()).unwrap(),
            ["small: 2.00 x HAProxy's CPU per request (0.200 ms, 0.100 ms)"]
        );
        assert!(ratios("").is_err(), "nothing measured is not a result");
    }

    #[test]
    fn the_ports_stay_for_the_bench_to_fill_in() {
        let command = peer_command(Path::new("/a{b}/unlatch"), Path::new("/pins"));
        assert!(command.starts_with("'/a{{b}}/unlatch' serve --listen 127.0.0.1:{port} "), "{command}");
        assert!(
            command.contains("--backend http://127.0.0.1:{a} --backend http://127.0.0.1:{b}"),
            "{command}"
        );
    }
}
