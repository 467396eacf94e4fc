//! Putting right, before programs are attached, what nobody saw while none was.
//!
//! A process that dies without the `release` program leaves its slot; a connection or request that ends without the
//! others leaves its gauges. While a program works, or a router that might have open connections lives, nothing is
//! touched: then the kernel, or that router, gives back itself. Else the gauges start from zero with new storage of
//! sockets, so that what is still open from then counts as older than the programs and is not given back a second time;
//! `opened - closed = conns` holds again. Invariant: called under the lock of the pins, before the maps are loaded.

use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use router_common::limits::{MAX_BACKENDS, MAX_LOCAL_PORTS, MAX_WORKERS};
use router_common::{BackendLoad, WorkerSlot};

use super::error::KernelError;
use super::maps::Table;
use super::pins::PinDir;
use super::region::{Access, Region};
use super::{kernel, links, local};

const ROW_BYTES: usize = size_of::<BackendLoad>();

/// What the programs add and take away.
const GAUGES: [usize; 7] = [
    offset_of!(BackendLoad, conns),
    offset_of!(BackendLoad, awaiting),
    offset_of!(BackendLoad, streaming),
    offset_of!(BackendLoad, foreign_conns),
    offset_of!(BackendLoad, foreign_awaiting),
    offset_of!(BackendLoad, foreign_streaming),
    offset_of!(BackendLoad, unknown),
];

/// Frees the slots of dead routers, and empties the gauges, of a complete set of the routers' pins.
///
/// # Errors
/// [`KernelError`]: the pins cannot be read or changed.
pub(super) fn routers(dir: &PinDir) -> Result<(), KernelError> {
    let (is_released, is_counted) = (works(dir, kernel::RELEASE)?, works(dir, kernel::SOCKOPS)?);
    if is_released && is_counted {
        return Ok(());
    }
    let [load, workers, names] = ["LOAD", "WORKERS", "NAMES"].map(|name| dir.open_existing(name));
    let (load, workers, names) = (load?, workers?, names?);
    let fds = [&load, &workers, &names].map(|map| map.fd().as_fd());
    let unusable = KernelError::io("cannot map the maps");
    let table = Table::over(fds[0], fds[1], fds[2], Access::Write).map_err(unusable)?;
    if !is_released {
        for slot in (0..MAX_WORKERS).filter(|&slot| is_dead(&table.worker(slot))) {
            table.empty(slot);
            table.free(slot);
            tracing::warn!(slot, "freed the slot of a router that died while no program was attached");
        }
    }
    if is_counted {
        return Ok(());
    }
    if table.live_slots() != 0 {
        tracing::warn!(
            "no program was attached under a running router: gauges of connections may be too high"
        );
        return Ok(());
    }
    let load = Region::of_map(fds[0], MAX_BACKENDS * ROW_BYTES, Access::Write)
        .map_err(KernelError::io("cannot map LOAD"))?;
    settle(dir, &load, MAX_BACKENDS, &["SOCKS"])
}

/// Empties the gauges of a complete set of the agent's pins, which no other agent uses.
///
/// # Errors
/// As [`routers`].
pub(super) fn agent(dir: &PinDir) -> Result<(), KernelError> {
    if works(dir, local::SOCKOPS)? {
        return Ok(());
    }
    let map = dir.open_existing("LOCAL_LOAD")?;
    let load = Region::of_map(map.fd().as_fd(), MAX_LOCAL_PORTS * ROW_BYTES, Access::Write)
        .map_err(KernelError::io("cannot map LOCAL_LOAD"))?;
    settle(dir, &load, MAX_LOCAL_PORTS, &["LOCAL_SOCKS", "LOCAL_ANSWERS"])
}

/// Whether a program is attached anywhere: a link to a cgroup that is gone does nothing.
fn works(dir: &PinDir, program: &str) -> Result<bool, KernelError> {
    let links = links::pinned(dir).map_err(KernelError::pins(&dir.links()))?;
    Ok(links.iter().any(|link| link.program == program && link.cgroup_id != 0))
}

