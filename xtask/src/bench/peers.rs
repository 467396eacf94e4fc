//! `bench peers`: what the data plane costs beside HAProxy (and nginx), by the peers' bench of `../shared/bench`: two
//! mock engines, each router in turn and a load generator, all on loopback.
//!
//! Owns what is run and with which flags; the arithmetic and the goals are in `table`, resident memory in `memory`,
//! the split of a burst in `burst`. Invariant: ratios are of one run and of medians over its rounds; it writes below
//! the target directory alone and takes off what the router pinned.

mod burst;
mod memory;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Parser;

use self::table::Row;
use super::PinDir;
use crate::build::{self, Profile};
use crate::paths::{Workspace, find_program};
use crate::setup::{self, debian};
use crate::{run, setup::debian::Wanted};

/// Scenarios of the peers' bench that have a goal.
const TIMED: [&str; 4] = ["small", "big100k", "big1m", "stream"];

/// Flags of the benchmark.
#[derive(Debug, Parser)]
#[command(name = "bench peers", no_binary_name = true)]
struct Options {
    /// Rounds; the order of the routers is reversed in each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Of small, big100k, big1m, stream, memory and burst
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "small,big100k,big1m,stream,memory,burst"
    )]
    scenarios: Vec<String>,
    /// Trials of each of the two bursts
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    trials: u32,
    /// Also nginx, with nginx-light's package
    #[arg(long)]
    nginx: bool,
    /// Fails when a "must" is missed
    #[arg(long)]
    assert: bool,
}

/// What all parts of the benchmark need.
struct Bench {
    /// The peers' bench.
    scripts: PathBuf,
    python: PathBuf,
    haproxy: PathBuf,
    router: PathBuf,
    /// Where everything is written.
    place: PathBuf,
    /// The built mock engine and load generator.
    tools: PathBuf,
    pins: PinDir,
}

/// Measures and prints one table.
///
/// # Errors
/// An unknown flag, something that does not start, a scenario without a result, or, with `--assert`, a missed goal.
pub(super) fn run(ws: &Workspace, rest: &[String]) -> Result<()> {
    let options = Options::try_parse_from(rest)?;
    for name in &options.scenarios {
        if !TIMED.contains(&name.as_str()) && !["memory", "burst"].contains(&name.as_str()) {
            bail!("no scenario {name}; there are {}, memory and burst", TIMED.join(", "));
        }
    }
    let Some(bench) = prepare(ws, options.nginx)? else { return Ok(()) };
    let measured = measure(&bench, &options);
    bench.pins.take_off();
    let rows = measured?;
    println!("\n{}", table::text(&rows));
    if options.assert && rows.iter().any(Row::is_missed) {
        bail!("a goal is missed");
    }
    Ok(())
}

fn measure(bench: &Bench, options: &Options) -> Result<Vec<Row>> {
    let has = |name: &str| options.scenarios.iter().any(|asked| asked == name);
    let timed: Vec<_> = TIMED.into_iter().filter(|name| has(name)).collect();
    let mut rows = Vec::new();
    if !timed.is_empty() {
        rows = table::timed(&bench.timed(&timed, options)?)?;
    }
    if has("memory") {
        rows.extend(memory::measure(bench)?);
    }
    if has("burst") {
        rows.extend(burst::measure(bench, options.trials)?);
    }
    Ok(rows)
}

