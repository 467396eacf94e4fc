//! What the maps hold: the row of a backend, a worker's slot, a backend's name, a socket's state.

use crate::http::HeadBuffer;
use crate::limits::{MAX_WORKERS, NAME_BYTES};

/// One row of `LOAD` (and of `LOCAL_LOAD`): what the kernel sees and what the routers count at one backend.
///
/// Cache lines are apart by writer: the first 128 bytes belong to the BPF programs, each array of slots to the
/// router processes (a slot has one writer), the last line to whoever learns of foreign load, and to what the kernel
/// writes seldom. Plain integers
/// only, so that `bpftool map dump` prints every field by name.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendLoad {
    /// Gauge, kernel: TCP connections to the backend now established.
    pub conns: u64,
    /// Gauge, kernel: requests sent whose answer has not begun.
    pub awaiting: u64,
    /// Gauge, kernel: answers that have begun and not ended.
    pub streaming: u64,
    /// Counter, kernel: connections established.
    pub opened: u64,
    /// Counter, kernel: connections closed.
    pub closed: u64,
    /// Counter, kernel: connections that broke while in use: a reset by the backend, or the kernel gave up
    /// resending. A reset after this side closed is none, nor one after the backend's own FIN.
    pub resets: u64,
    /// Counter, kernel: payload bytes sent to the backend.
    pub tx_bytes: u64,
    /// Counter, kernel: payload bytes received from it.
    pub rx_bytes: u64,
    /// Sum, kernel: time from request to first byte, nanoseconds.
    pub ttfb_ns: u64,
    /// Counter, kernel: answers in `ttfb_ns`.
    pub ttfb_count: u64,
    /// Kernel: `CLOCK_MONOTONIC` of the last byte received.
    pub last_rx_ns: u64,
    /// Kernel: `CLOCK_MONOTONIC` of the last reset.
    pub last_reset_ns: u64,
    /// Gauge, kernel: of `conns`, those that processes other than routers opened.
    pub foreign_conns: u64,
    /// Gauge, kernel: of `awaiting`, those of other processes.
    pub foreign_awaiting: u64,
    /// Gauge, kernel: of `streaming`, those of other processes.
    pub foreign_streaming: u64,
    /// Gauge, kernel: of `conns`, those whose requests cannot be told: TLS, HTTP/2, tunnels.
    pub unknown: u64,
    /// Gauge, routers: requests in flight, one slot a process. In flight of the backend = their sum.
    pub workers: [u32; MAX_WORKERS],
    /// Gauge, routers: prompt tokens sent and not yet answered (policy.md's Q), one slot a process.
    pub q_tokens: [u32; MAX_WORKERS],
    /// Gauge, routers: prompt tokens of all requests in flight (policy.md's C), one slot a process.
    pub c_tokens: [u32; MAX_WORKERS],
    /// Requests in flight at the backend as its own host last told in band, whoever's they are.
    pub remote_in_flight: u32,
    /// What the routers of this host had in flight there when that came: the sum of `workers` then.
    pub remote_ours: u32,
    /// `CLOCK_MONOTONIC` of `remote_in_flight`; 0 = never heard.
    pub remote_at_ns: u64,
    /// Always 0; fills the last line.
    pub reserved5: u64,
    /// Counter, kernel: segments sent to the backend again.
    pub retransmits: u64,
    /// Kernel: `CLOCK_MONOTONIC` of the last time that a segment was not acknowledged a second time in a row; 0 = never.
    pub last_timeout_ns: u64,
    /// Counter, kernel: segments by which the backend said that it takes nothing more.
    pub zero_windows: u64,
    /// Kernel: `CLOCK_MONOTONIC` of the last of these; 0 = never.
    pub last_zero_window_ns: u64,
    /// Kernel: `CLOCK_MONOTONIC` of the first request after the last byte received, or of the first in a pause; 0 = none.
    pub asked_ns: u64,
}

impl BackendLoad {
    /// A row of nothing.
    pub const ZERO: Self = Self {
        conns: 0,
        awaiting: 0,
        streaming: 0,
        opened: 0,
        closed: 0,
        resets: 0,
        tx_bytes: 0,
        rx_bytes: 0,
        ttfb_ns: 0,
        ttfb_count: 0,
        last_rx_ns: 0,
        last_reset_ns: 0,
        foreign_conns: 0,
        foreign_awaiting: 0,
        foreign_streaming: 0,
        unknown: 0,
        workers: [0; MAX_WORKERS],
        q_tokens: [0; MAX_WORKERS],
        c_tokens: [0; MAX_WORKERS],
        remote_in_flight: 0,
        remote_ours: 0,
        remote_at_ns: 0,
        reserved5: 0,
        retransmits: 0,
        last_timeout_ns: 0,
        zero_windows: 0,
        last_zero_window_ns: 0,
        asked_ns: 0,
    };
}

/// One slot of `WORKERS`: a router process that counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSlot {
    /// Cookie of the process's anchor socket; 0 = free. Claimed by compare-and-swap, freed by `sock_release`.
    pub cookie: u64,
    /// Process id, for people.
    pub pid: u32,
    /// Always 0.
    pub reserved: u32,
    /// `CLOCK_MONOTONIC` of the claim.
    pub started_ns: u64,
}

