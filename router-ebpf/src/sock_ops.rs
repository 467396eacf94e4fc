//! Connections per backend: established adds one, the end takes it away.
//!
//! Sees what processes of the cgroup open (not what they accept). Handlers are idempotent through
//! `SockState::counted`: two versions of the program may be attached for a moment.
#![expect(unsafe_code, reason = "context and map values are raw pointers")]

use core::ptr::read_volatile;

use aya_ebpf::bindings::{
    BPF_SK_STORAGE_GET_F_CREATE, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_RETRANS_CB,
    BPF_SOCK_OPS_RETRANS_CB_FLAG, BPF_SOCK_OPS_RTO_CB, BPF_SOCK_OPS_RTO_CB_FLAG, BPF_SOCK_OPS_STATE_CB,
    BPF_SOCK_OPS_STATE_CB_FLAG,
};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::programs::SockOpsContext;
use aya_log_ebpf::debug;
use router_common::tcp::{self, End};
use router_common::{BackendAddr, SockState};

use crate::atomic::{add, decrement, increment};
use crate::maps::{BACKENDS, LOAD};
use crate::socket;

/// What is to be told of a counted connection: its end, and what the backend's host does not acknowledge.
pub(crate) const EVENTS: u32 =
    BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RETRANS_CB_FLAG | BPF_SOCK_OPS_RTO_CB_FLAG;

/// `AF_INET6` of Linux.
const AF_INET6: u32 = 10;

#[inline(always)]
pub(crate) fn on_event(ctx: &SockOpsContext) {
    match ctx.op() {
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => opened(ctx),
        BPF_SOCK_OPS_STATE_CB => state_changed(ctx, ctx.arg(0), ctx.arg(1)),
        BPF_SOCK_OPS_RETRANS_CB => sent_again(ctx, ctx.arg(1)),
        BPF_SOCK_OPS_RTO_CB => timed_out(ctx, ctx.arg(0)),
        _ => {}
    }
}

/// Counts a connection to a known backend, unless it was marked as a probe's.
#[inline(always)]
fn opened(ctx: &SockOpsContext) {
    let remote = remote(ctx);
    // SAFETY: the value is read at once; a row's key changes only when nothing is open there.
    let Some(row) = (unsafe { BACKENDS.get(remote) }) else { return };
    let row = *row;
    let Some(sock) = storage(ctx, BPF_SK_STORAGE_GET_F_CREATE.into()) else { return };
    let Some(load) = LOAD.get_ptr_mut(row) else { return };
    // SAFETY: both point to map values, checked non-null; a socket's events are serialized by its lock.
    unsafe {
        if (*sock).role == SockState::PROBE || (*sock).counted != 0 {
            return;
        }
        // Without the callback the end would never be seen, so a connection that cannot have it is not counted.
        if ctx.set_cb_flags((ctx.cb_flags() | EVENTS) as i32).is_err() {
            return;
        }
        (*sock).backend_plus1 = row + 1;
        (*sock).counted = 1;
        increment(&raw mut (*load).conns);
        if (*sock).role == SockState::FOREIGN {
            increment(&raw mut (*load).foreign_conns);
        }
        increment(&raw mut (*load).opened);
    }
    debug!(ctx, "connection to row {} opened, local port {}", row, ctx.local_port());
}

/// Takes a request away when the backend has said its last word, and a counted connection when it has ended.
#[inline(always)]
fn state_changed(ctx: &SockOpsContext, old: u32, new: u32) {
    if !tcp::is_last_word(new) {
        return;
    }
    let end = tcp::on_state(old, new);
    let Some(sock) = storage(ctx, 0) else { return };
    // SAFETY: points to the socket's storage, checked non-null.
    let (row_plus1, counted, released) =
        unsafe { ((*sock).backend_plus1, (*sock).counted, (*sock).released) };
    if counted == 0 || row_plus1 == 0 {
        return;
    }
    let row = row_plus1 - 1;
    let Some(load) = LOAD.get_ptr_mut(row) else { return };
    // SAFETY: as above; only atomic additions touch the shared row, but for a timestamp that any writer may win.
    unsafe {
        socket::give_back(sock, load);
        if end == End::NotYet {
            return;
        }
        (*sock).counted = 0;
        decrement(&raw mut (*load).conns);
        if (*sock).role == SockState::FOREIGN {
            decrement(&raw mut (*load).foreign_conns);
        }
        increment(&raw mut (*load).closed);
        if end == End::Broken && released == 0 {
            increment(&raw mut (*load).resets);
            (&raw mut (*load).last_reset_ns).write_volatile(bpf_ktime_get_ns());
        }
    }
    debug!(ctx, "connection to row {} closed, local port {}", row, ctx.local_port());
}

/// Counts segments that are sent again.
#[inline(always)]
fn sent_again(ctx: &SockOpsContext, segments: u32) {
    // SAFETY: the storage was checked non-null; the row is only added to.
    unsafe {
        let Some(load) = storage(ctx, 0).and_then(|sock| socket::row(sock)) else { return };
        add(&raw mut (*load).retransmits, segments.into());
    }
}

/// Notes that nothing was acknowledged in time; `before` times already. Once happens on any path.
#[inline(always)]
fn timed_out(ctx: &SockOpsContext, before: u32) {
    if before == 0 {
        return;
    }
    // SAFETY: as above, but for a timestamp that any writer may win.
    unsafe {
        let Some(load) = storage(ctx, 0).and_then(|sock| socket::row(sock)) else { return };
        (&raw mut (*load).last_timeout_ns).write_volatile(bpf_ktime_get_ns());
    }
}

/// The peer's address in the one form that `BACKENDS` uses.
#[inline(always)]
pub(crate) fn remote(ctx: &SockOpsContext) -> BackendAddr {
    let ops = ctx.ops;
    // Both forms are read whatever the family: chosen first, the compiler would select between two offsets into
    // the context, and the verifier refuses a context pointer that was computed.
    // SAFETY: the kernel gives a valid context, whose fields may be read one by one.
    let (family, ip4, ip6, port) = unsafe {
        let ip6 = &raw const (*ops).remote_ip6;
        let word = |n: usize| read_volatile(ip6.cast::<u32>().add(n));
        (
            read_volatile(&raw const (*ops).family),
            read_volatile(&raw const (*ops).remote_ip4),
            [word(0), word(1), word(2), word(3)],
            read_volatile(&raw const (*ops).remote_port),
        )
    };
    let port = u32::from_be(port) as u16;
    if family == AF_INET6 { BackendAddr::v6(ip6, port) } else { BackendAddr::v4(ip4, port) }
}

/// The storage of the context's socket.
#[inline(always)]
pub(crate) fn storage(ctx: &SockOpsContext, flags: u64) -> Option<*mut SockState> {
    // SAFETY: the socket was checked non-null.
    unsafe { socket::storage(socket::of_event(ctx)?, flags) }
}