/// Brings what is needed; `None`, with a line that says why, where it cannot be had.
fn prepare(ws: &Workspace, nginx: bool) -> Result<Option<Bench>> {
    let scripts = ws.root.join("../shared/bench");
    if !scripts.join("bench.py").is_file() {
        println!("SKIP peers: the peers' bench is not at ../shared/bench");
        return Ok(None);
    }
    let Some(python) = find_program("python3") else {
        println!("SKIP peers: no python3");
        return Ok(None);
    };
    let mut wanted: Vec<Wanted> = vec![("haproxy", "haproxy")];
    wanted.extend(nginx.then_some(("nginx", "nginx-light")));
    let had: Vec<_> = wanted.iter().map(|(program, _)| find_program(program).is_some()).collect();
    if !setup::step("peers", || debian::ensure(&wanted)) {
        println!("SKIP peers: HAProxy is not installed");
        return Ok(None);
    }
    for ((service, _), had) in wanted.iter().zip(had) {
        if !had && Path::new("/run/systemd/system").is_dir() {
            // Debian starts what it installs; the bench runs its own.
            run::capture(Command::new("systemctl").args(["disable", "--now", service]))?;
        }
    }
    let haproxy = find_program("haproxy").context("HAProxy is installed, but not found")?;
    let router = build::router(ws, Profile::Release)?;
    let place = ws.target.join("bench");
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let target = place.join("build");
    let mut cargo = run::cargo();
    cargo.args(["build", "--release", "--locked", "--manifest-path"]).arg(scripts.join("Cargo.toml"));
    run::show(cargo.arg("--target-dir").arg(&target).current_dir(&place))?;
    let tools = target.join("release");
    Ok(Some(Bench { scripts, python, haproxy, router, place, tools, pins: PinDir::new("router") }))
}

impl Bench {
    /// A script of the peers' bench, which starts routers and engines by itself.
    fn script(&self, name: &str) -> Command {
        let mut script = Command::new(&self.python);
        script
            .arg(self.scripts.join(name))
            .env("BENCH_BIN", &self.tools)
            .env("PEERS_DIR", self.place.join("peers"))
            .env("PEER_CMD", peer_command(&self.router, &self.pins.dir))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(&self.place);
        script
    }

    /// An empty file for a script's lines.
    fn raw(&self, name: &str) -> Result<PathBuf> {
        let raw = self.place.join(name);
        fs::write(&raw, "")?;
        Ok(raw)
    }

    /// Lines of the scenarios that are timed.
    fn timed(&self, scenarios: &[&str], options: &Options) -> Result<String> {
        let raw = self.raw("peers.jsonl")?;
        let peers = if options.nginx { "direct,haproxy,nginx,custom" } else { "direct,haproxy,custom" };
        let mut script = self.script("bench.py");
        script.args(["--peers", peers, "--scenarios", &scenarios.join(",")]);
        script.args(["--rounds", &options.rounds.to_string(), "--out"]).arg(&raw);
        run::show(&mut script)?;
        Ok(fs::read_to_string(&raw)?)
    }
}

/// The router as the scripts start it: the default policy, kernel counting on; they fill in the ports.
fn peer_command(router: &Path, pins: &Path) -> String {
    let router = router.display().to_string().replace('{', "{{").replace('}', "}}");
    format!(
        "'{router}' serve --listen 127.0.0.1:{{port}} --admin-listen 127.0.0.1:0 --gossip-dir off \
         --kernel on --pin-dir {} --backend http://127.0.0.1:{{a}} --backend http://127.0.0.1:{{b}}",
        pins.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_stay_for_the_bench_to_fill_in() {
        let command = peer_command(Path::new("/a{b}/unlatch"), Path::new("/pins"));
        assert!(command.starts_with("'/a{{b}}/unlatch' serve --listen 127.0.0.1:{port} "), "{command}");
        assert!(
            command.contains("--backend http://127.0.0.1:{a} --backend http://127.0.0.1:{b}"),
            "{command}"
        );
    }

    #[test]
    fn scenarios_are_a_list_and_a_mistyped_flag_is_refused() {
        let options = Options::try_parse_from(["--scenarios", "small,burst", "--rounds", "7"]).unwrap();
        assert_eq!((options.scenarios.len(), options.rounds, options.trials), (2, 7, 20));
        assert!(Options::try_parse_from(["--round", "7"]).is_err());
        assert!(Options::try_parse_from(["--rounds", "0"]).is_err());
    }
}
