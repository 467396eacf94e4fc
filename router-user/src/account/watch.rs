//! Whether what this process counts with is still there: others may take programs and pins off under it.
//!
//! Looked at now and then, never at a pick. Without the programs that count, what the kernel saw is old; without the
//! one that frees slots, what a dead process left in the table would stay: then this process counts for itself alone.
//! Invariant: what cannot be looked at is not taken for lost; what is lost is not taken up again by a running process.

use std::sync::OnceLock;

use parking_lot::Mutex;

use super::State;
use super::attach::Site;
use super::error::{KernelError, one_line};
use super::kernel::RELEASE;
use super::links;
use super::pins::PinDir;

/// The map in which processes share their counts.
const TABLE: &str = "LOAD";

/// What to look at, and what was lost so far.
#[derive(Debug)]
pub(super) struct Watch {
    dir: PinDir,
    site: Site,
    /// The kernel's number of the table's map.
    map: u32,
    /// What was attached at the start.
    programs: Vec<&'static str>,
    /// What was not there at the last look: it may just be between two pins.
    suspects: Mutex<Vec<&'static str>>,
    without_counting: OnceLock<State>,
    without_all: OnceLock<State>,
}

impl Watch {
    /// Of what a state says is attached, and of the table that lies in these pins now.
    ///
    /// # Errors
    /// [`KernelError`]: the table cannot be looked at.
    pub(super) fn new(dir: PinDir, site: Site, state: &State) -> Result<Self, KernelError> {
        let map = dir.open_existing(TABLE)?.info().map_err(|error| KernelError::Load(one_line(&error)))?.id();
        let programs = if let State::On { programs, .. } = state { programs.clone() } else { Vec::new() };
        let suspects = Mutex::new(Vec::new());
        let (without_counting, without_all) = (OnceLock::new(), OnceLock::new());
        Ok(Self { dir, site, map, programs, suspects, without_counting, without_all })
    }

    /// The state after what was lost; `None` as long as nothing is.
    pub(super) fn state(&self) -> Option<&State> {
        self.without_all.get().or_else(|| self.without_counting.get())
    }

    /// Looks once. What is missing twice in a row is lost: the line that says so is returned the first time.
    pub(super) fn look(&self) -> Option<String> {
        if self.without_all.get().is_some() {
            return None;
        }
        let gone = self.gone();
        let before = std::mem::replace(&mut *self.suspects.lock(), gone.clone());
        let lost: Vec<&str> = gone.into_iter().filter(|program| before.contains(program)).collect();
        if lost.is_empty() {
            return None;
        }
        let line = format!("taken off while running: {}", lost.join(", "));
        let (cell, state) = if lost.contains(&RELEASE) || lost.contains(&TABLE) {
            (&self.without_all, State::Off { reason: line.clone() })
        } else {
            // None of them is of use without the others, but for that which frees slots, where there is one.
            let programs = self.programs.iter().copied().filter(|&program| program == RELEASE).collect();
            (&self.without_counting, State::On { programs, missing: vec![line.clone()] })
        };
        cell.set(state).is_ok().then_some(line)
    }

    /// The table, if this process's is not the one of the pins any more, and the programs that do not count into it.
    fn gone(&self) -> Vec<&'static str> {
        let is_other_table = match self.dir.open(TABLE) {
            Ok(None) => true,
            Ok(Some(map)) => map.info().is_ok_and(|info| info.id() != self.map),
            Err(_) => false,
        };
        let is_gone_at = |spot, name: &str| links::is_gone(&self.dir, &spot, name);
        let is_gone = |name: &str| match &self.site {
            Site::Cgroup(place) => place.cgroups().all(|cgroup| is_gone_at(cgroup.into(), name)),
            Site::Devices(devices) => devices.iter().any(|device| is_gone_at(device.into(), name)),
        };
        let programs = self.programs.iter().copied().filter(|name| is_other_table || is_gone(name));
        is_other_table.then_some(TABLE).into_iter().chain(programs).collect()
    }
}
