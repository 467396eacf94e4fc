//! Taking programs and pins off.
//!
//! Never part of an exit: connections that close while no program is attached would never be subtracted.

use std::fs;
use std::io;
use std::path::Path;

use super::error::KernelError;
use super::links;
use super::local;
use super::pins::{PinDir, Set};
use super::view::{Pinned, View, pinned};

/// Whether to detach under a running router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Not while a slot is live, nor what is of another layout.
    Careful,
    /// In any case.
    Forced,
}

/// Why nothing was detached.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    /// Routers are running.
    #[error("routers are running (pid {}); stop them, or use --force", list(.0))]
    Live(Vec<u32>),
    /// An agent is running.
    #[error("an agent is running; stop it, or use --force")]
    Agent,
    /// The pins cannot be read or removed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

fn list(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Takes off every link and pin below a directory, and the directories. Returns what there was.
///
/// # Errors
/// [`DetachError`]; nothing was taken off if it is [`DetachError::Live`].
pub fn detach(pin_dir: &Path, how: Detach) -> Result<Pinned, DetachError> {
    let before = pinned(pin_dir)?;
    let (dir, agent) = (PinDir::at(pin_dir, Set::Router), PinDir::at(pin_dir, Set::Agent));
    if !dir.exists() {
        return Ok(before);
    }
    let _lock = dir.lock().map_err(KernelError::pins(dir.path()))?;
    if how == Detach::Careful {
        refuse_if_used(pin_dir)?;
        agent.is_complete()?;
        if local::is_running(&agent)? {
            return Err(DetachError::Agent);
        }
    }
    take_off(&agent)?;
    take_off(&dir)?;
    // Other layouts may lie there, or it may be a mount point: then it stays.
    let _ = fs::remove_dir(pin_dir);
    Ok(before)
}

fn refuse_if_used(pin_dir: &Path) -> Result<(), DetachError> {
    match View::open(pin_dir) {
        Ok(view) => {
            let alive = view.workers().into_iter().filter(|&(slot, _)| view.is_alive(slot));
            let pids: Vec<u32> = alive.map(|(_, worker)| worker.pid).collect();
            if pids.is_empty() { Ok(()) } else { Err(DetachError::Live(pids)) }
        }
        Err(KernelError::NothingPinned(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes every link and map of a set, and its directories; the common one only if nothing else is in it.
///
/// # Errors
/// [`KernelError::Pins`], at the first that cannot be removed.
pub(super) fn take_off(dir: &PinDir) -> Result<(), KernelError> {
    links::remove_all(dir).map_err(KernelError::pins(&dir.links()))?;
    dir.remove_maps()?;
    dir.remove_slots()?;
    gone(fs::remove_dir(dir.links())).map_err(KernelError::pins(&dir.links()))?;
    match gone(fs::remove_dir(dir.path())) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
            Err(KernelError::pins(dir.path())(error))
        }
        _ => Ok(()),
    }
}
