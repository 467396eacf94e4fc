//! `unlatch status`: what the kernel and the routers count per backend, and what all clients have at the engines of this
//! host if an agent counts there, read from the pinned maps.
//!
//! Needs no running router, only the right to open the pins.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use router_common::WorkerSlot;
use router_policy::Nanos;
use serde::Serialize;

mod engines;
#[cfg(test)]
pub(super) mod example_tests;
mod reports;

pub(super) use engines::Engine;
pub(super) use reports::Reported;

use super::output;
use super::pins::PinArgs;
use crate::account::local;
use crate::account::suspect::others_rx;
use crate::account::view::{Counts, Pinned, Row, View, pinned};
use crate::account::{At, KernelError, KernelRow, Link, Suspicion};
use crate::clock;
use crate::config::AdminListen;
use crate::config::values::duration;

/// Exit code of what could not start.
pub(super) const UNAVAILABLE: u8 = 69;

/// What each backend has in flight, as the kernel and the routers of this host count it
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Suspect a backend that leaves requests without a byte for so long while any other answers; 0s: none
    #[arg(long, value_name = "TIME", env = "UNLATCH_SUSPECT_AFTER", default_value = "30s", value_parser = silence)]
    suspect_after: Duration,
    /// Ask the router that answers here what the engines report; off: no router is asked
    #[arg(long, value_name = "ADDR|unix:PATH|off", env = "UNLATCH_ADMIN_LISTEN", default_value = "127.0.0.1:8002", value_parser = admin)]
    admin: Admin,
    #[command(flatten)]
    pins: PinArgs,
}

/// Where a router is asked, if one is.
#[derive(Clone, Debug)]
struct Admin(Option<AdminListen>);

fn admin(text: &str) -> Result<Admin, String> {
    if text == "off" {
        return Ok(Admin(None));
    }
    text.parse().map(|at| Admin(Some(at)))
}

fn silence(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO..=Duration::from_secs(3600))
}

/// What the pins say now.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Status {
    pub(super) pins: String,
    pub(super) workers: Vec<Worker>,
    pub(super) attached: Vec<Attached>,
    /// Where the backends' reports come from, or why there are none.
    pub(super) reports: String,
    pub(super) backends: Vec<Backend>,
    pub(super) engines: Vec<Engine>,
}

/// A router process.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Worker {
    pub(super) slot: usize,
    pub(super) pid: u32,
}

/// A program and where it hangs: a cgroup or a device, by number; neither where that is gone.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Attached {
    program: String,
    cgroup: Option<u64>,
    device: Option<u32>,
    device_name: Option<String>,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Backend {
    pub(super) row: usize,
    pub(super) url: String,
    pub(super) address: Option<String>,
    pub(super) in_flight: u32,
    pub(super) by_worker: Vec<Share>,
    pub(super) awaiting: Option<u64>,
    pub(super) streaming: Option<u64>,
    pub(super) unknown: Option<u64>,
    pub(super) foreign: Option<u64>,
    pub(super) drift: Option<i64>,
    pub(super) ttfb_seconds: Option<f64>,
    /// Since the last byte from the backend; none before the first.
    pub(super) silent_seconds: Option<f64>,
    /// All requests there, as its host last told in band; none if it never did.
    pub(super) in_band: Option<u32>,
    /// Since it told that.
    pub(super) in_band_age_seconds: Option<f64>,
    pub(super) conns: u64,
    pub(super) opened: u64,
    pub(super) closed: u64,
    pub(super) resets: u64,
    pub(super) retransmits: u64,
    pub(super) zero_windows: Option<u64>,
    /// What the kernel sees of a backend that stalls or dies.
    pub(super) suspect: Option<Suspect>,
    /// What the engine reports, as a router heard it; none if no router was asked, or it does not know the backend.
    pub(super) report: Option<Reported>,
}

/// A bad sign.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Suspect {
    sign: &'static str,
    seconds: f64,
    why: String,
}

impl Backend {
    /// A gauge of phases for people: `-` is not followed, `?` is beside connections whose requests cannot be told.
    pub(super) fn phase(&self, gauge: Option<u64>) -> String {
        match gauge {
            None => "-".to_owned(),
            Some(n) if self.unknown.is_some_and(|unknown| unknown > 0) => format!("{n}+?"),
            Some(n) => n.to_string(),
        }
    }
}

/// What one router process has at a backend.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Share {
    slot: usize,
    pid: u32,
    in_flight: u32,
    q_tokens: u32,
    c_tokens: u32,
}

/// Prints the status; exits 69 if nothing readable is pinned.
///
/// # Errors
/// The answer cannot be written.
pub fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let mut status = match read(&args.pins.pin_dir, args.suspect_after) {
        Ok(status) => status,
        Err(error) => {
            output::tell(format_args!("unlatch status: {error}"));
            return Ok(ExitCode::from(UNAVAILABLE));
        }
    };
    reports::add(&mut status, args.admin.0.as_ref());
    let text = if args.json { serde_json::to_string_pretty(&status)? + "\n" } else { table(&status) };
    output::answer(&text).map(|()| ExitCode::SUCCESS)
}

