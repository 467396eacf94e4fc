//! The state of a socket, and how the gauges of its row follow its phase.
//!
//! Segments both ways, the end of the connection and the socket's release run on different processors. Invariant: a
//! phase is left only by [`step`], [`give_back`] or [`release`], each a compare and a store under the socket's lock, so
//! that each entry into a gauge is taken back once.
#![expect(unsafe_code, reason = "map values are raw pointers")]

use core::ffi::c_void;

use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::helpers::{bpf_sk_fullsock, bpf_sk_storage_get, bpf_spin_lock, bpf_spin_unlock};
use aya_ebpf::programs::{SkBuffContext, SockOpsContext};
use router_common::phase::{self, Gauge, IDLE, Step};
use router_common::{BackendLoad, SockState};

use crate::atomic::{decrement, increment};
use crate::maps::{LOAD, SOCKS};

/// The socket that a segment is of.
#[inline(always)]
pub(crate) fn of_buffer(ctx: &SkBuffContext) -> Option<*mut bpf_sock> {
    // SAFETY: the kernel gives a valid context; each pointer is checked before a helper gets it.
    unsafe {
        let sk = (*ctx.skb.skb).__bindgen_anon_2.sk;
        if sk.is_null() {
            return None;
        }
        let sk = bpf_sk_fullsock(sk);
        if sk.is_null() { None } else { Some(sk) }
    }
}

/// The socket that an event is of.
#[inline(always)]
pub(crate) fn of_event(ctx: &SockOpsContext) -> Option<*mut c_void> {
    // SAFETY: the kernel gives a valid context.
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if sk.is_null() { None } else { Some(sk.cast()) }
}

/// The storage of a socket.
///
/// # Safety
/// `socket` is one that the verifier lets a program hand to the helper.
#[inline(always)]
pub(crate) unsafe fn storage(socket: *mut c_void, flags: u64) -> Option<*mut SockState> {
    // SAFETY: the caller's promise; the map is one of socket storage.
    let state = unsafe {
        bpf_sk_storage_get((&raw const SOCKS).cast_mut().cast(), socket, core::ptr::null_mut(), flags)
    };
    if state.is_null() { None } else { Some(state.cast()) }
}

/// The row of a counted connection that nobody let go.
///
/// # Safety
/// `state` is the storage of a socket.
#[inline(always)]
pub(crate) unsafe fn row(state: *const SockState) -> Option<*mut BackendLoad> {
    // SAFETY: the caller's promise.
    let (row_plus1, counted, released) =
        unsafe { ((*state).backend_plus1, (*state).counted, (*state).released) };
    if counted == 0 || released != 0 || row_plus1 == 0 {
        return None;
    }
    LOAD.get_ptr_mut(row_plus1 - 1)
}

/// Goes from one phase to the next, if the socket is still in that phase. Says whether it was.
///
/// # Safety
/// `state` is the storage of a socket, and `load` its row.
#[inline(always)]
pub(crate) unsafe fn step(state: *mut SockState, load: *mut BackendLoad, from: u8, to: Step) -> bool {
    // SAFETY: the caller's promise. Between lock and unlock there is no call.
    let (was_there, role) = unsafe {
        bpf_spin_lock((&raw mut (*state).lock).cast());
        let was_there = (*state).phase == from && (*state).released == 0;
        if was_there {
            (*state).phase = to.phase;
            (*state).progress = to.progress;
        }
        bpf_spin_unlock((&raw mut (*state).lock).cast());
        (was_there, (*state).role)
    };
    if was_there {
        // SAFETY: as above.
        unsafe { count(load, role, from, to.phase) };
    }
    was_there
}

/// Ends whatever is outstanding.
///
/// # Safety
/// As for [`step`].
#[inline(always)]
pub(crate) unsafe fn give_back(state: *mut SockState, load: *mut BackendLoad) {
    // SAFETY: as for `step`.
    unsafe {
        bpf_spin_lock((&raw mut (*state).lock).cast());
        let from = (*state).phase;
        (*state).phase = IDLE;
        bpf_spin_unlock((&raw mut (*state).lock).cast());
        count(load, (*state).role, from, IDLE);
    }
}

/// Ends whatever is outstanding for good, as nobody holds the socket any more. Returns the phase that it ended.
///
/// # Safety
/// As for [`step`].
#[inline(always)]
pub(crate) unsafe fn release(state: *mut SockState) -> u8 {
    // SAFETY: as for `step`.
    unsafe {
        bpf_spin_lock((&raw mut (*state).lock).cast());
        let from = (*state).phase;
        (*state).phase = IDLE;
        (*state).released = 1;
        bpf_spin_unlock((&raw mut (*state).lock).cast());
        from
    }
}

/// Moves one request between gauges.
///
/// # Safety
/// `load` is a row.
#[inline(always)]
pub(crate) unsafe fn count(load: *mut BackendLoad, role: u8, from: u8, to: u8) {
    let (from, to) = (phase::gauge(from), phase::gauge(to));
    if from as u8 == to as u8 {
        return;
    }
    let is_foreign = role == SockState::FOREIGN;
    // SAFETY: the caller's promise.
    unsafe {
        match from {
            Gauge::None => {}
            Gauge::Awaiting => decrement(&raw mut (*load).awaiting),
            Gauge::Streaming => decrement(&raw mut (*load).streaming),
            Gauge::Unknown => decrement(&raw mut (*load).unknown),
        }
        match to {
            Gauge::None => {}
            Gauge::Awaiting => increment(&raw mut (*load).awaiting),
            Gauge::Streaming => increment(&raw mut (*load).streaming),
            Gauge::Unknown => increment(&raw mut (*load).unknown),
        }
        if is_foreign {
            match from {
                Gauge::Awaiting => decrement(&raw mut (*load).foreign_awaiting),
                Gauge::Streaming => decrement(&raw mut (*load).foreign_streaming),
                Gauge::None | Gauge::Unknown => {}
            }
            match to {
                Gauge::Awaiting => increment(&raw mut (*load).foreign_awaiting),
                Gauge::Streaming => increment(&raw mut (*load).foreign_streaming),
                Gauge::None | Gauge::Unknown => {}
            }
        }
    }
}
