//! The directory of pins: where it must lie, who may look, and whether what is pinned there is ours.
//!
//! `<pin-dir>/v1/` holds the maps by name and `links/<cgroup id>/<program>`. Invariant: a pinned map is used only
//! after its type, sizes and flags were compared: a mapping with another stride would corrupt silently.
#![expect(unsafe_code, reason = "statfs and mount")]

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use aya::maps::{MapData, MapType};
use router_common::limits::{LAYOUT_VERSION, MAX_BACKENDS, MAX_WORKERS};
use router_common::{BackendAddr, BackendLoad, BackendName, SockState, WorkerSlot};

use super::kernel::KernelError;

/// Where Linux expects the BPF file system; the one place where this process mounts it by itself.
const BPFFS: &str = "/sys/fs/bpf";

const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// What a pinned map must look like. `entries` 0 = whatever the loader made of it.
struct Shape {
    name: &'static str,
    kind: MapType,
    key: usize,
    value: usize,
    entries: usize,
    flags: u32,
}

impl Shape {
    const fn array<T>(name: &'static str, entries: usize) -> Self {
        Self { name, kind: MapType::Array, key: 4, value: size_of::<T>(), entries, flags: BPF_F_MMAPABLE }
    }
}

const SHAPES: [Shape; 6] = [
    Shape::array::<BackendLoad>("LOAD", MAX_BACKENDS),
    Shape::array::<WorkerSlot>("WORKERS", MAX_WORKERS),
    Shape::array::<BackendName>("NAMES", MAX_BACKENDS),
    Shape {
        name: "BACKENDS",
        kind: MapType::Hash,
        key: size_of::<BackendAddr>(),
        value: 4,
        entries: MAX_BACKENDS,
        flags: 0,
    },
    Shape {
        name: "SOCKS",
        kind: MapType::SkStorage,
        key: 4,
        value: size_of::<SockState>(),
        entries: 0,
        flags: BPF_F_NO_PREALLOC,
    },
    Shape { name: "AYA_LOGS", kind: MapType::RingBuf, key: 0, value: 0, entries: 0, flags: 0 },
];

/// The directory of this layout's pins.
#[derive(Clone, Debug)]
pub(super) struct PinDir(PathBuf);

impl PinDir {
    /// Makes the directories, and mounts the BPF file system at its usual place if it is missing there.
    ///
    /// # Errors
    /// [`KernelError::NotBpffs`] and [`KernelError::Pins`].
    pub(super) fn create(pin_dir: &Path) -> Result<Self, KernelError> {
        ensure_bpffs(pin_dir)?;
        let dir = Self::at(pin_dir);
        let links = dir.links();
        DirBuilder::new().recursive(true).mode(0o700).create(&links).map_err(KernelError::pins(&links))?;
        Ok(dir)
    }

    /// The directory, whether it is there or not.
    pub(super) fn at(pin_dir: &Path) -> Self {
        Self(pin_dir.join(format!("v{LAYOUT_VERSION}")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn exists(&self) -> bool {
        self.0.is_dir()
    }

    /// Where links lie, one directory a cgroup.
    pub(super) fn links(&self) -> PathBuf {
        self.0.join("links")
    }

    /// Where a map lies.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Names of all maps that are pinned.
    pub(super) fn map_names() -> impl Iterator<Item = &'static str> {
        SHAPES.iter().map(|shape| shape.name)
    }

    /// Excludes other processes from giving rows away, attaching and detaching, until the file is dropped.
    ///
    /// # Errors
    /// The directory cannot be opened, or was replaced each time the lock was won.
    pub(super) fn lock(&self) -> io::Result<File> {
        // A detach may have removed the directory while this waited for the lock on it.
        for _ in 0..8 {
            let file = File::open(&self.0)?;
            file.lock()?;
            if fs::metadata(&self.0).is_ok_and(|now| file.metadata().is_ok_and(|own| own.ino() == now.ino()))
            {
                return Ok(file);
            }
        }
        Err(io::Error::other("the directory is removed again and again"))
    }

    /// Opens a pinned map of this layout; `None` if nothing is pinned under the name.
    ///
    /// # Errors
    /// [`KernelError::Layout`] if it is something else, [`KernelError::Pins`] if it cannot be looked at.
    pub(super) fn open(&self, name: &str) -> Result<Option<MapData>, KernelError> {
        let shape = SHAPES.iter().find(|shape| shape.name == name).expect("invariant: callers name own maps");
        let path = self.map(name);
        if !path.try_exists().map_err(KernelError::pins(&path))? {
            return Ok(None);
        }
        let foreign = |found: String| KernelError::Layout { path: path.clone(), found };
        let map = MapData::from_pin(&path).map_err(|error| foreign(super::kernel::one_line(&error)))?;
        let info = map.info().map_err(|error| foreign(super::kernel::one_line(&error)))?;
        let fits = info.map_type().is_ok_and(|kind| kind == shape.kind)
            && info.key_size() as usize == shape.key
            && info.value_size() as usize == shape.value
            && (shape.entries == 0 || info.max_entries() as usize == shape.entries)
            && info.map_flags() == shape.flags;
        if !fits {
            return Err(foreign(format!(
                "type {:?}, key {}, value {}, {} entries, flags {:#x}",
                info.map_type(),
                info.key_size(),
                info.value_size(),
                info.max_entries(),
                info.map_flags()
            )));
        }
        Ok(Some(map))
    }

    /// Like [`Self::open`], for a map that must be there.
    ///
    /// # Errors
    /// As [`Self::open`], and [`KernelError::NothingPinned`].
    pub(super) fn open_existing(&self, name: &str) -> Result<MapData, KernelError> {
        self.open(name)?.ok_or_else(|| KernelError::NothingPinned(self.0.clone()))
    }

    /// Whether every map is pinned, and each in this layout.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn is_complete(&self) -> Result<bool, KernelError> {
        let mut complete = true;
        for name in Self::map_names() {
            complete &= self.open(name)?.is_some();
        }
        Ok(complete)
    }
}

/// Makes sure that `dir` will lie on a BPF file system.
fn ensure_bpffs(dir: &Path) -> Result<(), KernelError> {
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or_else(|| Path::new("/"));
    if is_bpffs(existing).map_err(KernelError::pins(existing))? {
        return Ok(());
    }
    if !dir.starts_with(BPFFS) || !Path::new(BPFFS).is_dir() {
        return Err(KernelError::NotBpffs { path: dir.to_owned(), mount: None });
    }
    mount_bpffs().map_err(|error| KernelError::NotBpffs { path: dir.to_owned(), mount: Some(error) })
}

fn is_bpffs(path: &Path) -> io::Result<bool> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a terminated string, and memory for the answer.
    if unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: statfs succeeded, so it filled the struct.
    Ok(unsafe { stat.assume_init() }.f_type == BPF_FS_MAGIC)
}

fn mount_bpffs() -> io::Result<()> {
    // SAFETY: five terminated strings or flags; the kernel copies them.
    let failed = unsafe {
        libc::mount(
            c"bpf".as_ptr(),
            c"/sys/fs/bpf".as_ptr(),
            c"bpf".as_ptr(),
            0,
            c"mode=0700".as_ptr().cast(),
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
