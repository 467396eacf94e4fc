//! Gauges beside the sockets there are: what a connection left that ended unseen is found and taken away.
//!
//! A socket's state goes with it, so the states there are say exactly what the gauges should. They are read by an
//! iterator over the storage, over all network namespaces, without stopping anything. Invariant: a row is only put
//! right if nothing happened on it meanwhile, twice over; else the next look may do it.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use aya::maps::MapData;
use aya::programs::Program;
use aya::{Btf, Ebpf};
use router_common::limits::MAX_BACKENDS;
use router_common::phase::gauge;
use router_common::seed::{TOLD_BYTES, Told};

use super::error::{KernelError, one_line};
use super::gauges::{self, Gauges};
use super::pins::PinDir;
use super::region::Region;
use super::{attach, sys};

const PROGRAM: &str = "recount";

/// More sockets than a host has ports for: 8 MiB.
const READ_MAX: u64 = 8 << 20;

/// Between two looks at the same row, longer than an event that has begun takes to be counted.
const PAUSE: Duration = Duration::from_millis(2);

/// Comparisons in a row, of which the first hardly ever finds a row too busy while no program counts.
const TRIES: usize = 3;

/// What iterators are loaded from when they are first needed. It holds all that takes: pins that somebody removes
/// meanwhile are not made anew.
#[derive(Debug)]
pub(super) struct Sockets {
    ebpf: Ebpf,
    states: MapData,
    /// The reason, if it failed.
    recount: Option<Result<Recount, String>>,
}

impl Sockets {
    /// Of an object whose programs are attached, or not to be.
    ///
    /// # Errors
    /// [`KernelError`]: the map of sockets' states cannot be opened.
    pub(super) fn new(mut ebpf: Ebpf, dir: &PinDir) -> Result<Self, KernelError> {
        let states = dir.open_existing(dir.states())?;
        // Their links hold what is attached; what is taken off goes.
        attach::let_go(&mut ebpf);
        Ok(Self { ebpf, states, recount: None })
    }

    /// The iterator over the states. The first call takes some tenths of a second, to read the kernel's types.
    ///
    /// # Errors
    /// In one line, why the kernel has no such iterator.
    pub(super) fn recount(&mut self) -> Result<&Recount, String> {
        let Self { ebpf, states, recount } = self;
        let open = || link(ebpf, PROGRAM, "bpf_sk_storage_map", Some(states.fd().as_fd())).map(Recount);
        recount.get_or_insert_with(open).as_ref().map_err(String::clone)
    }

    /// The object.
    pub(super) const fn ebpf(&mut self) -> &mut Ebpf {
        &mut self.ebpf
    }
}

/// Something that looks at the states of sockets.
#[derive(Debug)]
pub(super) struct Recount(OwnedFd);

impl Recount {
    /// What the gauges of each row should be.
    fn look(&self) -> io::Result<Vec<Gauges>> {
        let mut told = Vec::new();
        sys::iterate(self.0.as_fd())?.take(READ_MAX).read_to_end(&mut told)?;
        let mut rows = vec![Gauges::default(); MAX_BACKENDS];
        for told in told.as_chunks::<TOLD_BYTES>().0.iter().map(Told::read) {
            let Some(row) = told.row.and_then(|row| rows.get_mut(row as usize)) else { continue };
            row.add(told.is_foreign, gauge(told.phase));
        }
        Ok(rows)
    }

    /// Puts right what can be of so many rows, at most [`MAX_BACKENDS`], until that is all or it was tried often enough.
    /// Returns how often a row was.
    ///
    /// # Errors
    /// In one line, why the iterator cannot be read.
    pub(super) fn settle(&self, load: &Region, rows: usize) -> Result<usize, String> {
        let mut all = 0;
        for _ in 0..TRIES {
            let (corrected, unsettled) = self.correct(load, rows).map_err(|error| one_line(&error))?;
            all += corrected;
            if unsettled == 0 {
                break;
            }
        }
        Ok(all)
    }

    /// Puts right what can be of so many rows, at most [`MAX_BACKENDS`]. Returns how many rows were, and how many may be
    /// another time.
    ///
    /// # Errors
    /// The iterator cannot be read.
    pub(super) fn correct(&self, load: &Region, rows: usize) -> io::Result<(usize, usize)> {
        let before: Vec<_> = (0..rows).map(|row| gauges::read(load, row)).collect();
        let first = self.look()?;
        if (0..rows).all(|row| gauges::read(load, row).0 == first[row]) {
            return Ok((0, 0));
        }
        std::thread::sleep(PAUSE);
        let second = self.look()?;
        let (mut corrected, mut unsettled) = (0, 0);
        for (row, before) in before.iter().enumerate() {
            let (found, counters) = gauges::read(load, row);
            if found == second[row] {
                continue;
            }
            if first[row] == second[row] && (found, counters) == *before {
                gauges::correct(load, row, found, first[row]);
                corrected += 1;
            } else {
                unsettled += 1;
            }
        }
        Ok((corrected, unsettled))
    }
}

/// Loads an iterator and makes it one over everything of its kind, or in the map.
///
/// # Errors
/// In one line, why not.
pub(super) fn link(
    ebpf: &mut Ebpf,
    name: &str,
    kind: &str,
    map: Option<std::os::fd::BorrowedFd<'_>>,
) -> Result<OwnedFd, String> {
    let failed = |what: &str, error: &dyn std::error::Error| format!("{name} ({what}): {}", one_line(error));
    let Some(Program::Iter(program)) = ebpf.program_mut(name) else {
        return Err(format!("the object has no iterator {name}"));
    };
    if program.fd().is_err() {
        let types = Btf::from_sys_fs().map_err(|error| failed("types of the kernel", &error))?;
        program.load(kind, &types).map_err(|error| failed("load", &error))?;
    }
    let program = program.fd().map_err(|error| failed("load", &error))?;
    sys::link_iterator(program.as_fd(), map).map_err(|error| failed("link", &error))
}
