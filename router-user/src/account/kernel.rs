//! Loading and attaching the programs, and taking a slot among the router processes.
//!
//! Each program is loaded by itself: without `inflight_sockops` neither connections nor the requests on them are
//! counted, without `phase_ingress` and `phase_egress` the latter are not, without `inband_hear` what engines' hosts
//! tell is not heard, and the rest works. Without `release`
//! the slot of a process that dies would be freed late, so counts are then not shared at all. At devices there is no
//! such program, and [`Account::sweep`](super::Account::sweep) is what frees it.
//! Nothing is detached on exit: connections that close while no program is attached would never be subtracted.
//! Invariant: whatever fails on the way leaves `Account::in_memory` with one line that says why.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{HashMap, Map, MapData, SkStorage};
use aya::{Ebpf, EbpfLoader};
use parking_lot::Mutex;

use super::attach::{Site, attach};
use super::error::{KernelError, one_line};
use super::maps::{SharedTable, Table};
use super::pins::{PinDir, Set};
use super::recount::Sockets;
use super::region::Access;
use super::rows::{Keys, Rows};
use super::watch::Watch;
use super::{
    Account, Inner, LogReader, Sharing, State, anchor, caps, cgroup, detach, device, links, log, reconcile,
    slots,
};

/// The object that `cargo xtask ebpf` builds, or the committed copy of it; empty if there was neither.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("UNLATCH_BPF_OBJECT"));

/// Frees the slots of dead processes. Nothing is shared without it.
pub(super) const RELEASE: &str = "release";
/// What counts besides. Each but the last is of use only with those before it: requests are followed on counted
/// connections, and one that was sent must not await an answer that nobody sees. The last needs the first.
const COUNTING: [&str; 4] = [SOCKOPS, "phase_ingress", EGRESS, IN_BAND];
/// Counts connections.
pub(super) const SOCKOPS: &str = "inflight_sockops";
/// The last one that following requests needs.
pub(super) const EGRESS: &str = "phase_egress";
/// Hears what the hosts of backends tell, on counted connections.
const IN_BAND: &str = "inband_hear";
/// Every program, in the order in which they are named to people.
/// Every program of a cgroup, in the order in which they are named to people.
const PROGRAMS: [&str; 5] = [COUNTING[0], COUNTING[1], COUNTING[2], COUNTING[3], RELEASE];
/// Those of devices, where both are needed for either count.
const AT_DEVICES: [&str; 2] = ["tcx_ingress", TCX];
/// The last one that counting at devices needs.
pub(super) const TCX: &str = "tcx_egress";

/// Whether to use the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelMode {
    /// If it can be used.
    #[default]
    Auto,
    /// Fail without it, or with a part of it only.
    On,
    /// Do not try.
    Off,
}

/// How to use the kernel.
#[derive(Clone, Debug)]
pub struct KernelOptions {
    /// Whether at all.
    pub mode: KernelMode,
    /// Directory of pins; those of this layout lie in `v1` below it.
    pub pin_dir: PathBuf,
    /// Where the programs are attached.
    pub hook: Hook,
}

/// Where programs are attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// To a cgroup; `None` = this process's own. It must be the own one or above it.
    Cgroup(Option<PathBuf>),
    /// To network devices of these names, with Linux 6.6 or newer. A connection must pass exactly one of them.
    Tcx(Vec<String>),
}

impl Hook {
    /// Every program there is for it.
    pub(super) const fn programs(&self) -> &'static [&'static str] {
        match self {
            Self::Cgroup(_) => &PROGRAMS,
            Self::Tcx(_) => &AT_DEVICES,
        }
    }
}

/// An account with the kernel if the mode allows, else in memory. In mode `auto` the reason for the latter is in
/// [`Account::state`], for the caller to log.
///
/// # Errors
/// In mode `on`, whatever keeps the kernel out. In the others, only that there is no memory.
pub fn open(options: &KernelOptions) -> Result<Account, KernelError> {
    let in_memory = |reason: &str| Account::in_memory(reason).map_err(KernelError::io("cannot map memory"));
    match options.mode {
        KernelMode::Off => in_memory("switched off"),
        KernelMode::On => share(options),
        KernelMode::Auto => share(options).or_else(|error| in_memory(&one_line(&error))),
    }
}

