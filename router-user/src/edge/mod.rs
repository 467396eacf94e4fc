//! The edge guard: denied sources and floods of openings are dropped at the device, before the kernel's TCP.
//!
//! Reading order: [`Edge`] here (a router's part in it), [`prefix`], `maps` (what is pinned), `owners` (which routers
//! live), `device` (the program on it), [`view`] (reading and changing it without a router), `metrics`. What a packet gets is decided in
//! `router_common::edge`. Invariant: it stands beside the router: nothing here can keep one from starting or serving.

mod device;
mod maps;
mod metrics;
mod owners;
pub mod prefix;
pub mod view;

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::Xdp;
use router_common::edge::{EdgeLimits, EdgePort, RULE_ALLOW, RULE_DENY};

use crate::account::{
    KernelError, ensure_bpffs, load_object, lock_pins, one_line, require_for, take_link_off,
};

pub use device::{Device, DeviceId, Mode};
pub use maps::Rule;
pub use metrics::EdgePackets;
pub use prefix::Prefix;

/// The object that `cargo xtask ebpf` builds, or the committed copy of it; empty if there was neither.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("UNLATCH_BPF_EDGE_OBJECT"));

const PROGRAM: &str = "edge_guard";

/// Why there is no guard, or it cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// Rights, pins or the object.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// There is no such device.
    #[error("no network device {name}: {source}")]
    Device {
        /// Its name.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The device takes no program.
    #[error("cannot attach, natively: {native}; generically: {generic}")]
    Attach {
        /// Why not in native mode.
        native: String,
        /// Why not in generic mode.
        generic: String,
    },
    /// Pinned links cannot be listed or removed.
    #[error("pinned links: {0}")]
    Links(io::Error),
    /// The marks of living routers cannot be read or changed.
    #[error("owners of guarded ports: {0}")]
    Owners(io::Error),
    /// A table is full.
    #[error("no more than {max} {what}")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many fit.
        max: usize,
    },
    /// A map cannot be read or written.
    #[error("{0}")]
    Map(String),
}

/// What a router wants guarded, and how.
#[derive(Clone, Debug)]
pub struct EdgeOptions {
    /// Directory of pins; those of the guard lie in `edge-v1` below it.
    pub pin_dir: PathBuf,
    /// Name of the device.
    pub device: String,
    /// The port, at whichever address.
    pub port: u16,
    /// Sources whose packets to it are dropped.
    pub deny: Vec<Prefix>,
    /// Sources that are neither dropped nor limited.
    pub allow: Vec<Prefix>,
    /// How fast the others may open connections.
    pub limits: EdgeLimits,
}

/// A router's guard. Dropping it takes the port out, and the program off the device when no other router of the host
/// is guarded there. Rules and counters stay pinned.
#[derive(Debug)]
pub struct Edge {
    dir: PathBuf,
    /// Until it stops.
    held: Option<owners::Held>,
    mode: Mode,
    not_native: Option<String>,
}

impl Edge {
    /// Attaches the guard, or takes over what an earlier process left on the device.
    ///
    /// # Errors
    /// [`EdgeError`]; the port is then not guarded by this process.
    pub fn start(options: &EdgeOptions) -> Result<Self, EdgeError> {
        require_for(OBJECT)?;
        let device = device::id(&options.device)?;
        let was_there = maps::directory(&options.pin_dir).exists();
        let dir = create(&options.pin_dir)?;
        let _lock = lock_pins(&dir).map_err(KernelError::pins(&dir))?;
        let started = Self::attach(options, device, &dir);
        if started.is_err() && !was_there {
            // Nobody else uses what was just made. That it cannot be removed is less to the point than why it failed.
            let _ = view::remove_pins(&dir);
            let _ = std::fs::remove_dir(&options.pin_dir);
        }
        started
    }

    fn attach(options: &EdgeOptions, device: DeviceId, dir: &Path) -> Result<Self, EdgeError> {
        for name in maps::names() {
            maps::open(dir, name)?;
        }
        let mut ebpf = load_object(OBJECT, dir, maps::names())?;
        let mut maps = maps::Maps::open(dir)?;
        maps.set_limits(options.limits)?;
        // Where a prefix is both, it is denied.
        let rules = |prefixes: &[Prefix], kind| prefixes.iter().map(move |p| (*p, kind)).collect::<Vec<_>>();
        maps.configure(&[rules(&options.allow, RULE_ALLOW), rules(&options.deny, RULE_DENY)].concat())?;
        let program = program(&mut ebpf)?;
        let pid = std::process::id();
        let held = owners::Owner { port: options.port, device, pid }.hold(dir).map_err(EdgeError::Owners)?;
        let attached = maps
            .guard(options.port, EdgePort { pid, ifindex: device.ifindex })
            .and_then(|()| device::attach(program, device, dir));
        // It counts as living from here on only if it is guarded.
        let held = attached.is_ok().then_some(held);
        release_unused(&mut maps, dir)?;
        let (mode, not_native) = attached?;
        Ok(Self { dir: dir.to_owned(), held, mode, not_native })
    }

    /// How the program is run.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Why it is not run natively.
    #[must_use]
    pub fn not_native(&self) -> Option<&str> {
        self.not_native.as_deref()
    }

    /// The counters as a metric.
    ///
    /// # Errors
    /// They cannot be opened.
    pub fn packets(&self) -> Result<EdgePackets, EdgeError> {
        maps::Counters::open(&self.dir).map(EdgePackets)
    }

    fn stop(&mut self) -> Result<(), EdgeError> {
        let _lock = lock_pins(&self.dir).map_err(KernelError::pins(&self.dir))?;
        drop(self.held.take());
        release_unused(&mut maps::Maps::open(&self.dir)?, &self.dir)
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        if !self.dir.exists() {
            return;
        }
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "the edge guard may still be attached; `unlatch bpf detach` takes it off");
        }
    }
}

/// Takes out ports that no living router has, and programs off devices where none is guarded.
fn release_unused(maps: &mut maps::Maps, dir: &Path) -> Result<(), EdgeError> {
    let living = owners::living(dir).map_err(EdgeError::Owners)?;
    for (port, _) in maps.ports()? {
        if !living.iter().any(|owner| u32::from(owner.port) == port) {
            maps.unguard(port)?;
        }
    }
    for device in device::pinned(dir).map_err(EdgeError::Links)? {
        if !living.iter().any(|owner| owner.device == device.id) {
            take_link_off(&device.path).map_err(EdgeError::Links)?;
        }
    }
    owners::bury(dir).map_err(EdgeError::Owners)
}

/// Makes the directory of the guard's pins.
fn create(pin_dir: &Path) -> Result<PathBuf, KernelError> {
    ensure_bpffs(pin_dir)?;
    let dir = maps::directory(pin_dir);
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(KernelError::pins(&dir))?;
    Ok(dir)
}

/// Passes the program through the verifier.
fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, KernelError> {
    let refused =
        |error: &dyn std::error::Error| KernelError::Program(format!("{PROGRAM}: {}", one_line(error)));
    let program =
        ebpf.program_mut(PROGRAM).ok_or_else(|| KernelError::Load(format!("the object has no {PROGRAM}")))?;
    let program: &mut Xdp =
        program.try_into().map_err(|error: aya::programs::ProgramError| refused(&error))?;
    program.load().map_err(|error| refused(&error))?;
    Ok(program)
}
