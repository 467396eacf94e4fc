//! Reading pins without being a router: what `unlatch status` and `unlatch bpf status` stand on.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use aya::maps::{HashMap, Map, MapData};
use router_common::limits::MAX_WORKERS;
use router_common::{BackendAddr, BackendId, BackendLoad, WorkerSlot};

use super::error::{KernelError, one_line};
use super::kernel;
use super::links::{self, At, Link};
use super::local;
use super::maps::{Table, ids};
use super::pins::{PinDir, Set};
use super::region::Access;
use super::rows;
use super::slots;

/// The pinned tables, to be read.
#[derive(Debug)]
pub struct View {
    dir: PinDir,
    table: Table,
}

/// What is attached somewhere on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Connections are counted.
    pub connections: bool,
    /// Requests on them are followed.
    pub requests: bool,
}

/// One row that was given to a backend.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which.
    pub id: BackendId,
    /// The backend's URL.
    pub url: String,
    /// Its address; `None` if no key leads to the row any more.
    pub addr: Option<SocketAddr>,
    /// Requests in flight over all live slots.
    pub in_flight: u32,
    /// The slots that use it, one bit each.
    pub users: u32,
    /// Its values.
    pub load: BackendLoad,
}

impl Counts {
    /// Whether the programs behind these links that still work count connections, and whether they follow requests.
    #[must_use]
    pub fn by(links: &[Link]) -> Self {
        Self::of(links, [kernel::SOCKOPS, kernel::EGRESS], kernel::TCX)
    }

    /// The same of an agent's programs.
    #[must_use]
    pub fn at_engines(links: &[Link]) -> Self {
        Self::of(links, [local::SOCKOPS, local::INGRESS], local::TCX)
    }

    fn of(links: &[Link], [connections, requests]: [&str; 2], at_devices: &str) -> Self {
        let has = |name: &str| links.iter().any(|link| link.program == name && link.at != At::Gone);
        let both = has(at_devices);
        Self { connections: both || has(connections), requests: both || has(requests) }
    }
}

impl View {
    /// The pins of this layout below a directory.
    ///
    /// # Errors
    /// [`KernelError::NothingPinned`], [`KernelError::Layout`], or why they cannot be read.
    pub fn open(pin_dir: &Path) -> Result<Self, KernelError> {
        let dir = PinDir::at(pin_dir, Set::Router);
        let [load, workers, names] = ["LOAD", "WORKERS", "NAMES"].map(|name| dir.open_existing(name));
        let (load, workers, names) = (load?, workers?, names?);
        let table = Table::over(load.fd().as_fd(), workers.fd().as_fd(), names.fd().as_fd(), Access::Read)
            .map_err(|source| KernelError::Io { what: "cannot map the maps", source })?;
        Ok(Self { dir, table })
    }

    /// Where the pins lie.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Whether the process in a slot lives. Where the kernel does not free the slots of dead ones, it may not.
    #[must_use]
    pub fn is_alive(&self, slot: usize) -> bool {
        slots::is_alive(&self.dir, slot)
    }

    /// The router processes by slot.
    #[must_use]
    pub fn workers(&self) -> Vec<(usize, WorkerSlot)> {
        let all = (0..MAX_WORKERS).map(|slot| (slot, self.table.worker(slot)));
        all.filter(|(_, worker)| worker.cookie != 0).collect()
    }

    /// Every row that was given to a backend, in order.
    ///
    /// # Errors
    /// The map of addresses cannot be read.
    pub fn rows(&self) -> Result<Vec<Row>, KernelError> {
        let map = Map::HashMap(self.dir.open_existing("BACKENDS")?);
        let unreadable = |error: aya::maps::MapError| KernelError::Load(one_line(&error));
        let map: HashMap<MapData, BackendAddr, u32> = map.try_into().map_err(unreadable)?;
        let addresses = rows::addresses(&map).map_err(unreadable)?;
        let addr = |id: BackendId| {
            let (addr, _) = addresses.iter().find(|(_, row)| *row as usize == id.index())?;
            addr.to_socket_addr()
        };
        let named = ids().filter_map(|id| Some((id, self.table.name(id)?)));
        Ok(named
            .map(|(id, url)| Row {
                id,
                url,
                addr: addr(id),
                in_flight: self.table.in_flight(id),
                users: self.table.refs(id),
                load: self.table.row(id),
            })
            .collect())
    }
}

/// What lies under a directory of pins.
#[derive(Clone, Debug)]
pub struct Pinned {
    /// The directory of this layout.
    pub path: PathBuf,
    /// Maps, by name.
    pub maps: Vec<&'static str>,
    /// Links.
    pub links: Vec<Link>,
}

/// Lists what is pinned below a directory; empty if there is none.
///
/// # Errors
/// A directory cannot be listed.
pub fn pinned(pin_dir: &Path) -> Result<Pinned, KernelError> {
    let path = PinDir::at(pin_dir, Set::Router).path().to_owned();
    let mut all = Pinned { path, maps: Vec::new(), links: Vec::new() };
    for set in [Set::Router, Set::Agent] {
        let dir = PinDir::at(pin_dir, set);
        all.maps.extend(dir.map_names().filter(|name| dir.map(name).exists()));
        all.links.extend(links::pinned(&dir).map_err(KernelError::pins(&dir.links()))?);
    }
    Ok(all)
}
