//! `bench`: measurements that compare within one run, so that a noisy machine moves both sides.
//!
//! `hosts`, `http`, `instructions`, `kernel`, `peers`, `policy`: see there. `pick` and `scrape` are benches of cargo.

mod cgroup;
mod hosts;
pub(crate) mod http;
mod kernel;
mod peers;
mod policy;

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::instructions;
use crate::paths::Workspace;
use crate::run;

const NAMES: [(&str, &str); 8] = [
    ("peers", "CPU, delays, memory and the burst beside HAProxy, with their goals, on loopback (15 minutes)"),
    (
        "kernel",
        "what the BPF programs cost, how true their counts are, and what a kill leaves (4 minutes; root)",
    ),
    (
        "hosts",
        "TTFT of two routers' hosts over one router's, with agents that tell in band and without (8 minutes; root)",
    ),
    ("pick", "what reading and placing a request costs, by size of prompt, fleet and index (2 minutes)"),
    ("scrape", "how fast metrics texts are read, and what watching 512 engines costs (1 minute)"),
    (
        "instructions",
        "user instructions of a request and of a stream, by callgrind (release build; 1 minute)",
    ),
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
        Some("peers") => peers::run(ws, &args.rest),
        Some("kernel") => kernel::run(ws, &args.rest),
        Some("instructions") => instructions::release(ws),
        Some("pick") => cargo_benches(ws, &PICK),
        Some("scrape") => cargo_benches(ws, &[("router-user", "scrape")]),
        Some("hosts") => hosts::run(ws, &args.rest),
        Some("http") => http::run(ws, &args.rest),
        Some("policy") => policy::run(ws, &args.rest),
        name => {
            for (name, about) in NAMES {
                println!("{name:<13} {about}");
            }
            match name {
                None => Ok(()),
                Some(name) => bail!("no benchmark `{name}`"),
            }
        }
    }
}

/// The cargo benches of what lies between a request's bytes and its placement.
const PICK: [(&str, &str); 4] = [
    ("router-user", "parse"),
    ("router-policy", "pick"),
    ("router-policy", "index"),
    ("router-user", "owners"),
];

fn cargo_benches(ws: &Workspace, benches: &[(&str, &str)]) -> Result<()> {
    for (package, bench) in benches {
        println!("\n{package}, {bench}:");
        let mut cargo = run::cargo();
        cargo.args(["bench", "--quiet", "--locked", "-p", package, "--bench", bench]);
        run::show(cargo.current_dir(&ws.root))?;
    }
    Ok(())
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

/// Of at least one value.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 8.0]), 3.0);
    }
}
