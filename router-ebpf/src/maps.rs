//! Every map of the object: key, value, writers, bound.
//!
//! Defined through BTF, so that `bpftool map dump` prints fields by name. Each but `HEAD` and `SEED` is pinned under
//! `<pin-dir>/v1/<name>`, by a router or (`LOCAL_*`) by the agent, which map the arrays into their own memory.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, PerCpuArray, SkStorage};
use aya_ebpf::macros::btf_map;
use router_common::edge::SourceKey;
use router_common::http::HeadBuffer;
use router_common::inband::MAX_PEERS;
use router_common::limits::{MAX_BACKENDS, MAX_LOCAL_PORTS, MAX_WORKERS};
use router_common::seed::SEEDS;
use router_common::{Answer, BackendAddr, BackendLoad, BackendName, SockState, Telling, WorkerSlot};

const MMAPABLE: usize = BPF_F_MMAPABLE as usize;
const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

/// Row → what is at the backend. Kernel and routers write different cache lines of a row.
#[btf_map]
pub(crate) static LOAD: Array<BackendLoad, MAX_BACKENDS, MMAPABLE> = Array::new();

/// Slot → the router process in it. Claimed by the process, freed by [`crate::release`].
#[btf_map]
pub(crate) static WORKERS: Array<WorkerSlot, MAX_WORKERS, MMAPABLE> = Array::new();

/// Row → URL and users of the row. Routers write it; no program reads it, it is here to be created with the rest.
#[btf_map]
pub(crate) static NAMES: Array<BackendName, MAX_BACKENDS, MMAPABLE> = Array::new();

/// Address → row. Routers write it, one entry a row in use; a full map refuses the next backend.
#[btf_map]
pub(crate) static BACKENDS: HashMap<BackendAddr, u32, MAX_BACKENDS> = HashMap::new();

/// Socket → its state. Dies with the socket; routers mark their own sockets in it before connecting.
#[btf_map]
pub(crate) static SOCKS: SkStorage<SockState> = SkStorage::new();

/// Where the head of an answer is read: too big for a program's stack. Not pinned, it holds nothing between events.
#[btf_map]
pub(crate) static HEAD: PerCpuArray<HeadBuffer, 1> = PerCpuArray::new();

/// Socket's cookie → row, while a process has connections taken up. Not pinned, and empty otherwise.
#[btf_map]
pub(crate) static SEED: HashMap<u64, u32, SEEDS, NO_PREALLOC> = HashMap::new();

/// Row → what all clients have at an engine's port of this host. Only the agent uses it and the next five.
#[btf_map]
pub(crate) static LOCAL_LOAD: Array<BackendLoad, MAX_LOCAL_PORTS, MMAPABLE> = Array::new();

/// Port → row of `LOCAL_LOAD`. The agent writes it.
#[btf_map]
pub(crate) static LOCAL_PORTS: HashMap<u32, u32, MAX_LOCAL_PORTS> = HashMap::new();

/// Accepted socket → its state. Apart from `SOCKS`, so that routers and agent come and go without the other.
#[btf_map]
pub(crate) static LOCAL_SOCKS: SkStorage<SockState> = SkStorage::new();

/// Accepted socket → what the engine sent. Made with the state.
#[btf_map]
pub(crate) static LOCAL_ANSWERS: SkStorage<Answer> = SkStorage::new();

/// Prefix of peers that are told in band. The agent writes it; a full map refuses the next prefix.
#[btf_map]
pub(crate) static LOCAL_PEERS: LpmTrie<SourceKey, u32, MAX_PEERS> = LpmTrie::new();

/// Accepted socket → what its peer was told. Only sockets whose peers are to be told have one.
#[btf_map]
pub(crate) static LOCAL_TELLING: SkStorage<Telling> = SkStorage::new();
