//! 5. What is in flight where: as this process counts it, tells the others, and as the kernel sees it.
//!
//! Reading order: [`guard`] (one request's count and every way it ends), [`ledger`] (the one owner of the policy, which
//! counts), [`Account`] here; `maps` (the table and what its fields mean), `region` (the memory below it),
//! `rows` (which row an address gets), `kernel` (loading, and taking part), `reconcile` (what nobody saw before that),
//! `attach`, `pins`, `bpffs`, `links`, `cgroup`, `device`, `caps`, `anchor` and `slots` (what happens when this process
//! dies), `watch` (whether programs and pins are still there), `adopt` and `sock_diag` (connections older than the
//! programs), `recount` and `gauges` (counts beside the sockets there are), `sys`, `log`, `error`, `seen` (what the
//! kernel's fields say), [`suspect`] (whether that is a bad sign), [`view`] (reading pins without
//! being a router), `detach`,
//! [`local`] (the agent's own set: what all clients have at the engines of this host). [`Account`] does
//! not count requests: the policy does, and publishes through [`router_policy::LoadTable`]. Invariant: with or
//! without the kernel the table is the same struct, and this process's slot in it is empty when nothing is in flight.

mod adopt;
mod anchor;
mod attach;
mod bpffs;
mod caps;
mod cgroup;
mod detach;
mod device;
mod error;
mod gauges;
pub mod guard;
mod kernel;
pub mod ledger;
mod links;
pub mod local;
mod log;
mod maps;
mod pins;
#[cfg(test)]
mod races;
mod reconcile;
mod recount;
mod region;
mod rows;
mod seen;
mod slots;
mod sock_diag;
pub mod suspect;
mod sys;
pub mod view;
mod watch;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use aya::maps::{MapData, SkStorage};
use parking_lot::Mutex;
use router_common::limits::MAX_BACKENDS;
use router_common::{BackendAddr, BackendId, BackendLoad, SockState};
use router_policy::{InFlight, LoadTable, Nanos, Seen, Told};

pub use adopt::Adopted;
// The edge guard has the same needs of rights and pins.
pub(crate) use bpffs::ensure as ensure_bpffs;
pub use cgroup::CgroupError;
pub use detach::{Detach, DetachError, detach};
pub use device::DeviceError;
pub use error::KernelError;
pub(crate) use error::one_line;
pub use guard::InFlightGuard;
pub use kernel::{Hook, KernelMode, KernelOptions, open};
pub(crate) use kernel::{load_object, require_for};
pub use ledger::{Ledger, Placed, Tell};
pub(crate) use links::take_off as take_link_off;
pub use links::{At, Link};
pub use log::LogReader;
pub(crate) use pins::{Shape, lock as lock_pins, open as open_pinned};
pub use rows::RowError;
pub use seen::{KernelRow, mean_ttfb_seconds};
pub use suspect::{Sign, Suspicion};

/// Whether the kernel takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It does: counts are shared, survive restarts, and are cleared when this process dies.
    On {
        /// Programs that are attached.
        programs: Vec<&'static str>,
        /// One line a program that could not be; the others work without it.
        missing: Vec<String>,
    },
    /// It does not: counts are in this process's memory.
    Off {
        /// Why, in one line.
        reason: String,
    },
}

impl State {
    /// Every program there is for a hook, and whether it is attached.
    #[must_use]
    pub fn programs(&self, hook: &Hook) -> Vec<(&'static str, bool)> {
        hook.programs().iter().map(|&name| (name, self.has(name))).collect()
    }

    fn has(&self, program: &str) -> bool {
        matches!(self, Self::On { programs, .. } if programs.contains(&program))
    }

    /// Whether the kernel takes part.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        matches!(self, Self::On { .. })
    }
}

/// Whose a socket is, for the kernel's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It carries requests.
    Router,
    /// It carries probes and scrapes; not counted.
    Probe,
}

/// What [`Account::sweep`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Slots of processes that were gone.
    pub slots: usize,
    /// Rows whose gauges were wrong.
    pub rows: usize,
}

