//! Putting right, before programs are attached, what nobody saw while none was.
//!
//! A process that dies without the `release` program leaves its slot, and the slot's lock says that it is gone. What
//! ends without the others leaves its gauges: those are compared with the sockets there are. A kernel that tells
//! nothing of these (without BTF) leaves one thing: if no router lives that might have open connections, the gauges
//! start from zero with new storage of sockets, so that what is still open from then counts as older than the programs
//! and is not given back a second time. Either way `opened - closed = conns` holds again. While a program works nothing
//! is touched but slots. Invariant: called under the lock of the pins, before the maps are loaded.

use std::fs;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use router_common::BackendLoad;
use router_common::limits::{MAX_BACKENDS, MAX_LOCAL_PORTS};

use super::error::KernelError;
use super::gauges::{self, Gauges};
use super::links::{self, At};
use super::pins::PinDir;
use super::recount::Sockets;
use super::region::{Access, Region};
use super::{kernel, local, slots};

const ROW_BYTES: usize = size_of::<BackendLoad>();

/// Frees the slots of dead routers, and puts the gauges right, of a complete set of the routers' pins.
///
/// # Errors
/// [`KernelError`]: the pins cannot be read or changed.
pub(super) fn routers(dir: &PinDir) -> Result<(), KernelError> {
    let table = kernel::open_table(dir)?;
    let freed = slots::free_dead(dir, &table).map_err(KernelError::pins(dir.path()))?;
    if freed > 0 {
        tracing::info!(slots = freed, "freed the slots of routers that died unseen");
    }
    if works(dir, &[kernel::SOCKOPS, kernel::TCX])? {
        return Ok(());
    }
    put_right(dir, &table.load, MAX_BACKENDS, &["SOCKS"], table.live_slots() != 0)
}

/// Puts the gauges right of a complete set of the agent's pins, which no other agent uses.
///
/// # Errors
/// As [`routers`].
pub(super) fn agent(dir: &PinDir) -> Result<(), KernelError> {
    if works(dir, &[local::SOCKOPS, local::TCX])? {
        return Ok(());
    }
    let map = dir.open_existing("LOCAL_LOAD")?;
    let load = Region::of_map(map.fd().as_fd(), MAX_LOCAL_PORTS * ROW_BYTES, Access::Write)
        .map_err(KernelError::io("cannot map LOCAL_LOAD"))?;
    put_right(dir, &load, MAX_LOCAL_PORTS, &["LOCAL_SOCKS", "LOCAL_ANSWERS"], false)
}

/// Whether one of these programs is attached anywhere.
fn works(dir: &PinDir, programs: &[&str]) -> Result<bool, KernelError> {
    let links = links::pinned(dir).map_err(KernelError::pins(&dir.links()))?;
    Ok(links.iter().any(|link| programs.contains(&link.program.as_str()) && link.at != At::Gone))
}

/// Puts right the gauges of so many rows, if any holds something.
fn put_right(
    dir: &PinDir,
    load: &Region,
    rows: usize,
    storage: &[&str],
    is_in_use: bool,
) -> Result<(), KernelError> {
    let left: Vec<(usize, Gauges)> = (0..rows)
        .map(|row| (row, gauges::read(load, row).0))
        .filter(|(_, gauges)| *gauges != Gauges::default())
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    let mut sockets = Sockets::new(kernel::load(dir)?, dir)?;
    match sockets.recount().and_then(|recount| recount.settle(load, rows)) {
        Ok(0) => Ok(()),
        Ok(rows) => {
            tracing::warn!(rows, "gauges of a time without programs agree with the sockets again");
            Ok(())
        }
        Err(reason) if is_in_use => {
            tracing::warn!(
                %reason,
                "no program was attached under a running router: gauges of connections may be too high"
            );
            Ok(())
        }
        Err(reason) => {
            tracing::warn!(rows = left.len(), %reason, "gauges of a time without programs start from zero");
            start_from_zero(dir, load, &left, storage)
        }
    }
}

/// Empties gauges, and lets the loader make the storage of sockets anew.
fn start_from_zero(
    dir: &PinDir,
    load: &Region,
    left: &[(usize, Gauges)],
    storage: &[&str],
) -> Result<(), KernelError> {
    for path in storage.iter().map(|name| dir.map(name)) {
        fs::remove_file(&path).map_err(KernelError::pins(&path))?;
    }
    for &(row, found) in left {
        gauges::correct(load, row, found, Gauges::default());
        let total = |field: usize| load.u64(row * ROW_BYTES + field);
        let opened = total(offset_of!(BackendLoad, opened)).load(Relaxed);
        total(offset_of!(BackendLoad, closed)).store(opened, Relaxed);
    }
    Ok(())
}
