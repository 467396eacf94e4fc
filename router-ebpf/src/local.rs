//! The engine-host view: connections that engines of the cgroup accepted, and the requests on them, of all clients.
//!
//! The mirror of [`crate::sock_ops`], [`crate::phases`] and [`crate::release`], with programs and maps of its own, so
//! that agent and routers are attached, upgraded and taken off without each other. A connection older than the
//! programs is taken up with its next request. Invariant: a connection is in `conns` as long as its state says
//! `counted`, and each of its ends takes it out once.
#![expect(unsafe_code, reason = "context and map values are raw pointers")]

use core::ffi::c_void;
use core::ptr::{null_mut, read_volatile};

use aya_ebpf::bindings::{
    BPF_SK_STORAGE_GET_F_CREATE, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB,
    BPF_SOCK_OPS_STATE_CB_FLAG,
};
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_sk_storage_get, bpf_spin_lock, bpf_spin_unlock};
use aya_ebpf::programs::{SkBuffContext, SockContext, SockOpsContext};
use router_common::http::{self, Sent};
use router_common::order::is_before;
use router_common::phase;
use router_common::tcp::{self, End, state};
use router_common::{Answer, BackendLoad, SockState};

use crate::atomic::{decrement, increment};
use crate::maps::{LOCAL_ANSWERS, LOCAL_LOAD, LOCAL_PORTS, LOCAL_SOCKS};
use crate::phases::{from_backend, to_backend};
use crate::segment::Segment;
use crate::socket;

/// `SockState::counted`: the kernel tells of the connection's end.
pub(crate) const TOLD: u8 = 1;
/// `SockState::counted`: it was taken up late, so only the release of its socket tells.
const UNTIL_RELEASE: u8 = 2;

#[inline(always)]
pub(crate) fn on_event(ctx: &SockOpsContext) {
    match ctx.op() {
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => {
            let _of_no_engine = accepted(ctx);
        }
        BPF_SOCK_OPS_STATE_CB => {
            let _not_counted = state_changed(ctx, ctx.arg(0), ctx.arg(1));
        }
        _ => {}
    }
}

/// Counts a connection to a known port, also one that nobody has taken from the accept queue yet.
#[inline(always)]
pub(crate) fn accepted(ctx: &SockOpsContext) -> Option<()> {
    let row = row_of(ctx.local_port())?;
    let sk = socket::of_event(ctx)?;
    // SAFETY: the socket was checked non-null.
    let state = unsafe { create(sk)? };
    // Without the callback the end of one that is never accepted would not be seen.
    ctx.set_cb_flags((ctx.cb_flags() | BPF_SOCK_OPS_STATE_CB_FLAG) as i32).ok()?;
    // SAFETY: the storage was checked non-null.
    unsafe { take_up(state, row, TOLD) }
}

/// Ends a request when the engine has said its last word, and a counted connection when it has ended.
#[inline(always)]
fn state_changed(ctx: &SockOpsContext, old: u32, new: u32) -> Option<()> {
    if !tcp::is_own_last_word(new) {
        return None;
    }
    // SAFETY: both point to map values, checked non-null; only atomic additions touch the shared row, but for a
    // timestamp that any writer may win.
    unsafe {
        let state = storage(socket::of_event(ctx)?)?;
        if (*state).counted != TOLD {
            return None;
        }
        let load = load_of(state)?;
        socket::give_back(state, load);
        let end = tcp::on_state(old, new);
        if end == End::NotYet {
            return None;
        }
        ended(state, load);
        if end == End::Broken && (*state).released == 0 {
            increment(&raw mut (*load).resets);
            (&raw mut (*load).last_reset_ns).write_volatile(bpf_ktime_get_ns());
        }
    }
    Some(())
}

/// A segment to the engine.
#[inline(always)]
pub(crate) fn on_ingress(ctx: &SkBuffContext) -> Option<()> {
    let sk = socket::of_buffer(ctx)?;
    // SAFETY: the socket and what is found of it were checked non-null.
    unsafe {
        let (state, segment) = match storage(sk.cast()) {
            Some(state) => (state, Segment::of(ctx)?),
            None => {
                if read_volatile(&raw const (*sk).state) != state::ESTABLISHED {
                    return None;
                }
                let row = row_of(read_volatile(&raw const (*sk).src_port))?;
                let segment = Segment::of(ctx)?;
                if matches!(http::sent(segment.first(ctx)?), Sent::Other) {
                    // The middle of something; the next request is soon enough.
                    return None;
                }
                let state = create(sk.cast())?;
                take_up(state, row, UNTIL_RELEASE)?;
                (state, segment)
            }
        };
        to_backend(ctx, state, live(state)?, &segment)
    }
}

/// A segment from the engine.
#[inline(always)]
pub(crate) fn on_egress(ctx: &SkBuffContext) -> Option<()> {
    let sk = socket::of_buffer(ctx)?;
    // SAFETY: the socket and what is found of it were checked non-null; a socket sends one segment at a time.
    unsafe {
        let state = storage(sk.cast())?;
        sent(ctx, sk.cast(), state, live(state)?, &Segment::of(ctx)?)
    }
}

