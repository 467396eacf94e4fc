//! Capacities of the maps, and the bytes each costs in the kernel.

/// Version of the layout of every pinned map; part of the pin path (`<pin-dir>/v1`). A change of any shared
/// struct needs a new one.
pub const LAYOUT_VERSION: u32 = 1;

/// Rows of `LOAD`: backends of all routers on the host. 256 × 384 B = 96 KiB.
pub const MAX_BACKENDS: usize = 256;

/// Slots of `WORKERS`: router processes that share the counts. One more process counts privately.
pub const MAX_WORKERS: usize = 16;

/// Bytes of a backend's URL kept in `NAMES`; a longer one is cut. 256 × 256 B = 64 KiB.
pub const NAME_BYTES: usize = 248;

/// Entries of `LOCAL_PORTS`: engine ports of this host that the agent counts.
pub const MAX_LOCAL_PORTS: usize = 64;