/// One entry of `NAMES`: the URL of a row, and which processes use it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendName {
    /// One bit a worker slot: that process uses the row. Bits of free slots mean nothing.
    pub refs: u32,
    /// Bytes of `url` in use; 0 = the row was never allocated.
    pub len: u32,
    /// The URL, UTF-8, without credentials.
    pub url: [u8; NAME_BYTES],
}

/// The kernel's lock for what several processors change at once. The loader knows it by its name; nothing but the
/// kernel reads or writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct bpf_spin_lock {
    /// The kernel's.
    pub val: u32,
}

/// One entry of `SOCKS`, the storage of a socket.
///
/// Segments to and from the backend, the end of the connection and the socket's release come on different
/// processors: `phase` changes only under the lock, and `released` with it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SockState {
    /// Guards `phase` and `released`.
    pub lock: bpf_spin_lock,
    /// Row of the backend plus 1; 0 = not a backend's socket.
    pub backend_plus1: u32,
    /// Who made the socket: [`SockState::FOREIGN`], [`SockState::ROUTER`], [`SockState::PROBE`].
    pub role: u8,
    /// The request on it, see [`crate::phase`].
    pub phase: u8,
    /// 1 while the socket is in `conns`; makes the handlers idempotent. 2 if only its release will tell of its end.
    pub counted: u8,
    /// 1 once the process that held the socket let it go; a reset after that is not the backend's.
    pub released: u8,
    /// TCP sequence number at which the last request begins.
    pub request_seq: u32,
    /// TCP sequence number up to which its answer has come. What arrives and ends before it was seen.
    pub answered_to: u32,
    /// Always 0.
    pub pad: u32,
    /// What the phase must remember of the answer.
    pub progress: u64,
    /// `CLOCK_MONOTONIC` of the last request's first packet; 0 = none was sent.
    pub sent_ns: u64,
}

impl SockState {
    /// Nobody marked it: a process that is not a router.
    pub const FOREIGN: u8 = 0;
    /// A router's connection for requests.
    pub const ROUTER: u8 = 1;
    /// A router's connection for probes and scrapes; counted nowhere.
    pub const PROBE: u8 = 2;
    /// A connection that an engine of this host accepted, in the agent's storage.
    pub const SERVED: u8 = 3;

    /// The mark of a router's own socket, before it connects.
    #[must_use]
    pub const fn marked(role: u8) -> Self {
        Self {
            lock: bpf_spin_lock { val: 0 },
            backend_plus1: 0,
            role,
            phase: 0,
            counted: 0,
            released: 0,
            request_seq: 0,
            answered_to: 0,
            pad: 0,
            progress: 0,
            sent_ns: 0,
        }
    }
}

/// What the agent remembers of an accepted connection beside its state: what the engine has sent.
///
/// Of the socket, not of the processor: a program that a process runs while it sends can be interrupted by another.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Where its head is read.
    pub head: HeadBuffer,
    /// TCP sequence number after the last byte sent; what is sent again ends before it.
    pub sent_to: u32,
    /// 1 once `sent_to` says something.
    pub has_sent: u32,
}

/// What the agent remembers of an accepted connection whose peer is told in band.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Telling {
    /// Row of the port plus 1; 0 = it is not to be told.
    pub row_plus1: u32,
    /// What was last told.
    pub in_flight: u32,
    /// `CLOCK_MONOTONIC` of that; 0 = nothing yet.
    pub at_ns: u64,
}

const _: () = assert!(size_of::<Telling>() == 16);
const _: () = assert!(size_of::<BackendLoad>() == 384);
const _: () = assert!(core::mem::offset_of!(BackendLoad, workers) == 128);
const _: () = assert!(core::mem::offset_of!(BackendLoad, q_tokens) == 192);
const _: () = assert!(core::mem::offset_of!(BackendLoad, c_tokens) == 256);
const _: () = assert!(core::mem::offset_of!(BackendLoad, remote_in_flight) == 320);
// Both are written and read as one word.
const _: () = assert!(core::mem::offset_of!(BackendLoad, remote_ours) == 324);
const _: () = assert!(core::mem::offset_of!(BackendLoad, remote_at_ns) == 328);
const _: () = assert!(core::mem::offset_of!(BackendLoad, asked_ns) + 8 == 384);
const _: () = assert!(size_of::<WorkerSlot>() == 24);
const _: () = assert!(size_of::<BackendName>() == 256);
const _: () = assert!(size_of::<SockState>() == 40);
const _: () = assert!(core::mem::offset_of!(SockState, sent_ns) == 32);

#[cfg(feature = "user")]
#[expect(unsafe_code, reason = "aya's Pod is an unsafe marker trait")]
mod pod {
    // SAFETY: repr(C), integers and arrays of integers only, no padding (asserted above), every bit pattern valid.
    unsafe impl aya::Pod for super::BackendLoad {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::WorkerSlot {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::BackendName {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::SockState {}
}