/// Whether programs can be loaded at all.
///
/// # Errors
/// [`KernelError::NoObject`] and [`KernelError::Capabilities`].
pub(super) fn require() -> Result<(), KernelError> {
    require_for(OBJECT)
}

/// The same of another object's programs.
///
/// # Errors
/// As [`require`].
pub(crate) fn require_for(object: &[u8]) -> Result<(), KernelError> {
    if object.is_empty() {
        return Err(KernelError::NoObject);
    }
    caps::missing().map_or(Ok(()), |missing| Err(KernelError::Capabilities(missing)))
}

/// Opens or makes the set of pins, and takes part in it.
fn share(options: &KernelOptions) -> Result<Account, KernelError> {
    require()?;
    let site = match &options.hook {
        Hook::Cgroup(chosen) => Site::Cgroup(cgroup::place(chosen.as_deref())?),
        Hook::Tcx(names) => Site::Devices(device::find(names)?),
    };
    let dir = PinDir::create(&options.pin_dir, Set::Router)?;
    let _lock = dir.lock().map_err(KernelError::pins(dir.path()))?;
    let was_complete = tidy(&dir)?;
    if was_complete {
        reconcile::routers(&dir)?;
    }
    let account = take_part(options, site, &dir);
    if account.is_err() && !was_complete {
        // Nobody else uses what was just made. That it cannot be removed is less to the point than why it failed.
        let _ = detach::take_off(&dir);
    }
    account
}

/// Prepares a set of pins for use; says whether it is complete. Else nothing of it is left: it is made anew as a whole.
///
/// # Errors
/// [`KernelError::Layout`], [`KernelError::Pins`].
pub(super) fn tidy(dir: &PinDir) -> Result<bool, KernelError> {
    let on_links = |error| KernelError::Pins { path: dir.links(), source: error };
    if dir.is_complete()? {
        links::sweep(dir).map_err(on_links)?;
        return Ok(true);
    }
    // The programs count into the maps they were loaded with, and go a little after their links: with a new LOAD and
    // the old SOCKS they would take new connections.
    links::remove_all(dir).map_err(on_links)?;
    dir.remove_maps()?;
    Ok(false)
}

/// Attaches what is not attached yet, and takes a slot.
fn take_part(options: &KernelOptions, site: Site, dir: &PinDir) -> Result<Account, KernelError> {
    let mut ebpf = load(dir)?;
    let table = open_table(dir)?;
    leave_the_other_hook(&site, dir, &table)?;
    let counting: &[&str] = match site {
        Site::Cgroup(_) => {
            attach(&mut ebpf, RELEASE, &site, dir).map_err(KernelError::Program)?;
            &COUNTING
        }
        Site::Devices(_) => &AT_DEVICES,
    };
    let (mut programs, mut missing) = (Vec::new(), Vec::new());
    for &name in counting {
        let has_those_before = if name == IN_BAND { programs.contains(&SOCKOPS) } else { missing.is_empty() };
        let attached = match has_those_before {
            true => attach(&mut ebpf, name, &site, dir),
            false => Err(format!("{name}: of no use without those before it")),
        };
        match attached {
            Ok(()) => programs.push(name),
            Err(reason) if options.mode == KernelMode::On => return Err(KernelError::Program(reason)),
            Err(reason) => missing.push(reason),
        }
    }
    if matches!(site, Site::Cgroup(_)) {
        programs.push(RELEASE);
    }
    account(ebpf, table, dir.clone(), site, State::On { programs, missing })
}

/// Programs of cgroups and of devices would count the same requests twice: those of the hook that is not chosen go, if
/// no router uses them.
fn leave_the_other_hook(site: &Site, dir: &PinDir, table: &Table) -> Result<(), KernelError> {
    let pins = |error| KernelError::Pins { path: dir.links(), source: error };
    let of_cgroups = matches!(site, Site::Cgroup(_));
    let is_other = |at: links::At| matches!(at, links::At::Cgroup(_)) != of_cgroups;
    let others = links::pinned(dir).map_err(pins)?.into_iter().filter(|link| is_other(link.at));
    if others.count() == 0 {
        return Ok(());
    }
    if table.live_slots() != 0 {
        return Err(KernelError::OtherHook);
    }
    links::remove_where(dir, |link| is_other(link.at)).map_err(pins)
}

