//! Whether the process in a slot lives: it holds a lock that the kernel takes from it at its end, whatever the end.
//!
//! Where the cgroup's programs are attached, a dead process's slot is freed at once by its anchor; the lock is for
//! where they are not, for what they missed, and for processes that cannot see each other's numbers. The lock is
//! on a directory `slots/<slot>` among the pins. Invariant: a slot is claimed, and cleared of a dead process, only
//! under its lock.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use router_common::limits::MAX_WORKERS;

use super::maps::Table;
use super::pins::PinDir;

fn directory(dir: &PinDir) -> PathBuf {
    dir.path().join("slots")
}

fn place(dir: &PinDir, slot: usize) -> PathBuf {
    directory(dir).join(slot.to_string())
}

/// The lock of a slot; `None` if a live process has it.
fn take(dir: &PinDir, slot: usize) -> io::Result<Option<File>> {
    let place = place(dir, slot);
    DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
    let file = File::open(&place)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether a live process is in a slot. What cannot be told, as of a process that never locked it, is taken for alive.
pub(super) fn is_alive(dir: &PinDir, slot: usize) -> bool {
    let lock = File::open(place(dir, slot)).map(|file| file.try_lock_shared());
    !matches!(lock, Ok(Ok(())))
}

/// Takes a free slot and its lock; `None` when all are taken.
///
/// # Errors
/// A lock cannot be tried.
pub(super) fn claim(
    dir: &PinDir,
    table: &Table,
    cookie: u64,
    pid: u32,
    now_ns: u64,
) -> io::Result<Option<(usize, File)>> {
    for slot in 0..MAX_WORKERS {
        if table.cookie(slot) != 0 {
            continue;
        }
        if let Some(lock) = take(dir, slot)?
            && table.claim_slot(slot, cookie, pid, now_ns)
        {
            return Ok(Some((slot, lock)));
        }
    }
    Ok(None)
}

/// Frees the slots of processes that are gone; returns how many there were.
///
/// # Errors
/// A lock cannot be tried.
pub(super) fn free_dead(dir: &PinDir, table: &Table) -> io::Result<usize> {
    let mut freed = 0;
    for slot in 0..MAX_WORKERS {
        let cookie = table.cookie(slot);
        // The owner may have ended, and another come, between the look and the lock.
        if cookie != 0
            && !is_alive(dir, slot)
            && let Some(_lock) = take(dir, slot)?
            && table.cookie(slot) == cookie
        {
            table.free(slot);
            freed += 1;
        }
    }
    Ok(freed)
}

/// Removes the directories of locks.
///
/// # Errors
/// One cannot be removed.
pub(super) fn remove(dir: &PinDir) -> io::Result<()> {
    for slot in 0..MAX_WORKERS {
        super::detach::gone(fs::remove_dir(place(dir, slot)))?;
    }
    super::detach::gone(fs::remove_dir(directory(dir)))
}
