//! Connections to backends that are older than the programs: counted from now on, like those they saw opening.
//!
//! The kernel lists the connections there are ([`sock_diag`]); those of a known backend and of the cgroup that the
//! programs see are told to the iterator `seed_tcp`, which counts each unless it is counted already, and only if the
//! kernel will tell of its end. Before Linux 6.12 it would not: then none is taken up. Only connections of this
//! process's network namespace are found, and a request that is under way is followed from the next one on.

use std::collections::{HashMap as Rows, HashSet};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{HashMap, MapError};
use router_common::BackendAddr;
use router_common::seed::{REFUSED, SEEDS, TAKEN_UP};

use super::cgroup::{Cgroup, Place};
use super::error::one_line;
use super::links;
use super::pins::PinDir;
use super::recount::link;
use super::{kernel, sock_diag, sys};

const PROGRAM: &str = "seed_tcp";

/// Cgroups that are looked through; sockets of more are not found.
const CGROUPS_MAX: usize = 65_536;

/// What became of connections that are older than the programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Counted from now on.
    pub taken_up: usize,
    /// Not counted, as the kernel (before 6.12) would not tell of their end.
    pub refused: usize,
}

/// Takes up the connections to these addresses.
///
/// # Errors
/// In one line, why none could be.
pub(super) fn adopt(
    ebpf: &mut Ebpf,
    dir: &PinDir,
    place: &Place,
    rows: &Rows<BackendAddr, u32>,
) -> Result<Adopted, String> {
    let Some(seen) = seen(dir, place) else { return Ok(Adopted::default()) };
    let cgroups = cgroups(&seen.path).map_err(|error| format!("cgroups: {error}"))?;
    let mut older = Vec::new();
    sock_diag::each(|connection| {
        if let Some(&row) = rows.get(&connection.peer)
            && cgroups.contains(&connection.cgroup)
        {
            older.push((connection.cookie, row));
        }
    })
    .map_err(|error| format!("sock_diag: {error}"))?;
    if older.is_empty() {
        return Ok(Adopted::default());
    }
    let iterator = link(ebpf, PROGRAM, "tcp", None)?;
    let seeds = ebpf.map_mut("SEED").ok_or("the object has no map SEED")?;
    let mut seeds: HashMap<_, u64, u32> = seeds.try_into().map_err(|error: MapError| one_line(&error))?;
    let mut adopted = Adopted::default();
    for older in older.chunks(SEEDS) {
        for (cookie, row) in older {
            seeds.insert(cookie, row, 0).map_err(|error| one_line(&error))?;
        }
        let mut told = Vec::new();
        let read = sys::iterate(iterator.as_fd()).and_then(|mut file| file.read_to_end(&mut told));
        read.map_err(|error| format!("{PROGRAM} (read): {error}"))?;
        adopted.taken_up += told.iter().filter(|&&byte| byte == TAKEN_UP).count();
        adopted.refused += told.iter().filter(|&&byte| byte == REFUSED).count();
        for (cookie, _) in older {
            seeds.remove(cookie).map_err(|error| one_line(&error))?;
        }
    }
    Ok(adopted)
}

/// The cgroup furthest up whose connections are counted.
fn seen<'a>(dir: &PinDir, place: &'a Place) -> Option<&'a Cgroup> {
    let mut from_above = place.ancestors.iter().rev().chain([&place.attach]);
    from_above.find(|&cgroup| links::on(dir, &cgroup.into(), kernel::SOCKOPS).is_some())
}

/// The kernel's numbers of a cgroup and those below it.
fn cgroups(top: &Path) -> io::Result<HashSet<u64>> {
    use std::os::unix::fs::MetadataExt;
    let mut found = HashSet::from([top.metadata()?.ino()]);
    let mut ahead: Vec<PathBuf> = vec![top.to_owned()];
    while let Some(directory) = ahead.pop() {
        // One that goes meanwhile has no sockets to take up.
        let Ok(entries) = directory.read_dir() else { continue };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if let Ok(metadata) = entry.metadata()
                && found.len() < CGROUPS_MAX
            {
                found.insert(metadata.ino());
                ahead.push(entry.path());
            }
        }
    }
    Ok(found)
}
