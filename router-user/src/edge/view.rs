//! Reading and changing the guard through its pins, without a router; and taking it off.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use router_common::edge::{EdgeLimits, RULE_ALLOW, RULE_DENY, Verdict};

use super::maps::{self, Counters, Maps, Rule};
use super::owners::{self, Owner};
use super::{Device, EdgeError, Prefix, device};
use crate::account::{KernelError, lock_pins, take_link_off};

/// What a rule says of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everything it sends to a guarded port is dropped.
    Deny,
    /// It is neither dropped nor limited.
    Allow,
}

impl Kind {
    const fn value(self) -> u32 {
        match self {
            Self::Deny => RULE_DENY,
            Self::Allow => RULE_ALLOW,
        }
    }
}

/// A guarded port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Which.
    pub port: u32,
    /// The router's process.
    pub pid: u32,
    /// Whether it runs.
    pub is_alive: bool,
}

/// Everything about the guard.
#[derive(Clone, Debug)]
pub struct EdgeState {
    /// Where its pins lie.
    pub path: PathBuf,
    /// Where it is attached.
    pub devices: Vec<Device>,
    /// What it guards.
    pub ports: Vec<Port>,
    /// Its rules, in order of prefix.
    pub rules: Vec<Rule>,
    /// How fast a source may open connections.
    pub limits: EdgeLimits,
    /// Packets by verdict, since the pins were made.
    pub packets: [(Verdict, u64); Verdict::COUNT],
}

/// Reads all of it.
///
/// # Errors
/// Nothing is pinned, or it cannot be read.
pub fn state(pin_dir: &Path) -> Result<EdgeState, EdgeError> {
    let path = maps::directory(pin_dir);
    let open = Maps::open(&path)?;
    let living = living(&path)?;
    Ok(EdgeState {
        devices: device::pinned(&path).map_err(EdgeError::Links)?,
        ports: open.ports()?.into_iter().flat_map(|(port, by)| of_port(port, by.pid, &living)).collect(),
        rules: open.rules()?,
        limits: open.limits()?,
        packets: Counters::open(&path)?.read()?,
        path,
    })
}

/// The living routers of a port, or the dead one that guarded it last.
fn of_port(port: u32, last: u32, living: &[Owner]) -> Vec<Port> {
    let of_port = living.iter().filter(|owner| u32::from(owner.port) == port);
    let ports: Vec<_> = of_port.map(|owner| Port { port, pid: owner.pid, is_alive: true }).collect();
    if ports.is_empty() { vec![Port { port, pid: last, is_alive: false }] } else { ports }
}

/// The living routers, looked at while none starts.
fn living(dir: &Path) -> Result<Vec<Owner>, EdgeError> {
    let _lock = lock_pins(dir).map_err(KernelError::pins(dir))?;
    owners::living(dir).map_err(EdgeError::Owners)
}

/// Adds a rule, in place of any other of the same prefix.
///
/// # Errors
/// Nothing is pinned, or the rules are full.
pub fn add(pin_dir: &Path, prefix: Prefix, kind: Kind) -> Result<(), EdgeError> {
    Maps::open(&maps::directory(pin_dir))?.insert(prefix, kind.value())
}

/// Removes a rule; whether there was one of this kind with exactly this prefix.
///
/// # Errors
/// Nothing is pinned.
pub fn remove(pin_dir: &Path, prefix: Prefix, kind: Kind) -> Result<bool, EdgeError> {
    Maps::open(&maps::directory(pin_dir))?.remove(prefix, kind.value())
}

/// Changes the limits, from the next packet on; returns what holds.
///
/// # Errors
/// Nothing is pinned.
pub fn limit(pin_dir: &Path, rate: Option<u64>, burst: Option<u64>) -> Result<EdgeLimits, EdgeError> {
    let mut maps = Maps::open(&maps::directory(pin_dir))?;
    let now = maps.limits()?;
    if rate.is_none() && burst.is_none() {
        return Ok(now);
    }
    let limits = EdgeLimits::new(rate.unwrap_or(now.rate), burst.unwrap_or(now.burst));
    maps.set_limits(limits)?;
    Ok(limits)
}

/// What lies pinned of a guard; of whichever layout its maps are.
#[derive(Clone, Debug, Default)]
pub struct Pinned {
    /// Links.
    pub devices: Vec<Device>,
    /// Maps, by name.
    pub maps: Vec<&'static str>,
    /// Live routers whose port is guarded.
    pub pids: Vec<u32>,
}

/// Lists what is pinned; empty if there is nothing.
///
/// # Errors
/// The directory cannot be listed.
pub fn pinned(pin_dir: &Path) -> Result<Pinned, EdgeError> {
    let dir = maps::directory(pin_dir);
    if !dir.is_dir() {
        return Ok(Pinned::default());
    }
    let mut pids: Vec<u32> = living(&dir)?.into_iter().map(|owner| owner.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    Ok(Pinned {
        devices: device::pinned(&dir).map_err(EdgeError::Links)?,
        maps: maps::names().filter(|name| dir.join(name).exists()).collect(),
        pids,
    })
}

/// Takes the guard off every device and removes every pin of it.
///
/// # Errors
/// A pin cannot be removed.
pub fn detach(pin_dir: &Path) -> Result<(), EdgeError> {
    let dir = maps::directory(pin_dir);
    if !dir.is_dir() {
        return Ok(());
    }
    let failed = |error| EdgeError::from(KernelError::pins(&dir)(error));
    let _lock = lock_pins(&dir).map_err(failed)?;
    remove_pins(&dir).map_err(failed)?;
    // Other pins may lie there, or it may be a mount point: then it stays.
    let _ = fs::remove_dir(pin_dir);
    Ok(())
}

/// Removes every link and map in a directory, and the directory.
pub(super) fn remove_pins(dir: &Path) -> io::Result<()> {
    for device in device::pinned(dir)? {
        take_link_off(&device.path)?;
    }
    owners::remove_all(dir)?;
    for map in maps::names().map(|name| dir.join(name)).filter(|path| path.exists()) {
        fs::remove_file(map)?;
    }
    fs::remove_dir(dir)
}
