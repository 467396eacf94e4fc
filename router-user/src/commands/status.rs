//! `unlatch status`: what the kernel and the routers count per backend, read from the pinned maps.
//!
//! Needs no running router, only the right to open the pins.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use router_common::WorkerSlot;
use router_policy::Nanos;
use serde::Serialize;

use super::output;
use super::pins::PinArgs;
use crate::account::view::{Counts, Row, View, pinned};
use crate::account::{At, KernelError, KernelRow, Link};
use crate::clock;

/// Exit code of what could not start.
pub(super) const UNAVAILABLE: u8 = 69;

/// What each backend has in flight, as the kernel and the routers of this host count it
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pins: PinArgs,
}

/// What the pins say now.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Status {
    pub(super) pins: String,
    pub(super) workers: Vec<Worker>,
    pub(super) attached: Vec<Attached>,
    pub(super) backends: Vec<Backend>,
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
    pub(super) conns: u64,
    pub(super) opened: u64,
    pub(super) closed: u64,
    pub(super) resets: u64,
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
    let status = match read(&args.pins.pin_dir) {
        Ok(status) => status,
        Err(error) => {
            output::tell(format_args!("unlatch status: {error}"));
            return Ok(ExitCode::from(UNAVAILABLE));
        }
    };
    let text = if args.json { serde_json::to_string_pretty(&status)? + "\n" } else { table(&status) };
    output::answer(&text).map(|()| ExitCode::SUCCESS)
}

/// Reads the pins below a directory.
///
/// # Errors
/// Nothing is pinned there, or it cannot be read.
pub(super) fn read(pin_dir: &Path) -> Result<Status, KernelError> {
    let view = View::open(pin_dir)?;
    let (rows, links, mut workers) = (view.rows()?, pinned(pin_dir)?.links, view.workers());
    workers.retain(|&(slot, _)| view.is_alive(slot));
    let counts = Counts::by(&links);
    let attached = |link: Link| Attached {
        device_name: link.device(),
        cgroup: if let At::Cgroup(id) = link.at { Some(id) } else { None },
        device: if let At::Device(ifindex) = link.at { Some(ifindex) } else { None },
        program: link.program,
    };
    Ok(Status {
        pins: view.path().display().to_string(),
        attached: links.into_iter().map(attached).collect(),
        backends: rows.iter().map(|row| backend(row, &workers, counts)).collect(),
        workers: workers.iter().map(|&(slot, worker)| Worker { slot, pid: worker.pid }).collect(),
    })
}

fn backend(row: &Row, workers: &[(usize, WorkerSlot)], counts: Counts) -> Backend {
    let kernel = KernelRow { load: row.load, has_phases: counts.requests };
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
        silent_seconds: (row.load.last_rx_ns > 0)
            .then(|| clock::now().seconds_since(Nanos(row.load.last_rx_ns))),
        conns: row.load.conns,
        opened: row.load.opened,
        closed: row.load.closed,
        resets: row.load.resets,
    }
}

fn table(status: &Status) -> String {
    let pids: Vec<String> = status.workers.iter().map(|w| format!("{} (slot {})", w.pid, w.slot)).collect();
    let mut text = format!("pins     {}\n", status.pins);
    let routers = if pids.is_empty() { "none".to_owned() } else { pids.join(", ") };
    let _ = writeln!(text, "routers  {routers}\n");
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
    text
}
