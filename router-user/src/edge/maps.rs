//! The guard's pinned maps: opening them, and what is read and written in them.
//!
//! Invariant: a pinned map is used only after its type and sizes were compared.

use std::path::{Path, PathBuf};

use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, MapError, MapType, PerCpuArray};
use router_common::edge::{
    EDGE_LAYOUT_VERSION, EdgeLimits, EdgePort, MAX_PORTS, MAX_RULES, MAX_SOURCES, RULE_CONFIGURED, RULE_DENY,
    SourceKey, Verdict,
};

use super::{EdgeError, Prefix};
use crate::account::{KernelError, Shape, one_line, open_pinned};

const SHAPES: [Shape; 5] = [
    Shape::prefixes("RULES", MAX_RULES),
    shape("LIMITS", MapType::Array, 4, size_of::<EdgeLimits>(), 1),
    shape("PORTS", MapType::Hash, 4, size_of::<EdgePort>(), MAX_PORTS),
    shape("SOURCES", MapType::LruHash, size_of::<SourceKey>(), 8, MAX_SOURCES),
    shape("VERDICTS", MapType::PerCpuArray, 4, 8, Verdict::COUNT),
];

const fn shape(name: &'static str, kind: MapType, key: usize, value: usize, entries: usize) -> Shape {
    Shape { name, kind, key, value, entries, flags: 0 }
}

/// Where the guard's pins lie below the directory of pins.
pub(super) fn directory(pin_dir: &Path) -> PathBuf {
    pin_dir.join(format!("edge-v{EDGE_LAYOUT_VERSION}"))
}

/// Every map, by name.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.name)
}

/// Opens a pinned map; `None` if nothing is pinned under the name.
///
/// # Errors
/// It is of another layout, or cannot be looked at.
pub(super) fn open(dir: &Path, name: &str) -> Result<Option<MapData>, KernelError> {
    open_pinned(dir, &SHAPES, name)
}

fn existing(dir: &Path, name: &str) -> Result<MapData, KernelError> {
    open(dir, name)?.ok_or_else(|| KernelError::NothingPinned(dir.to_owned()))
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whose.
    pub prefix: Prefix,
    /// Denied, else allowed.
    pub is_denied: bool,
    /// A router's configuration made it, and its next start replaces it.
    pub is_configured: bool,
}

/// The maps that people and routers write and read.
pub(super) struct Maps {
    rules: LpmTrie<MapData, SourceKey, u32>,
    limits: Array<MapData, EdgeLimits>,
    ports: HashMap<MapData, u32, EdgePort>,
}

impl Maps {
    /// Those pinned in a directory.
    pub(super) fn open(dir: &Path) -> Result<Self, EdgeError> {
        Ok(Self {
            rules: Map::LpmTrie(existing(dir, "RULES")?).try_into().map_err(map_error)?,
            limits: Map::Array(existing(dir, "LIMITS")?).try_into().map_err(map_error)?,
            ports: Map::HashMap(existing(dir, "PORTS")?).try_into().map_err(map_error)?,
        })
    }

    pub(super) fn insert(&mut self, prefix: Prefix, value: u32) -> Result<(), EdgeError> {
        self.rules.insert(&prefix.key(), value, 0).map_err(full("rules", MAX_RULES))
    }

    /// Removes the rule of exactly this prefix if it is of this kind; whether there was one.
    pub(super) fn remove(&mut self, prefix: Prefix, kind: u32) -> Result<bool, EdgeError> {
        let found = self.entries()?.into_iter().any(|(key, value)| key == prefix && value & kind != 0);
        if found {
            self.rules.remove(&prefix.key()).map_err(map_error)?;
        }
        Ok(found)
    }

    fn entries(&self) -> Result<Vec<(Prefix, u32)>, EdgeError> {
        let mut entries = Vec::new();
        for entry in self.rules.iter() {
            let (key, value) = entry.map_err(map_error)?;
            entries.extend(Prefix::of_key(&key).map(|prefix| (prefix, value)));
        }
        entries.sort();
        Ok(entries)
    }

    /// All rules, in order of prefix.
    pub(super) fn rules(&self) -> Result<Vec<Rule>, EdgeError> {
        let rule = |(prefix, value)| Rule {
            prefix,
            is_denied: value & RULE_DENY != 0,
            is_configured: value & RULE_CONFIGURED != 0,
        };
        Ok(self.entries()?.into_iter().map(rule).collect())
    }

    /// Makes the configured rules these, and leaves the others. New ones first: a source stays denied throughout.
    pub(super) fn configure(&mut self, wanted: &[(Prefix, u32)]) -> Result<(), EdgeError> {
        for (prefix, kind) in wanted {
            self.insert(*prefix, kind | RULE_CONFIGURED)?;
        }
        for (prefix, value) in self.entries()? {
            if value & RULE_CONFIGURED != 0 && !wanted.iter().any(|(kept, _)| *kept == prefix) {
                self.rules.remove(&prefix.key()).map_err(map_error)?;
            }
        }
        Ok(())
    }

    pub(super) fn limits(&self) -> Result<EdgeLimits, EdgeError> {
        self.limits.get(&0, 0).map_err(map_error)
    }

    pub(super) fn set_limits(&mut self, limits: EdgeLimits) -> Result<(), EdgeError> {
        self.limits.set(0, limits, 0).map_err(map_error)
    }

    /// Guarded ports and who guards them, in order.
    pub(super) fn ports(&self) -> Result<Vec<(u32, EdgePort)>, EdgeError> {
        let mut ports = self.ports.iter().collect::<Result<Vec<_>, _>>().map_err(map_error)?;
        ports.sort_by_key(|(port, _)| *port);
        Ok(ports)
    }

    pub(super) fn guard(&mut self, port: u16, by: EdgePort) -> Result<(), EdgeError> {
        self.ports.insert(u32::from(port), by, 0).map_err(full("ports", MAX_PORTS))
    }

    pub(super) fn unguard(&mut self, port: u32) -> Result<(), EdgeError> {
        self.ports.remove(&port).map_err(map_error)
    }
}

/// The counters.
pub(super) struct Counters(PerCpuArray<MapData, u64>);

impl Counters {
    pub(super) fn open(dir: &Path) -> Result<Self, EdgeError> {
        Ok(Self(Map::PerCpuArray(existing(dir, "VERDICTS")?).try_into().map_err(map_error)?))
    }

    /// Packets of each verdict, over all processors.
    pub(super) fn read(&self) -> Result<[(Verdict, u64); Verdict::COUNT], EdgeError> {
        let mut counts = Verdict::ALL.map(|verdict| (verdict, 0));
        for (verdict, count) in &mut counts {
            let by_cpu = self.0.get(&(*verdict as u32), 0).map_err(map_error)?;
            *count = by_cpu.iter().fold(0, |sum: u64, n| sum.wrapping_add(*n));
        }
        Ok(counts)
    }
}

fn map_error(error: MapError) -> EdgeError {
    EdgeError::Map(one_line(&error))
}

/// Names the table where the kernel says that no more fits in.
fn full(what: &'static str, max: usize) -> impl FnOnce(MapError) -> EdgeError {
    move |error| match &error {
        MapError::SyscallError(refused)
            if matches!(refused.io_error.raw_os_error(), Some(libc::ENOSPC | libc::E2BIG)) =>
        {
            EdgeError::Full { what, max }
        }
        _ => map_error(error),
    }
}
