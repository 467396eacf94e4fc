//! Whether what this process counts with is still there: others may take programs and pins off under it.
//!
//! Looked at now and then, never at a pick. Without the programs that count, what the kernel saw is old; without the
//! one that frees slots, what a dead process left in the table would stay: then this process counts for itself alone.
//! Invariant: what cannot be looked at is not taken for lost; what is lost is not taken up again by a running process.

use std::sync::OnceLock;

use parking_lot::Mutex;

use super::State;
use super::cgroup::Place;
use super::kernel::RELEASE;
use super::links;
use super::pins::PinDir;

/// What to look at, and what was lost so far.
#[derive(Debug)]
pub(super) struct Watch {
    dir: PinDir,
    place: Place,
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
    pub(super) fn new(dir: PinDir, place: Place, map: u32, programs: Vec<&'static str>) -> Self {
        let suspects = Mutex::new(Vec::new());
        let (without_counting, without_all) = (OnceLock::new(), OnceLock::new());
        Self { dir, place, map, programs, suspects, without_counting, without_all }
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
        let (cell, state) = if lost.contains(&RELEASE) {
            (&self.without_all, State::Off { reason: line.clone() })
        } else {
            (&self.without_counting, State::On { programs: vec![RELEASE], missing: vec![line.clone()] })
        };
        cell.set(state).is_ok().then_some(line)
    }

    /// The programs that do not count into this process's table any more.
    fn gone(&self) -> Vec<&'static str> {
        let is_other_table = match self.dir.open("LOAD") {
            Ok(None) => true,
            Ok(Some(map)) => map.info().is_ok_and(|info| info.id() != self.map),
            Err(_) => false,
        };
        let is_gone = |name: &str| self.place.cgroups().all(|cgroup| links::is_gone(&self.dir, cgroup, name));
        self.programs.iter().copied().filter(|name| is_other_table || is_gone(name)).collect()
    }
}
