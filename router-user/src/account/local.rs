//! The agent's counts: what all clients have in flight at engine ports of this host.
//!
//! Programs, maps and pins of its own, beside those of the routers and without them. A killed agent's programs go on
//! counting, and the next agent takes them up with all values; one that ends takes all of its own off. Connections
//! older than the programs are counted from their next request on. If asked to, it tells peers in band what it counts
//! ([`router_common::inband`]); if the kernel cannot, it counts all the same. Invariant: at most one agent uses a set of
//! pins, shown by a lock on its directory of links.

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, Map, MapData, MapError};
use parking_lot::Mutex;
use router_common::BackendLoad;
use router_common::edge::{FAMILY_BITS, SourceKey};
use router_common::limits::MAX_LOCAL_PORTS;

use super::attach::{Site, attach};
use super::cgroup;
use super::error::{KernelError, one_line};
use super::maps::read_row;
use super::pins::{PinDir, Set};
use super::recount::Sockets;
use super::region::{Access, Region};
use super::{Hook, detach, device, kernel, links, reconcile};

/// In the order of attaching: no request must await an answer that nobody sees.
const PROGRAMS: [&str; 4] = ["local_release", SOCKOPS, "local_egress", INGRESS];
/// Counts connections.
pub(super) const SOCKOPS: &str = "local_sockops";
/// The last one that following requests needs.
pub(super) const INGRESS: &str = "local_ingress";
/// At devices, in the same order.
const AT_DEVICES: [&str; 2] = ["local_tcx_out", TCX];
/// The last one that counting at devices needs.
pub(super) const TCX: &str = "local_tcx_in";

/// Writes the option; attached only where peers are to be told.
const TELL: &str = "inband_tell";

const ROW_BYTES: usize = size_of::<BackendLoad>();

/// What to count.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Directory of pins, as for a router.
    pub pin_dir: PathBuf,
    /// The cgroup whose engines are seen; `None` = all of the host, as far as the cgroup mount goes. Or the devices
    /// at which they are.
    pub hook: Hook,
    /// Ports of engines, at most [`MAX_LOCAL_PORTS`].
    pub ports: Vec<u16>,
    /// Prefixes of peers that are told in band, each with its length in bits, at most
    /// [`router_common::inband::MAX_PEERS`]; none: nobody is. Holds for connections that are accepted from then on.
    pub tell: Vec<(SourceKey, u32)>,
}

/// What all clients have at a port of this host. The names of the fields are those of a backend seen by a router:
/// `tx_bytes` go to the engine, `rx_bytes` come from it, `resets` are connections that a client broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRow {
    /// The port.
    pub port: u16,
    /// The row; slots and foreign fields are 0.
    pub load: BackendLoad,
}

impl LocalRow {
    /// Requests in flight: without an answer yet, and being answered.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.load.awaiting.saturating_add(self.load.streaming)
    }
}

/// The counts of a running agent.
#[derive(Debug)]
pub struct Local {
    dir: PinDir,
    load: Region,
    /// Ports, each with its row.
    ports: Vec<(u16, u32)>,
    not_telling: Option<String>,
    at_devices: bool,
    sockets: Mutex<Sockets>,
    _alone: File,
}

impl Local {
    /// Attaches what is not attached yet, and counts these ports and no others.
    ///
    /// # Errors
    /// [`KernelError`]; nothing new is left attached.
    pub fn open(options: &LocalOptions) -> Result<Self, KernelError> {
        kernel::require()?;
        let site = match &options.hook {
            Hook::Cgroup(chosen) => Site::Cgroup(cgroup::anywhere(chosen.as_deref())?),
            Hook::Tcx(names) => Site::Devices(device::find(names)?),
        };
        let dir = PinDir::create(&options.pin_dir, Set::Agent)?;
        let _lock = dir.lock().map_err(KernelError::pins(dir.path()))?;
        // A detach may have come in between.
        let links = dir.links();
        DirBuilder::new().recursive(true).mode(0o700).create(&links).map_err(KernelError::pins(&links))?;
        let alone = alone(&dir)?.ok_or(KernelError::AgentRuns)?;
        let was_complete = kernel::tidy(&dir)?;
        if was_complete {
            reconcile::agent(&dir)?;
        }
        let opened = attach_all(options, &site, &dir);
        if opened.is_err() && !was_complete {
            // That it cannot be removed is less to the point than why it failed.
            let _ = detach::take_off(&dir);
        }
        let Opened { load, ports, not_telling, sockets } = opened?;
        let at_devices = matches!(site, Site::Devices(_));
        let sockets = Mutex::new(sockets);
        Ok(Self { dir, load, ports, not_telling, at_devices, sockets, _alone: alone })
    }

