//! Loading and attaching the programs, and taking a slot among the router processes.
//!
//! Each program is loaded by itself: without `inflight_sockops` neither connections nor the requests on them are
//! counted, without `phase_ingress` and `phase_egress` the latter are not, without `inband_hear` what engines' hosts
//! tell is not heard, and the rest works. Without `release`
//! nobody would free the slot of a process that dies, so counts are then not shared at all.
//! Nothing is detached on exit: connections that close while no program is attached would never be subtracted.
//! Invariant: whatever fails on the way leaves `Account::in_memory` with one line that says why.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{HashMap, Map, MapData, SkStorage};
use aya::programs::links::FdLink;
use aya::programs::{CgroupAttachMode, Program, ProgramError};
use aya::{Ebpf, EbpfLoader};
use parking_lot::Mutex;

use super::cgroup::{self, Place};
use super::error::{KernelError, one_line};
use super::maps::{SharedTable, Table};
use super::pins::{PinDir, Set};
use super::region::Access;
use super::rows::{Keys, Rows};
use super::watch::Watch;
use super::{Account, Inner, LogReader, Sharing, State, anchor, caps, detach, links, log, reconcile};

/// The object that `cargo xtask ebpf` builds, or the committed copy of it; empty if there was neither.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("UNLATCH_BPF_OBJECT"));

/// Frees the slots of dead processes. Nothing is shared without it.
pub(super) const RELEASE: &str = "release";
/// What counts besides. Each is of use only with those before it: requests are followed on counted connections, and
/// one that was sent must not await an answer that nobody sees.
const COUNTING: [&str; 3] = [SOCKOPS, "phase_ingress", EGRESS];
/// Counts connections.
pub(super) const SOCKOPS: &str = "inflight_sockops";
/// The last one that following requests needs.
pub(super) const EGRESS: &str = "phase_egress";
/// Hears what the hosts of backends tell, on counted connections.
const IN_BAND: &str = "inband_hear";
/// Every program, in the order in which they are named to people.
pub(super) const PROGRAMS: [&str; 5] = [COUNTING[0], COUNTING[1], COUNTING[2], IN_BAND, RELEASE];

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
    /// The cgroup to attach to; `None` = this process's own. It must be the own one or above it.
    pub cgroup: Option<PathBuf>,
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
    let place = cgroup::place(options.cgroup.as_deref())?;
    let dir = PinDir::create(&options.pin_dir, Set::Router)?;
    let _lock = dir.lock().map_err(KernelError::pins(dir.path()))?;
    let was_complete = tidy(&dir)?;
    if was_complete {
        reconcile::routers(&dir)?;
    }
    let account = take_part(options.mode, &place, &dir);
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
fn take_part(mode: KernelMode, place: &Place, dir: &PinDir) -> Result<Account, KernelError> {
    let mut ebpf = load(dir)?;
    attach(&mut ebpf, RELEASE, place, dir).map_err(KernelError::Program)?;
    let (mut programs, mut missing) = (Vec::new(), Vec::new());
    for name in COUNTING.into_iter().chain([IN_BAND]) {
        let has_those_before = if name == IN_BAND { programs.contains(&SOCKOPS) } else { missing.is_empty() };
        let attached = match has_those_before {
            true => attach(&mut ebpf, name, place, dir),
            false => Err(format!("{name}: of no use without those before it")),
        };
        match attached {
            Ok(()) => programs.push(name),
            Err(reason) if mode == KernelMode::On => return Err(KernelError::Program(reason)),
            Err(reason) => missing.push(reason),
        }
    }
    programs.push(RELEASE);
    account(ebpf, dir.clone(), place, State::On { programs, missing })
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

/// Takes a slot and gathers what an account holds.
fn account(mut ebpf: Ebpf, dir: PinDir, place: &Place, state: State) -> Result<Account, KernelError> {
    let [load, workers, names] = ["LOAD", "WORKERS", "NAMES"].map(|name| dir.open_existing(name));
    let (load, workers, names) = (load?, workers?, names?);
    let fds = [&load, &workers, &names].map(|map| map.fd().as_fd());
    let table =
        Table::over(fds[0], fds[1], fds[2], Access::Write).map_err(KernelError::io("cannot map the maps"))?;
    let map = load.info().map_err(|error| KernelError::Load(one_line(&error)))?.id();
    let programs = state.programs().into_iter().filter_map(|(name, is_on)| is_on.then_some(name)).collect();
    let watch = Watch::new(dir.clone(), place.clone(), map, programs);
    let anchor = anchor::Anchor::new().map_err(KernelError::io("cannot make the anchor socket"))?;
    let slot = table.claim(anchor.cookie(), std::process::id(), monotonic_ns()).ok_or(KernelError::NoSlot)?;
    let table = SharedTable { table, slot };
    let keys: HashMap<MapData, _, _> = take(&mut ebpf, "BACKENDS")?;
    let socks: SkStorage<MapData, _> = take(&mut ebpf, "SOCKS")?;
    // Records of the programs are for people: without the ring there are none, and all else works.
    let logs = (slot == 0)
        .then(|| aya_log::EbpfLogger::init_with_logger(&mut ebpf, log::ToTracing).ok().map(LogReader))
        .flatten();
    Ok(Account(Arc::new(Inner {
        state,
        rows: Mutex::new(Rows::new(Keys::Pinned { map: keys, dir })),
        table,
        sharing: Some(Sharing { socks: Mutex::new(socks), logs: Mutex::new(logs), watch, _anchor: anchor }),
    })))
}

fn take<T: TryFrom<Map, Error: std::error::Error>>(ebpf: &mut Ebpf, name: &str) -> Result<T, KernelError> {
    let map =
        ebpf.take_map(name).ok_or_else(|| KernelError::Load(format!("the object has no map {name}")))?;
    T::try_from(map).map_err(|error| KernelError::Load(one_line(&error)))
}

/// Makes sure that a program of this very version sees the cgroup, by an own link or by one further up. One of another
/// version is replaced behind its link.
pub(super) fn attach(ebpf: &mut Ebpf, name: &str, place: &Place, dir: &PinDir) -> Result<(), String> {
    let failed = |what: &str, error: &dyn std::error::Error| format!("{name} ({what}): {}", one_line(error));
    let tag = load_program(ebpf, name).map_err(|error| failed("load", &error))?;
    if place.cgroups().any(|cgroup| links::on(dir, cgroup, name).is_some_and(|link| link.tag == tag)) {
        return Ok(());
    }
    if let Some(old) = links::on(dir, &place.attach, name)
        && program_fd(ebpf, name).is_ok_and(|program| links::replace(&old, program).is_ok())
    {
        return Ok(());
    }
    let directory = links::place(dir, &place.attach);
    let pin = directory.join(name);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(|error| failed("pin", &error))?;
    let cgroup = std::fs::File::open(&place.attach.path).map_err(|error| failed("cgroup", &error))?;
    // The new link first, then away with one of another version: both at once count once, none would count nothing.
    let link = link_program(ebpf, name, &cgroup).map_err(|error| failed("attach", &error))?;
    match std::fs::remove_file(&pin) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("unpin", &error)),
        _ => {}
    }
    link.pin(&pin).map_err(|error| failed("pin", &error))?;
    Ok(())
}

