//! Sockets that their last holder let go: a router's anchor, and connections closed on this side.
//!
//! Runs in the closing process, also when a signal killed it: this is what makes counts safe against a crash.
#![expect(unsafe_code, reason = "context and map values are raw pointers")]

use core::ptr::read_volatile;

use aya_ebpf::helpers::bpf_get_socket_cookie;
use aya_ebpf::programs::SockContext;
use aya_log_ebpf::debug;
use router_common::limits::{MAX_BACKENDS, MAX_WORKERS};
use router_common::phase;

use crate::maps::{LOAD, WORKERS};
use crate::socket;

/// `SOCK_STREAM` and `SOCK_DGRAM` of Linux. An anchor is a datagram socket.
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;

#[inline(always)]
pub(crate) fn on_release(ctx: &SockContext) {
    // SAFETY: the kernel gives a valid context.
    match unsafe { read_volatile(&raw const (*ctx.sock).type_) } {
        SOCK_STREAM => let_go(ctx),
        SOCK_DGRAM => free_slot(ctx),
        _ => {}
    }
}

/// Ends what is outstanding on a connection that this side closed: a peer out of reach would keep it from ending for
/// minutes. A reset that follows is then not taken for the backend's.
#[inline(always)]
fn let_go(ctx: &SockContext) {
    // SAFETY: the context is the socket; the storage was checked non-null.
    unsafe {
        let Some(state) = socket::storage(ctx.sock.cast(), 0) else { return };
        let load = socket::row(state);
        let was = socket::release(state);
        if let Some(load) = load {
            socket::count(load, (*state).role, was, phase::IDLE);
        }
    }
}

/// Frees the slot whose anchor this is: first the values, last the slot, so that nobody claims it half cleared.
#[inline(always)]
fn free_slot(ctx: &SockContext) {
    // SAFETY: the helper takes the context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.sock.cast()) };
    if cookie == 0 {
        return;
    }
    for slot in 0..MAX_WORKERS as u32 {
        let Some(worker) = WORKERS.get_ptr_mut(slot) else { return };
        // SAFETY: points to a map value.
        let owner = unsafe { read_volatile(&raw const (*worker).cookie) };
        if owner == cookie {
            clear(slot as usize);
            // SAFETY: as above.
            unsafe {
                (&raw mut (*worker).pid).write_volatile(0);
                (&raw mut (*worker).cookie).write_volatile(0);
            }
            debug!(ctx, "slot {} freed", slot);
            return;
        }
    }
}

/// Zeroes the slot's three values in every row.
#[inline(always)]
fn clear(slot: usize) {
    if slot >= MAX_WORKERS {
        return;
    }
    for row in 0..MAX_BACKENDS as u32 {
        let Some(load) = LOAD.get_ptr_mut(row) else { return };
        // SAFETY: points to a map value; the slot was checked.
        unsafe {
            (&raw mut (*load).workers).cast::<u32>().add(slot).write_volatile(0);
            (&raw mut (*load).q_tokens).cast::<u32>().add(slot).write_volatile(0);
            (&raw mut (*load).c_tokens).cast::<u32>().add(slot).write_volatile(0);
        }
    }
}
