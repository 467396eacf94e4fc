//! The directory of pins: where it must lie, who may look, and whether what is pinned there is ours.
//!
//! `<pin-dir>/v1/` holds the maps by name, `links/<cgroup id>/<program>`, `links/dev-<device>-<namespace>/<program>`
//! and `slots/<slot>`; those of the agent beside them, with `agent` for `links`. The two sets come and go without each other. Invariant: a pinned map is used only
//! after its type, sizes and flags were compared: a mapping with another stride would corrupt silently.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aya::maps::{MapData, MapError, MapInfo, MapType};
use router_common::edge::SourceKey;
use router_common::inband::MAX_PEERS;
use router_common::limits::{LAYOUT_VERSION, MAX_BACKENDS, MAX_LOCAL_PORTS, MAX_WORKERS};
use router_common::{Answer, BackendAddr, BackendLoad, BackendName, SockState, Telling, WorkerSlot};

use super::bpffs;
use super::error::{KernelError, one_line};
use super::slots;

/// Nobody holds the lock longer than loading the programs takes: half a second, on a slow and busy machine ten. Several
/// processes that a host starts at once wait for each other, and one that gave up would count for itself till its end.
const LOCK_WAIT: Duration = Duration::from_secs(60);

const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// What a pinned map must look like. `entries` 0 = whatever the loader made of it.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) kind: MapType,
    pub(crate) key: usize,
    pub(crate) value: usize,
    pub(crate) entries: usize,
    pub(crate) flags: u32,
}

impl Shape {
    const fn array<T>(name: &'static str, entries: usize) -> Self {
        Self { name, kind: MapType::Array, key: 4, value: size_of::<T>(), entries, flags: BPF_F_MMAPABLE }
    }

    const fn hash<K>(name: &'static str, entries: usize) -> Self {
        Self { name, kind: MapType::Hash, key: size_of::<K>(), value: 4, entries, flags: 0 }
    }

    /// Prefixes of addresses. The length of one lies before its bits.
    pub(crate) const fn prefixes(name: &'static str, entries: usize) -> Self {
        let (kind, key) = (MapType::LpmTrie, 4 + size_of::<SourceKey>());
        Self { name, kind, key, value: 4, entries, flags: BPF_F_NO_PREALLOC }
    }

    const fn storage<T>(name: &'static str) -> Self {
        let value = size_of::<T>();
        Self { name, kind: MapType::SkStorage, key: 4, value, entries: 0, flags: BPF_F_NO_PREALLOC }
    }

    fn fits(&self, map: &MapInfo) -> bool {
        map.map_type().is_ok_and(|kind| kind == self.kind)
            && map.key_size() as usize == self.key
            && map.value_size() as usize == self.value
            && (self.entries == 0 || map.max_entries() as usize == self.entries)
            && map.map_flags() == self.flags
    }
}

const ROUTER_SHAPES: [Shape; 6] = [
    Shape::array::<BackendLoad>("LOAD", MAX_BACKENDS),
    Shape::array::<WorkerSlot>("WORKERS", MAX_WORKERS),
    Shape::array::<BackendName>("NAMES", MAX_BACKENDS),
    Shape::hash::<BackendAddr>("BACKENDS", MAX_BACKENDS),
    Shape::storage::<SockState>("SOCKS"),
    Shape { name: "AYA_LOGS", kind: MapType::RingBuf, key: 0, value: 0, entries: 0, flags: 0 },
];

const AGENT_SHAPES: [Shape; 6] = [
    Shape::array::<BackendLoad>("LOCAL_LOAD", MAX_LOCAL_PORTS),
    Shape::hash::<u32>("LOCAL_PORTS", MAX_LOCAL_PORTS),
    Shape::storage::<SockState>("LOCAL_SOCKS"),
    Shape::storage::<Answer>("LOCAL_ANSWERS"),
    Shape::prefixes("LOCAL_PEERS", MAX_PEERS),
    Shape::storage::<Telling>("LOCAL_TELLING"),
];

/// Whose pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    /// Those of the routers.
    Router,
    /// Those of the agent.
    Agent,
}

impl Set {
    const fn shapes(self) -> &'static [Shape] {
        match self {
            Self::Router => &ROUTER_SHAPES,
            Self::Agent => &AGENT_SHAPES,
        }
    }

    const fn links(self) -> &'static str {
        match self {
            Self::Router => "links",
            Self::Agent => "agent",
        }
    }
}

/// The directory of this layout's pins, and which of them are meant.
#[derive(Clone, Debug)]
pub(super) struct PinDir {
    path: PathBuf,
    set: Set,
}

impl PinDir {
    /// Makes the directories, and mounts the BPF file system at its usual place if it is missing there.
    ///
    /// # Errors
    /// [`KernelError::NotBpffs`] and [`KernelError::Pins`].
    pub(super) fn create(pin_dir: &Path, set: Set) -> Result<Self, KernelError> {
        bpffs::ensure(pin_dir)?;
        let dir = Self::at(pin_dir, set);
        let links = dir.links();
        DirBuilder::new().recursive(true).mode(0o700).create(&links).map_err(KernelError::pins(&links))?;
        Ok(dir)
    }