/// Passes a program through the verifier; returns the digest of its instructions.
fn load_program(ebpf: &mut Ebpf, name: &str) -> Result<String, ProgramError> {
    let info = match program(ebpf, name)? {
        Program::SockOps(program) => program.load().and_then(|()| program.info()),
        Program::CgroupSock(program) => program.load().and_then(|()| program.info()),
        Program::CgroupSkb(program) => program.load().and_then(|()| program.info()),
        _ => Err(ProgramError::UnexpectedProgramType),
    }?;
    Ok(format!("{:016x}", info.tag()))
}

fn link_program(ebpf: &mut Ebpf, name: &str, cgroup: &std::fs::File) -> Result<FdLink, ProgramError> {
    // `Single` is right for links: the kernel itself allows several of them on a cgroup.
    let mode = CgroupAttachMode::Single;
    let link = match program(ebpf, name)? {
        Program::SockOps(program) => {
            let id = program.attach(cgroup, mode)?;
            program.take_link(id)?.try_into()
        }
        Program::CgroupSock(program) => {
            let id = program.attach(cgroup, mode)?;
            program.take_link(id)?.try_into()
        }
        Program::CgroupSkb(program) => {
            let direction = program.expected_attach_type().ok_or(ProgramError::UnexpectedProgramType)?;
            let id = program.attach(cgroup, direction, mode)?;
            program.take_link(id)?.try_into()
        }
        _ => return Err(ProgramError::UnexpectedProgramType),
    };
    link.map_err(|error| ProgramError::IOError(io::Error::other(error)))
}

fn program_fd<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<BorrowedFd<'a>, ProgramError> {
    match program(ebpf, name)? {
        Program::SockOps(program) => program.fd(),
        Program::CgroupSock(program) => program.fd(),
        Program::CgroupSkb(program) => program.fd(),
        _ => return Err(ProgramError::UnexpectedProgramType),
    }
    .map(AsFd::as_fd)
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Program, ProgramError> {
    ebpf.program_mut(name).ok_or_else(|| ProgramError::InvalidName { name: name.to_owned() })
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
    use super::{KernelMode, KernelOptions, open};

    #[test]
    fn off_counts_in_memory_and_says_so() {
        let options = KernelOptions { mode: KernelMode::Off, pin_dir: "/nowhere".into(), cgroup: None };
        let account = open(&options).unwrap();
        assert!(!account.state().is_on());
    }
}