/// A segment from the engine, of a counted connection.
///
/// # Safety
/// `sk` is a socket that sends, `state` its storage, and `load` its row.
#[inline(always)]
pub(crate) unsafe fn sent(
    ctx: &SkBuffContext,
    sk: *mut c_void,
    state: *mut SockState,
    load: *mut BackendLoad,
    segment: &Segment,
) -> Option<()> {
    // SAFETY: the caller's promise; a socket sends one segment at a time.
    unsafe {
        let answer = answer(sk, 0)?;
        if (*answer).has_sent != 0 && !is_before((*answer).sent_to, segment.end()) {
            // Sent again, which is no sign of life of an engine.
            return None;
        }
        (*answer).sent_to = segment.end();
        (*answer).has_sent = 1;
        from_backend(ctx, state, load, segment, || Some(&raw mut (*answer).head))
    }
}

/// The engine let a connection go, or died.
#[inline(always)]
pub(crate) fn on_release(ctx: &SockContext) -> Option<()> {
    // SAFETY: the context is the socket; what is found of it was checked non-null.
    unsafe {
        let state = storage(ctx.sock.cast())?;
        let was = socket::release(state);
        let load = load_of(state)?;
        socket::count(load, (*state).role, was, phase::IDLE);
        if (*state).counted == UNTIL_RELEASE {
            ended(state, load);
        }
    }
    Some(())
}

/// Counts a connection, unless it is counted already.
///
/// # Safety
/// `state` is the storage of a socket.
#[inline(always)]
pub(crate) unsafe fn take_up(state: *mut SockState, row: u32, counted: u8) -> Option<()> {
    let load = LOCAL_LOAD.get_ptr_mut(row)?;
    // SAFETY: the caller's promise. Between lock and unlock there is no call.
    unsafe {
        bpf_spin_lock((&raw mut (*state).lock).cast());
        let was = (*state).counted;
        if was == 0 {
            (*state).role = SockState::SERVED;
            (*state).backend_plus1 = row + 1;
            (*state).counted = counted;
            (*state).released = 0;
        }
        bpf_spin_unlock((&raw mut (*state).lock).cast());
        if was == 0 {
            increment(&raw mut (*load).conns);
            increment(&raw mut (*load).opened);
        }
    }
    Some(())
}

/// Takes a connection out of the count.
///
/// # Safety
/// `state` is the storage of a socket, and `load` its row.
#[inline(always)]
unsafe fn ended(state: *mut SockState, load: *mut BackendLoad) {
    // SAFETY: the caller's promise.
    unsafe {
        (*state).counted = 0;
        decrement(&raw mut (*load).conns);
        increment(&raw mut (*load).closed);
    }
}

/// The row of a port, if an engine is there.
#[inline(always)]
pub(crate) fn row_of(port: u32) -> Option<u32> {
    // SAFETY: the value is read at once.
    unsafe { LOCAL_PORTS.get(port) }.copied()
}

/// The row of a counted connection.
///
/// # Safety
/// `state` is the storage of a socket.
#[inline(always)]
unsafe fn load_of(state: *const SockState) -> Option<*mut BackendLoad> {
    // SAFETY: the caller's promise.
    let (counted, row_plus1) = unsafe { ((*state).counted, (*state).backend_plus1) };
    if counted == 0 || row_plus1 == 0 {
        return None;
    }
    LOCAL_LOAD.get_ptr_mut(row_plus1 - 1)
}

/// The row of a counted connection that the engine still holds.
///
/// # Safety
/// As for [`load_of`].
#[inline(always)]
pub(crate) unsafe fn live(state: *const SockState) -> Option<*mut BackendLoad> {
    // SAFETY: the caller's promise.
    unsafe { if (*state).released == 0 { load_of(state) } else { None } }
}

/// The state of a socket, if it has one.
///
/// # Safety
/// `sk` is a socket that the verifier lets a program hand to the helper.
#[inline(always)]
pub(crate) unsafe fn storage(sk: *mut c_void) -> Option<*mut SockState> {
    // SAFETY: the caller's promise; the map is one of socket storage.
    let state = unsafe { bpf_sk_storage_get((&raw const LOCAL_SOCKS).cast_mut().cast(), sk, null_mut(), 0) };
    if state.is_null() { None } else { Some(state.cast()) }
}

/// What was sent on a socket.
///
/// # Safety
/// As for [`storage`].
#[inline(always)]
unsafe fn answer(sk: *mut c_void, flags: u64) -> Option<*mut Answer> {
    // SAFETY: the caller's promise; the map is one of socket storage.
    let answer =
        unsafe { bpf_sk_storage_get((&raw const LOCAL_ANSWERS).cast_mut().cast(), sk, null_mut(), flags) };
    if answer.is_null() { None } else { Some(answer.cast()) }
}

/// Storage for a connection: the answer first, as nothing is followed without it.
///
/// # Safety
/// As for [`storage`].
#[inline(always)]
pub(crate) unsafe fn create(sk: *mut c_void) -> Option<*mut SockState> {
    let flags = BPF_SK_STORAGE_GET_F_CREATE.into();
    // SAFETY: the caller's promise; the map is one of socket storage.
    unsafe {
        answer(sk, flags)?;
        let state = bpf_sk_storage_get((&raw const LOCAL_SOCKS).cast_mut().cast(), sk, null_mut(), flags);
        if state.is_null() { None } else { Some(state.cast()) }
    }
}
