//! Every map of the guard: key, value, writers, bound. Each is pinned under `<pin-dir>/edge-v1/<name>`.

use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray};
use aya_ebpf::macros::btf_map;
use router_common::edge::{EdgeLimits, EdgePort, MAX_PORTS, MAX_RULES, MAX_SOURCES, SourceKey, Verdict};

/// Prefix of sources → what they may. Written by routers and `unlatch edge`; a full map refuses the next rule.
#[btf_map]
pub(crate) static RULES: LpmTrie<SourceKey, u32, MAX_RULES> = LpmTrie::new();

/// Place 0: how fast a source may open connections. Written by routers and `unlatch edge`.
#[btf_map]
pub(crate) static LIMITS: Array<EdgeLimits, 1> = Array::new();

/// Guarded port → who guards it. Written by routers; a full map refuses the next router's guard.
#[btf_map]
pub(crate) static PORTS: HashMap<u32, EdgePort, MAX_PORTS> = HashMap::new();

/// Source → when its bucket will be full, `CLOCK_MONOTONIC`. Written here; the longest unseen goes first.
#[btf_map]
pub(crate) static SOURCES: LruHashMap<SourceKey, u64, MAX_SOURCES> = LruHashMap::new();

/// Verdict → packets, on each processor. Written here.
#[btf_map]
pub(crate) static VERDICTS: PerCpuArray<u64, { Verdict::COUNT }> = PerCpuArray::new();
