//! `bench kernel`: what the programs cost, as CPU time with all of them attached over CPU time with none; and what the
//! option in band costs, as CPU time with it over CPU time with router and agent attached and without it.
//!
//! Two workers do the same work in turns, each in a cgroup of its own, and the programs are attached to one of them:
//! by a router that starts there and is killed, since what it pinned goes on counting. Invariant: cgroups, pins and
//! processes go with [`Stage`]. What the kernel tier measures follows, see [`figures`]. Needs root, cgroup2 and a BPF file system. The kernel must account softirqs to the
//! task they interrupt (`CONFIG_IRQ_TIME_ACCOUNTING` off), or the programs' share on the way in is not seen.

mod figures;
mod stage;
mod worker;

use std::path::Path;

use anyhow::{Context, Result, bail};

use self::stage::{Place, Stage};
use crate::build::{self, Profile};
use crate::paths::Workspace;
use crate::setup;

/// Work that is measured: its name, units in a turn, and what is to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A request of 200 bytes and its answer of 1 KiB, on one connection.
    PingPong,
    /// A connection opened, accepted and closed by both sides.
    Connect,
}

impl Work {
    const ALL: [Self; 2] = [Self::PingPong, Self::Connect];

    const fn name(self) -> &'static str {
        match self {
            Self::PingPong => "ping-pong",
            Self::Connect => "connect/close",
        }
    }

    const fn units(self) -> u32 {
        match self {
            Self::PingPong => 4000,
            // Few enough for the ports that wait for their end.
            Self::Connect => 400,
        }
    }

    const fn most(self) -> f64 {
        match self {
            Self::PingPong => 1.12,
            Self::Connect => 1.15,
        }
    }
}

const TURNS: usize = 25;
/// What the option in band may cost a ping-pong.
const IN_BAND_MOST: f64 = 1.03;

/// Measures; `--turns N` sets how often each worker has its turn.
///
/// # Errors
/// An unknown flag, no right to attach, or a run in which the programs counted nothing.
pub(super) fn run(ws: &Workspace, rest: &[String]) -> Result<()> {
    let turns = match rest {
        [] => TURNS,
        [flag] if flag == worker::FLAG => return worker::run(),
        [flag, turns] if flag == "--turns" => turns.parse().context("--turns takes a number")?,
        _ => bail!("`bench kernel` knows only --turns N"),
    };
    if turns == 0 {
        bail!("--turns takes a number above 0");
    }
    setup::bpf_toolchain(ws)?;
    let router = build::router(ws, Profile::Dev)?;
    let mut stage = match Stage::new() {
        Ok(stage) => stage,
        Err(error) => {
            println!("SKIP kernel: {error:#}");
            return Ok(());
        }
    };
    stage.attach(&router, Place::Attached)?;
    println!(
        "CPU with all of a router's programs attached over CPU with none, {turns} turns each in alternation:"
    );
    for work in Work::ALL {
        let costs = alternate(&mut stage, work, turns)?;
        println!("{}", line(work.name(), work.most(), &costs[0], &costs[1]));
    }
    let requests = Work::PingPong.units() as usize * turns;
    stage.check_counted(&router, requests, Work::Connect.units() as usize * turns)?;
    drop(stage);
    in_band(&router, turns)?;
    figures::show(ws)
}

/// A router's programs at one end of both workers' connections, an agent's at the other; one agent tells in band.
fn in_band(router: &Path, turns: usize) -> Result<()> {
    let mut stage = Stage::new()?;
    stage.part_ends()?;
    let telling = ["--in-band", "--to=127.0.0.0/8"];
    for (place, more) in [(Place::Bare, &telling[..0]), (Place::Attached, &telling)] {
        stage.attach(router, place)?;
        stage.attach_agent(router, place, more)?;
    }
    println!(
        "CPU with the option in band over CPU without, a router's programs at one end and an agent's at the other:"
    );
    let costs = alternate(&mut stage, Work::PingPong, turns)?;
    println!("{}", line("option in band", IN_BAND_MOST, &costs[0], &costs[1]));
    stage.check_heard(router)
}

/// Costs of turns in alternation, at each place.
fn alternate(stage: &mut Stage, work: Work, turns: usize) -> Result<[Vec<f64>; 2]> {
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..turns {
        for (place, costs) in [Place::Bare, Place::Attached].into_iter().zip(&mut costs) {
            costs.push(stage.turn(place, work)?);
        }
    }
    Ok(costs)
}

/// Nanoseconds a unit, of at least one turn each. The least is judged: others on the machine only ever add.
fn line(name: &str, most: f64, bare: &[f64], attached: &[f64]) -> String {
    let least = |costs: &[f64]| costs.iter().copied().fold(f64::INFINITY, f64::min);
    let (bare_least, attached_least) = (least(bare), least(attached));
    let ratio = attached_least / bare_least;
    let medians = super::median(attached) / super::median(bare);
    let word = if ratio <= most { "met" } else { "missed" };
    format!(
        "{name:>15} {ratio:.3} x (at most {most}: {word}); {bare_least:.0} and {attached_least:.0} ns; medians {medians:.3} x"
    )
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn the_least_of_each_is_judged() {
        let text = line("ping-pong", 1.12, &[100.0, 400.0, 300.0], &[900.0, 110.0, 330.0]);
        assert_eq!(text.trim(), "ping-pong 1.100 x (at most 1.12: met); 100 and 110 ns; medians 1.100 x");
        assert!(line("connect/close", 1.15, &[100.0], &[116.0]).contains("(at most 1.15: missed)"));
    }
}