/// Reads the pins below a directory.
///
/// # Errors
/// Nothing is pinned there, or it cannot be read.
pub(super) fn read(pin_dir: &Path, suspect_after: Duration) -> Result<Status, KernelError> {
    let engines = local::pinned(pin_dir)?;
    let Pinned { path, links, .. } = pinned(pin_dir)?;
    let view = match View::open(pin_dir) {
        // An engine's host needs no router.
        Err(KernelError::NothingPinned(_)) if !engines.is_empty() => None,
        view => Some(view?),
    };
    let rows = view.as_ref().map_or_else(|| Ok(Vec::new()), View::rows)?;
    let mut workers = view.as_ref().map_or_else(Vec::new, View::workers);
    workers.retain(|&(slot, _)| view.as_ref().is_some_and(|view| view.is_alive(slot)));
    let (counts, local) = (Counts::by(&links), Counts::at_engines(&links));
    let attached = |link: Link| Attached {
        device_name: link.device(),
        cgroup: if let At::Cgroup(id) = link.at { Some(id) } else { None },
        device: if let At::Device(ifindex) = link.at { Some(ifindex) } else { None },
        program: link.program,
    };
    Ok(Status {
        pins: path.display().to_string(),
        engines: engines.iter().map(|row| Engine::new(row, local)).collect(),
        attached: links.into_iter().map(attached).collect(),
        backends: rows
            .iter()
            .map(|row| {
                let others = rows.iter().filter(|other| other.id != row.id).map(|other| &other.load);
                let kernel = KernelRow { load: row.load, has_phases: counts.requests };
                let suspicion = Suspicion::of(&kernel, others_rx(others), clock::now(), suspect_after);
                backend(row, &workers, &kernel, suspicion)
            })
            .collect(),
        reports: "not asked for".to_owned(),
        workers: workers.iter().map(|&(slot, worker)| Worker { slot, pid: worker.pid }).collect(),
    })
}

fn backend(
    row: &Row,
    workers: &[(usize, WorkerSlot)],
    kernel: &KernelRow,
    suspicion: Option<Suspicion>,
) -> Backend {
    let share = |&(slot, worker): &(usize, WorkerSlot)| Share {
        slot,
        pid: worker.pid,
        in_flight: row.load.workers[slot],
        q_tokens: row.load.q_tokens[slot],
        c_tokens: row.load.c_tokens[slot],
    };
    let uses = |&&(slot, _): &&(usize, WorkerSlot)| row.users & 1 << slot != 0;
    Backend {
        row: row.id.index(),
        url: row.url.clone(),
        address: row.addr.map(|addr| addr.to_string()),
        in_flight: row.in_flight,
        by_worker: workers.iter().filter(uses).map(share).collect(),
        awaiting: kernel.awaiting(),
        streaming: kernel.streaming(),
        unknown: kernel.unknown(),
        foreign: kernel.foreign(),
        drift: kernel.drift(row.in_flight.into()),
        ttfb_seconds: kernel.ttfb_seconds(),
        silent_seconds: seconds_since(row.load.last_rx_ns),
        in_band: (row.load.remote_at_ns > 0).then_some(row.load.remote_in_flight),
        in_band_age_seconds: seconds_since(row.load.remote_at_ns),
        conns: row.load.conns,
        opened: row.load.opened,
        closed: row.load.closed,
        resets: row.load.resets,
        retransmits: row.load.retransmits,
        zero_windows: kernel.has_phases.then_some(row.load.zero_windows),
        suspect: suspicion.map(|suspicion| Suspect {
            sign: suspicion.sign.as_str(),
            seconds: suspicion.seconds,
            why: suspicion.to_string(),
        }),
        report: None,
    }
}

/// Of the programs' clock, where 0 is never.
fn seconds_since(at_ns: u64) -> Option<f64> {
    (at_ns > 0).then(|| clock::now().seconds_since(Nanos(at_ns)))
}

fn table(status: &Status) -> String {
    let tables = match status.backends.is_empty() && !status.engines.is_empty() {
        true => heading(status),
        false => backends(status),
    };
    tables + &engines::table(&status.engines)
}

fn heading(status: &Status) -> String {
    let pids: Vec<String> = status.workers.iter().map(|w| format!("{} (slot {})", w.pid, w.slot)).collect();
    let mut text = format!("pins     {}\n", status.pins);
    let routers = if pids.is_empty() { "none".to_owned() } else { pids.join(", ") };
    let _ = writeln!(text, "routers  {routers}\nreports  {}\n", status.reports);
    text
}

fn backends(status: &Status) -> String {
    let mut text = heading(status);
    let _ = writeln!(
        text,
        "{:>3}  {:<40} {:>9} {:>8} {:>9} {:>6} {:>8} {:>8} {:>7}  by pid",
        "row", "backend", "in flight", "awaiting", "streaming", "conns", "opened", "closed", "resets"
    );
    for b in &status.backends {
        let shares: Vec<String> = b.by_worker.iter().map(|s| format!("{}:{}", s.pid, s.in_flight)).collect();
        let _ = writeln!(
            text,
            "{:>3}  {:<40} {:>9} {:>8} {:>9} {:>6} {:>8} {:>8} {:>7}  {}",
            b.row,
            b.url,
            b.in_flight,
            b.phase(b.awaiting),
            b.phase(b.streaming),
            b.conns,
            b.opened,
            b.closed,
            b.resets,
            shares.join(" ")
        );
    }
    for b in &status.backends {
        if let Some(suspect) = &b.suspect {
            let _ = writeln!(text, "suspect  {}: {}", b.url, suspect.why);
        }
    }
    text + &reports::table(&status.backends)
}