/// Empties the gauges, if any holds something, and lets the loader make the storage of sockets anew.
fn settle(dir: &PinDir, load: &Region, rows: usize, storage: &[&str]) -> Result<(), KernelError> {
    let gauge = |row: usize, gauge: usize| load.u64(row * ROW_BYTES + gauge);
    let holds = |row: &usize| GAUGES.iter().any(|&g| gauge(*row, g).load(Relaxed) != 0);
    let left: Vec<usize> = (0..rows).filter(holds).collect();
    if left.is_empty() {
        return Ok(());
    }
    for path in storage.iter().map(|name| dir.map(name)) {
        fs::remove_file(&path).map_err(KernelError::pins(&path))?;
    }
    let (mut conns, mut requests) = (0_u64, 0_u64);
    for row in left {
        let take = |g: usize| gauge(row, g).swap(0, Relaxed);
        let [c, a, s, ..] = GAUGES.map(take);
        (conns, requests) = (conns.saturating_add(c), requests.saturating_add(a).saturating_add(s));
        let opened = gauge(row, offset_of!(BackendLoad, opened)).load(Relaxed);
        gauge(row, offset_of!(BackendLoad, closed)).store(opened, Relaxed);
    }
    tracing::warn!(conns, requests, "gauges of a time without programs start from zero");
    Ok(())
}

/// Whether the process that claimed a slot is gone, as far as `/proc` shows; never while that cannot be told.
fn is_dead(worker: &WorkerSlot) -> bool {
    if worker.cookie == 0 {
        return false;
    }
    match fs::read_to_string(format!("/proc/{}/stat", worker.pid)) {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(stat) => Process::parse(&stat).is_some_and(|now| {
            // Another got the number if it began after the claim. Started before a suspension it seems older than it is.
            now.is_zombie || now.started_ns.saturating_sub(suspended_ns()) > worker.started_ns + SLACK_NS
        }),
    }
}

/// `/proc` tells starts in hundredths of a second.
const SLACK_NS: u64 = 1_000_000_000;

/// What matters here of `/proc/<pid>/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    is_zombie: bool,
    /// `CLOCK_BOOTTIME`.
    started_ns: u64,
}

impl Process {
    fn parse(stat: &str) -> Option<Self> {
        /// The kernel's unit towards user space, whatever its own is.
        const TICK_NS: u64 = 10_000_000;
        // The name, in parentheses, may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let started_ns = fields.get(19)?.parse::<u64>().ok()?.saturating_mul(TICK_NS);
        Some(Self { is_zombie: matches!(fields[0], "Z" | "X"), started_ns })
    }
}

/// How long the machine was suspended since it started.
fn suspended_ns() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let monotonic = ns(ClockId::Monotonic);
    ns(ClockId::Boottime).saturating_sub(monotonic)
}

#[cfg(test)]
mod tests {
    use router_common::WorkerSlot;

    use super::{Process, is_dead};

    #[test]
    fn start_and_state_stand_behind_whatever_a_process_is_called() {
        let stat = "17 (a) Z (x) S 1 17 17 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 321 9 9\n";
        assert_eq!(Process::parse(stat), Some(Process { is_zombie: false, started_ns: 3_210_000_000 }));
        assert_eq!(Process::parse("17 (a) S 1"), None);
    }

    #[test]
    fn a_slot_is_dead_when_its_process_is_gone_or_younger_than_the_claim() {
        let slot = |pid, started_ns| WorkerSlot { cookie: 1, pid, reserved: 0, started_ns };
        let own = std::process::id();
        assert!(!is_dead(&slot(own, u64::MAX / 2)));
        assert!(is_dead(&slot(own, 0)), "its number was given to this process later");
        assert!(is_dead(&slot(u32::MAX, 0)));
        assert!(!is_dead(&WorkerSlot { cookie: 0, ..slot(u32::MAX, 0) }), "free");
    }
}