    /// Why no peer is told in band although it was asked for.
    #[must_use]
    pub fn not_telling(&self) -> Option<&str> {
        self.not_telling.as_deref()
    }

    /// Whether [`Self::sweep`] is to be called from time to time: connections may end without a packet.
    #[must_use]
    pub const fn needs_sweeping(&self) -> bool {
        self.at_devices
    }

    /// Puts gauges right that count sockets that are gone; returns of how many ports. Costs as
    /// [`Account::sweep`](super::Account::sweep).
    ///
    /// # Errors
    /// In one line, why not.
    pub fn sweep(&self) -> Result<usize, String> {
        let corrected = self.sockets.lock().recount()?.correct(&self.load, MAX_LOCAL_PORTS);
        corrected.map(|(rows, _unsettled)| rows).map_err(|error| one_line(&error))
    }

    /// The ports, in the order they were given.
    #[must_use]
    pub fn rows(&self) -> Vec<LocalRow> {
        let row = |&(port, row): &(u16, u32)| LocalRow {
            port,
            load: read_row(&self.load, row as usize * ROW_BYTES),
        };
        self.ports.iter().map(row).collect()
    }

    /// Takes programs and pins off. The totals are lost.
    ///
    /// # Errors
    /// [`KernelError::Pins`]; `unlatch bpf detach` removes what is left.
    pub fn take_off(&self) -> Result<(), KernelError> {
        let _lock = self.dir.lock().map_err(KernelError::pins(self.dir.path()))?;
        detach::take_off(&self.dir)?;
        // A router's pins, or another layout's, may lie there.
        let _ = self.dir.path().parent().map(std::fs::remove_dir);
        Ok(())
    }
}