/// Creates the maps that are not pinned yet, and opens the others.
pub(super) fn load(dir: &PinDir) -> Result<Ebpf, KernelError> {
    load_object(OBJECT, dir.path(), dir.map_names())
}

/// The same of another object, whose maps of these names are pinned in a directory.
///
/// # Errors
/// [`KernelError::Load`].
pub(crate) fn load_object(
    object: &[u8],
    dir: &Path,
    maps: impl Iterator<Item = &'static str>,
) -> Result<Ebpf, KernelError> {
    let mut loader = EbpfLoader::new();
    // No program reads kernel structures, so none is relocated against the kernel's BTF.
    loader.btf(None);
    for name in maps {
        loader.map_pin_path(name, dir.join(name));
    }
    loader.load(object).map_err(|error| KernelError::Load(one_line(&error)))
}

/// The table over the pinned maps.
///
/// # Errors
/// [`KernelError`]: a map is missing, of another layout, or cannot be mapped.
pub(super) fn open_table(dir: &PinDir) -> Result<Table, KernelError> {
    let [load, workers, names] = ["LOAD", "WORKERS", "NAMES"].map(|name| dir.open_existing(name));
    let (load, workers, names) = (load?, workers?, names?);
    let fds = [&load, &workers, &names].map(|map| map.fd().as_fd());
    Table::over(fds[0], fds[1], fds[2], Access::Write).map_err(KernelError::io("cannot map the maps"))
}

/// Takes a slot and gathers what an account holds.
fn account(
    mut ebpf: Ebpf,
    table: Table,
    dir: PinDir,
    site: Site,
    state: State,
) -> Result<Account, KernelError> {
    let watch = Watch::new(dir.clone(), site.clone(), &state)?;
    let anchor = anchor::Anchor::new().map_err(KernelError::io("cannot make the anchor socket"))?;
    let (slot, lock) = slots::claim(&dir, &table, anchor.cookie(), std::process::id(), monotonic_ns())
        .map_err(KernelError::pins(dir.path()))?
        .ok_or(KernelError::NoSlot)?;
    let table = SharedTable { table, slot };
    let keys: HashMap<MapData, _, _> = take(&mut ebpf, "BACKENDS")?;
    let socks: SkStorage<MapData, _> = take(&mut ebpf, "SOCKS")?;
    // Records of the programs are for people: without the ring there are none, and all else works.
    let logs = (slot == 0)
        .then(|| aya_log::EbpfLogger::init_with_logger(&mut ebpf, log::ToTracing).ok().map(LogReader))
        .flatten();
    let sockets = Sockets::new(ebpf, &dir)?;
    Ok(Account(Arc::new(Inner {
        state,
        rows: Mutex::new(Rows::new(Keys::Pinned { map: keys, dir: dir.clone() })),
        table,
        sharing: Some(Sharing {
            socks: Mutex::new(socks),
            logs: Mutex::new(logs),
            dir,
            site,
            watch,
            sockets: Mutex::new(sockets),
            _anchor: anchor,
            _lock: lock,
        }),
    })))
}

/// A map of the object.
///
/// # Errors
/// [`KernelError::Load`].
pub(super) fn take<T: TryFrom<Map, Error: std::error::Error>>(
    ebpf: &mut Ebpf,
    name: &str,
) -> Result<T, KernelError> {
    let map =
        ebpf.take_map(name).ok_or_else(|| KernelError::Load(format!("the object has no map {name}")))?;
    T::try_from(map).map_err(|error| KernelError::Load(one_line(&error)))
}

/// `CLOCK_MONOTONIC`, the clock of the programs.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "std's Instant does not tell its value")]
    // SAFETY: memory for the answer; the clock always exists.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
    }
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::{Hook, KernelMode, KernelOptions, open};

    #[test]
    fn off_counts_in_memory_and_says_so() {
        let options =
            KernelOptions { mode: KernelMode::Off, pin_dir: "/nowhere".into(), hook: Hook::Cgroup(None) };
        let account = open(&options).unwrap();
        assert!(!account.state().is_on());
    }
}
