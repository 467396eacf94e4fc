//! Which routers are guarded where, for as long as they live.
//!
//! Each holds a shared lock on a directory of its own beside the pins, `owner-<device>-<port>-<pid>`, and the kernel
//! drops that lock with the process, however it ends. A pid alone would not do: it stays while a dead process is not
//! waited for, is given to another later, and means nothing in another PID namespace. Invariant: owners are made and
//! looked at under the lock of the pins only, so that nobody is taken for dead while it starts.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::device::DeviceId;

/// A router's share in the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    /// The port that is guarded.
    pub(super) port: u16,
    /// The device.
    pub(super) device: DeviceId,
    /// The process, for people.
    pub(super) pid: u32,
}

/// Keeps a share for as long as it lives.
#[derive(Debug)]
pub(super) struct Held {
    _locked: File,
}

impl Owner {
    /// Takes the share.
    ///
    /// # Errors
    /// The directory cannot be made or locked.
    pub(super) fn hold(self, dir: &Path) -> io::Result<Held> {
        let path = self.path(dir);
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let file = File::open(path)?;
        file.try_lock_shared()?;
        Ok(Held { _locked: file })
    }

    fn path(self, dir: &Path) -> PathBuf {
        dir.join(format!("owner-{}-{}-{}", self.device, self.port, self.pid))
    }

    fn of_path(path: &Path) -> Option<Self> {
        let (rest, pid) = path.file_name()?.to_str()?.strip_prefix("owner-")?.rsplit_once('-')?;
        let (device, port) = rest.rsplit_once('-')?;
        Some(Self { port: port.parse().ok()?, device: device.parse().ok()?, pid: pid.parse().ok()? })
    }
}

/// The living, in order of port.
///
/// # Errors
/// The directory cannot be listed, or an owner's not opened.
pub(super) fn living(dir: &Path) -> io::Result<Vec<Owner>> {
    let mut living = Vec::new();
    for (owner, path) in all(dir)? {
        if is_held(&path)? {
            living.push(owner);
        }
    }
    living.sort_unstable();
    Ok(living)
}

/// Removes what the dead left.
///
/// # Errors
/// As [`living`], or a directory cannot be removed.
pub(super) fn bury(dir: &Path) -> io::Result<()> {
    for (_, path) in all(dir)? {
        if !is_held(&path)? {
            fs::remove_dir(path)?;
        }
    }
    Ok(())
}

/// Removes the owners' directories, held or not.
///
/// # Errors
/// The directory cannot be listed, or one not removed.
pub(super) fn remove_all(dir: &Path) -> io::Result<()> {
    all(dir)?.into_iter().try_for_each(|(_, path)| fs::remove_dir(path))
}

fn all(dir: &Path) -> io::Result<Vec<(Owner, PathBuf)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        all.extend(Owner::of_path(&path).map(|owner| (owner, path)));
    }
    Ok(all)
}

fn is_held(path: &Path) -> io::Result<bool> {
    match File::open(path)?.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceId, Owner, bury, living};

    #[test]
    fn an_owner_lives_for_as_long_as_its_lock_and_not_as_its_pid() {
        let dir = tempfile::tempdir().unwrap();
        let owner = |port| Owner {
            port,
            device: DeviceId { netns: 4_026_531_840, ifindex: 7 },
            pid: std::process::id(),
        };
        let (first, second) = (owner(1).hold(dir.path()).unwrap(), owner(2).hold(dir.path()).unwrap());
        let again = owner(1).hold(dir.path()).unwrap();
        assert_eq!(living(dir.path()).unwrap(), [owner(1), owner(2)]);
        drop((first, second));
        assert_eq!(living(dir.path()).unwrap(), [owner(1)], "one of two with this share lives");
        drop(again);
        assert!(living(dir.path()).unwrap().is_empty());
        bury(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