/// Whether an agent uses the pins.
///
/// # Errors
/// [`KernelError::Pins`].
pub(super) fn is_running(dir: &PinDir) -> Result<bool, KernelError> {
    match alone(dir) {
        Ok(lock) => Ok(lock.is_none()),
        Err(KernelError::Pins { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The mark of the one agent that uses a set; `None` if there is one.
fn alone(dir: &PinDir) -> Result<Option<File>, KernelError> {
    let links = dir.links();
    let file = File::open(&links).map_err(KernelError::pins(&links))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(KernelError::pins(&links)(error)),
    }
}

struct Opened {
    load: Region,
    ports: Vec<(u16, u32)>,
    not_telling: Option<String>,
    sockets: Sockets,
}

fn attach_all(options: &LocalOptions, site: &Site, dir: &PinDir) -> Result<Opened, KernelError> {
    let mut ebpf = kernel::load(dir)?;
    let load = map_load(dir, Access::Write)?;
    let ports = give_rows(dir, &load, &options.ports)?;
    set_peers(dir, &options.tell)?;
    let is_cgroup = matches!(site, Site::Cgroup(_));
    let programs: &[&str] = if is_cgroup { &PROGRAMS } else { &AT_DEVICES };
    for name in programs {
        attach(&mut ebpf, name, site, dir).map_err(KernelError::Program)?;
    }
    let on_links = |error| KernelError::Pins { path: dir.links(), source: error };
    let not_telling = if options.tell.is_empty() {
        links::remove_where(dir, |link| link.program == TELL).map_err(on_links)?;
        None
    } else if is_cgroup {
        attach(&mut ebpf, TELL, site, dir).err()
    } else {
        Some(format!("{TELL}: only a program of a cgroup can"))
    };
    // Those that an agent elsewhere left would count the same segments again.
    links::keep_only(dir, &site.spots()).map_err(on_links)?;
    Ok(Opened { load, ports, not_telling, sockets: Sockets::new(ebpf, dir)? })
}

/// Makes these the peers that are told, and no others.
fn set_peers(dir: &PinDir, peers: &[(SourceKey, u32)]) -> Result<(), KernelError> {
    let map = Map::LpmTrie(dir.open_existing("LOCAL_PEERS")?);
    let mut map: LpmTrie<MapData, SourceKey, u32> = map.try_into().map_err(unusable)?;
    let wanted: Vec<_> = peers.iter().map(|&(peer, bits)| (FAMILY_BITS + bits, peer)).collect();
    let old = map.iter().map(|entry| entry.map(|(key, _)| (key.prefix_len(), key.data())));
    for (bits, peer) in old.collect::<Result<Vec<_>, _>>().map_err(unusable)? {
        if !wanted.contains(&(bits, peer)) {
            map.remove(&Key::new(bits, peer)).map_err(unusable)?;
        }
    }
    wanted.iter().try_for_each(|&(bits, peer)| map.insert(&Key::new(bits, peer), 0, 0).map_err(unusable))
}

fn map_load(dir: &PinDir, access: Access) -> Result<Region, KernelError> {
    let map = dir.open_existing("LOCAL_LOAD")?;
    Region::of_map(map.fd().as_fd(), MAX_LOCAL_PORTS * ROW_BYTES, access)
        .map_err(KernelError::io("cannot map LOCAL_LOAD"))
}

/// The map of ports, through a descriptor of its own: the programs must be loaded with the loader's.
fn open_ports(dir: &PinDir) -> Result<Option<HashMap<MapData, u32, u32>>, KernelError> {
    let map = dir.open("LOCAL_PORTS")?.map(|map| Map::HashMap(map).try_into());
    map.transpose().map_err(unusable)
}

fn unusable(error: MapError) -> KernelError {
    KernelError::Load(one_line(&error))
}

/// Each port's row: the one it has, or one that no port has and where nothing is open. Other ports lose theirs.
fn give_rows(dir: &PinDir, load: &Region, ports: &[u16]) -> Result<Vec<(u16, u32)>, KernelError> {
    let mut map = open_ports(dir)?.ok_or_else(|| KernelError::NothingPinned(dir.path().to_owned()))?;
    let mut given: Vec<(u32, u32)> =
        map.iter().take(MAX_LOCAL_PORTS).collect::<Result<_, _>>().map_err(unusable)?;
    for (port, _) in given.extract_if(.., |&mut (port, _)| !ports.iter().any(|&p| u32::from(p) == port)) {
        map.remove(&port).map_err(unusable)?;
    }
    for port in ports.iter().map(|&port| u32::from(port)) {
        if given.iter().any(|&(given, _)| given == port) {
            continue;
        }
        let is_free = |&row: &u32| {
            !given.iter().any(|&(_, given)| given == row) && read_row(load, offset(row)).conns == 0
        };
        let row = (0..MAX_LOCAL_PORTS as u32).find(is_free).ok_or(KernelError::NoPort)?;
        for word in 0..ROW_BYTES / 8 {
            load.u64(offset(row) + 8 * word).store(0, std::sync::atomic::Ordering::Relaxed);
        }
        map.insert(port, row, 0).map_err(unusable)?;
        given.push((port, row));
    }
    let row = |&port: &u16| Some((port, given.iter().find(|&&(given, _)| given == u32::from(port))?.1));
    // A map may hold anything; only rows that exist are read.
    Ok(ports.iter().filter_map(row).filter(|&(_, row)| (row as usize) < MAX_LOCAL_PORTS).collect())
}

const fn offset(row: u32) -> usize {
    row as usize * ROW_BYTES
}

/// What the pinned map of an agent says, running or killed; nothing if there is none.
///
/// # Errors
/// [`KernelError`], if it is there and cannot be read.
pub fn pinned(pin_dir: &Path) -> Result<Vec<LocalRow>, KernelError> {
    let dir = PinDir::at(pin_dir, Set::Agent);
    let Some(map) = open_ports(&dir)? else { return Ok(Vec::new()) };
    let load = map_load(&dir, Access::Read)?;
    let mut rows = Vec::new();
    for entry in map.iter().take(MAX_LOCAL_PORTS) {
        let (port, row) = entry.map_err(unusable)?;
        if let (Ok(port), true) = (u16::try_from(port), (row as usize) < MAX_LOCAL_PORTS) {
            rows.push(LocalRow { port, load: read_row(&load, offset(row)) });
        }
    }
    rows.sort_by_key(|row| row.port);
    Ok(rows)
}