    /// The directory, whether it is there or not.
    pub(super) fn at(pin_dir: &Path, set: Set) -> Self {
        Self { path: pin_dir.join(format!("v{LAYOUT_VERSION}")), set }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// Where links lie, one directory a cgroup or device.
    pub(super) fn links(&self) -> PathBuf {
        self.path.join(self.set.links())
    }

    /// Where a map lies.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The map of sockets' states.
    pub(super) const fn states(&self) -> &'static str {
        match self.set {
            Set::Router => "SOCKS",
            Set::Agent => "LOCAL_SOCKS",
        }
    }

    /// Names of all maps of the set.
    pub(super) fn map_names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.set.shapes().iter().map(|shape| shape.name)
    }

    /// Excludes other processes from giving rows away, attaching and detaching, until the file is dropped.
    ///
    /// # Errors
    /// The directory cannot be opened, or another process holds the lock for more than a minute.
    pub(super) fn lock(&self) -> io::Result<File> {
        lock(&self.path)
    }

    /// Unpins every map.
    ///
    /// # Errors
    /// [`KernelError::Pins`].
    pub(super) fn remove_maps(&self) -> Result<(), KernelError> {
        for name in self.map_names() {
            let path = self.map(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(KernelError::pins(&path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the locks of slots, if the set has any.
    ///
    /// # Errors
    /// [`KernelError::Pins`].
    pub(super) fn remove_slots(&self) -> Result<(), KernelError> {
        match self.set {
            Set::Router => slots::remove(self).map_err(KernelError::pins(&self.path)),
            Set::Agent => Ok(()),
        }
    }

    /// Opens a pinned map of this layout; `None` if nothing is pinned under the name.
    ///
    /// # Errors
    /// [`KernelError::Layout`] if it is something else, [`KernelError::Pins`] if it cannot be looked at.
    pub(super) fn open(&self, name: &str) -> Result<Option<MapData>, KernelError> {
        open(&self.path, self.set.shapes(), name)
    }

    /// Like [`Self::open`], for a map that must be there.
    ///
    /// # Errors
    /// As [`Self::open`], and [`KernelError::NothingPinned`].
    pub(super) fn open_existing(&self, name: &str) -> Result<MapData, KernelError> {
        self.open(name)?.ok_or_else(|| KernelError::NothingPinned(self.path.clone()))
    }

    /// Whether every map is pinned, and each in this layout.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn is_complete(&self) -> Result<bool, KernelError> {
        let mut complete = true;
        for name in self.map_names() {
            complete &= self.open(name)?.is_some();
        }
        Ok(complete)
    }
}

/// Excludes other processes from a directory of pins, until the file is dropped.
///
/// # Errors
/// As [`PinDir::lock`].
pub(crate) fn lock(dir: &Path) -> io::Result<File> {
    let end = Instant::now() + LOCK_WAIT;
    while Instant::now() < end {
        // Opened anew each time: a detach may have removed the directory that the lock was tried on.
        let file = File::open(dir)?;
        match file.try_lock() {
            Ok(()) if file.metadata()?.ino() == fs::metadata(dir)?.ino() => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(2)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "another process holds the lock"))
}

/// Opens a map pinned in a directory, one of these; `None` if nothing is pinned under the name.
///
/// # Errors
/// As [`PinDir::open`].
pub(crate) fn open(dir: &Path, shapes: &[Shape], name: &str) -> Result<Option<MapData>, KernelError> {
    let shape = shapes.iter().find(|shape| shape.name == name);
    let shape = shape.expect("invariant: callers name maps of the set");
    let path = dir.join(name);
    let foreign = |found: String| KernelError::Layout { path: path.clone(), found };
    // What is pinned looks like a plain file; the kernel would deny all else as if a right were missing.
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(KernelError::pins(&path)(error)),
        Ok(entry) if !entry.is_file() => return Err(foreign("a directory or link, no map".to_owned())),
        Ok(_) => {}
    }
    let map = match MapData::from_pin(&path) {
        Err(MapError::SyscallError(denied)) if denied.io_error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(KernelError::pins(&path)(denied.io_error));
        }
        Err(error) => return Err(foreign(one_line(&error))),
        Ok(map) => map,
    };
    let info = map.info().map_err(|error| foreign(one_line(&error)))?;
    if shape.fits(&info) { Ok(Some(map)) } else { Err(foreign(describe(&info))) }
}

fn describe(map: &MapInfo) -> String {
    format!(
        "{}, key {} B, value {} B, {} entries, flags {:#x}",
        map.map_type().map_or_else(|_| "unknown type".to_owned(), |kind| format!("{kind:?}")),
        map.key_size(),
        map.value_size(),
        map.max_entries(),
        map.map_flags()
    )
}