/// This process's share of the counts. Clones are handles of the same.
///
/// The slot is given back when the last clone goes. So whoever publishes counts holds a clone.
#[derive(Clone, Debug)]
pub struct Account(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: State,
    rows: Mutex<rows::Rows>,
    // Before `sharing`: the slot is given back before its lock and its anchor go.
    table: maps::SharedTable,
    sharing: Option<Sharing>,
}

/// What an account holds besides the table when the kernel takes part.
#[derive(Debug)]
struct Sharing {
    socks: Mutex<SkStorage<MapData, SockState>>,
    logs: Mutex<Option<LogReader>>,
    dir: pins::PinDir,
    site: attach::Site,
    watch: watch::Watch,
    sockets: Mutex<recount::Sockets>,
    _anchor: anchor::Anchor,
    _lock: std::fs::File,
}

impl Account {
    /// An account of this process alone, without kernel.
    ///
    /// # Errors
    /// There is no memory for the table.
    pub fn in_memory(reason: impl Into<String>) -> io::Result<Self> {
        let table = maps::Table::private()?;
        let slot = table.claim(1, std::process::id(), 0).expect("invariant: a new table has free slots");
        Ok(Self(Arc::new(Inner {
            state: State::Off { reason: reason.into() },
            rows: Mutex::new(rows::Rows::new(rows::Keys::Private(Default::default()))),
            table: maps::SharedTable { table, slot },
            sharing: None,
        })))
    }

    /// Whether the kernel takes part, and if not, why.
    #[must_use]
    pub fn state(&self) -> &State {
        let lost = self.0.sharing.as_ref().and_then(|sharing| sharing.watch.state());
        lost.unwrap_or(&self.0.state)
    }

    /// Looks whether programs and pins are still there, with a few system calls. What is missing at two looks in a row
    /// is lost, and [`Self::state`] says so from then on: a line that names it is returned once.
    #[must_use]
    pub fn look_after(&self) -> Option<String> {
        self.0.sharing.as_ref()?.watch.look()
    }

    /// This process's slot.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.0.table.slot
    }

    /// The row of a backend's address, used by this process until [`Self::unregister`]. Backends with one address
    /// share a row; a row is found again after a restart, with its totals. `url` must carry no credentials.
    ///
    /// # Errors
    /// [`RowError`]; above all, that all rows are in use.
    pub fn register(&self, addr: BackendAddr, url: &str) -> Result<BackendId, RowError> {
        self.0.rows.lock().register(&self.0.table, addr, url)
    }

    /// Ends one [`Self::register`]. To be called when nothing is in flight there any more.
    pub fn unregister(&self, id: BackendId) {
        self.0.rows.lock().unregister(&self.0.table, id);
    }

    /// Whether any process uses a row.
    #[must_use]
    pub fn is_used(&self, id: BackendId) -> bool {
        self.0.table.table.refs(id) != 0
    }

    /// Gives up a row, its address and totals, once no process uses it and nothing is counted there; until then it is
    /// false and changes nothing.
    ///
    /// # Errors
    /// [`RowError`]: the map cannot be written.
    pub fn forget(&self, id: BackendId) -> Result<bool, RowError> {
        self.0.rows.lock().forget(&self.0.table, id)
    }

    /// What the kernel sees of a backend; `None` where it counts no connections.
    #[must_use]
    pub fn kernel_row(&self, id: BackendId) -> Option<KernelRow> {
        let state = self.state();
        let at_devices = state.has(kernel::TCX);
        let has_phases = at_devices || state.has(kernel::EGRESS);
        (at_devices || state.has(kernel::SOCKOPS)).then(|| KernelRow { load: self.row(id), has_phases })
    }

    /// Connections that a backend broke so far, and those that are there, as the kernel counts; zeros without it. Two
    /// reads.
    #[must_use]
    pub fn resets_and_conns(&self, id: BackendId) -> [u64; 2] {
        self.0.table.table.resets_and_conns(id)
    }

    /// A copy of a row. Kernel fields stay 0 while [`State::is_on`] is false.
    #[must_use]
    pub fn row(&self, id: BackendId) -> BackendLoad {
        self.0.table.table.row(id)
    }

    /// Requests in flight at a backend, over all router processes of the host.
    #[must_use]
    pub fn in_flight(&self, id: BackendId) -> u32 {
        self.0.table.table.in_flight(id)
    }

    /// Tells the kernel whose a socket is. To be called before it connects; without kernel it does nothing.
    ///
    /// # Errors
    /// The kernel refuses; the socket then counts as a foreign one.
    pub fn mark_socket(&self, socket: impl AsFd, role: Role, backend: BackendId) -> io::Result<()> {
        let Some(sharing) = &self.0.sharing else { return Ok(()) };
        let role = match role {
            Role::Router => SockState::ROUTER,
            Role::Probe => SockState::PROBE,
        };
        let mark = SockState { backend_plus1: backend.index() as u32 + 1, ..SockState::marked(role) };
        let socket: BorrowedFd<'_> = socket.as_fd();
        sharing.socks.lock().insert(&socket.as_raw_fd(), mark, 0).map_err(io::Error::other)
    }

    /// Whether [`Self::sweep`] is to be called from time to time: no program sees a process die or a socket go.
    #[must_use]
    pub fn needs_sweeping(&self) -> bool {
        let at_devices = |sharing: &Sharing| matches!(sharing.site, attach::Site::Devices(_));
        self.state().is_on() && self.0.sharing.as_ref().is_some_and(at_devices)
    }

    /// Frees the slots of processes that are gone, and puts gauges right that count sockets that are; rows that are too
    /// busy to tell, another time. The first call takes some tenths of a second, the others grow with the sockets there
    /// are: about 1 ms for a thousand.
    ///
    /// # Errors
    /// In one line, what could not be done.
    pub fn sweep(&self) -> Result<Swept, String> {
        let Some(sharing) = &self.0.sharing else { return Ok(Swept::default()) };
        let table = &self.0.table.table;
        let slots = slots::free_dead(&sharing.dir, table).map_err(|error| one_line(&error))?;
        let corrected = sharing.sockets.lock().recount()?.correct(&table.load, MAX_BACKENDS);
        corrected.map(|(rows, _unsettled)| Swept { slots, rows }).map_err(|error| one_line(&error))
    }

    /// Counts connections to registered backends that are older than the programs. Takes some tenths of a second if
    /// there are any.
    ///
    /// # Errors
    /// In one line, why none could be.
    pub fn adopt(&self) -> Result<Adopted, String> {
        let Some(sharing) = &self.0.sharing else { return Ok(Adopted::default()) };
        // At devices each is taken up with its next packet.
        let attach::Site::Cgroup(place) = &sharing.site else { return Ok(Adopted::default()) };
        let rows = self.0.rows.lock().addresses().map_err(|error| one_line(&error))?;
        adopt::adopt(sharing.sockets.lock().ebpf(), &sharing.dir, place, &rows)
    }

    /// The reader of what the programs log, once; only in the process in slot 0.
    #[must_use]
    pub fn log_reader(&self) -> Option<LogReader> {
        self.0.sharing.as_ref()?.logs.lock().take()
    }
}

impl LoadTable for Account {
    fn is_shared(&self) -> bool {
        self.state().is_on()
    }

    fn seen(&self, id: BackendId, now: Nanos) -> Option<Seen> {
        let row = self.kernel_row(id)?;
        let last = row.load.last_rx_ns;
        Some(Seen {
            awaiting: row.awaiting()?,
            streaming: row.streaming()?,
            silent_seconds: (last > 0).then(|| now.seconds_since(Nanos(last))),
        })
    }

    fn others(&self, id: BackendId) -> InFlight {
        // Nobody would free the slot of a process that dies.
        if self.state().is_on() { self.0.table.others(id) } else { InFlight::default() }
    }

    fn gives_way(&self, id: BackendId, before: u32) -> bool {
        self.0.table.gives_way(id, before)
    }

    fn told(&self, id: BackendId) -> Option<Told> {
        self.0.table.told(id)
    }

    fn publish(&self, id: BackendId, own: InFlight) {
        self.0.table.publish(id, own);
    }
}
