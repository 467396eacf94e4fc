//! The request on each connection: sent, being answered, over. And bytes, and the time to the first one.
//!
//! Sees every segment of the cgroup's sockets, and looks only at those of counted connections: here the ones that
//! processes of the cgroup opened, in [`crate::local`] the ones that an engine accepted. `router-common`
//! decides what a segment means ([`router_common::phase`]); here it is taken apart and counted. Whoever marked a
//! socket as a probe's sees it counted nowhere.
#![expect(unsafe_code, reason = "context and map values are raw pointers")]

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::programs::SkBuffContext;
use router_common::http::{self, HeadBuffer, Sent};
use router_common::order::{Overtaken, beyond, is_before};
use router_common::phase::{self, AWAITING, AWAITING_HEAD, CHUNKED, SIZED, Step};
use router_common::{BackendLoad, SockState};

use crate::atomic::{add, increment};
use crate::maps::HEAD;
use crate::segment::Segment;
use crate::socket;

/// A segment of one of this side's connections to a backend.
#[inline(always)]
pub(crate) fn on_egress(ctx: &SkBuffContext) -> Option<()> {
    let (state, load) = counted(ctx)?;
    // SAFETY: both point to map values, checked non-null.
    unsafe { to_backend(ctx, state, load, &Segment::of(ctx)?) }
}

/// A segment from the backend to this side.
#[inline(always)]
pub(crate) fn on_ingress(ctx: &SkBuffContext) -> Option<()> {
    let (state, load) = counted(ctx)?;
    let segment = Segment::any(ctx)?;
    if segment.is_window_shut {
        // SAFETY: as below.
        unsafe { shut(load) };
    }
    if segment.len == 0 {
        return None;
    }
    // Nothing interrupts a program that a softirq runs to run another here, so the buffer is this program's.
    let buffer = || HEAD.get_ptr_mut(0);
    // SAFETY: all point to map values, checked non-null.
    unsafe { from_backend(ctx, state, load, &segment, buffer) }
}

/// The backend takes nothing more for now.
///
/// # Safety
/// `load` is a row.
#[inline(always)]
pub(crate) unsafe fn shut(load: *mut BackendLoad) {
    // SAFETY: the caller's promise; a timestamp may be won by any writer.
    unsafe {
        increment(&raw mut (*load).zero_windows);
        (&raw mut (*load).last_zero_window_ns).write_volatile(bpf_ktime_get_ns());
    }
}

/// A segment to the backend, seen from either side.
///
/// # Safety
/// `state` is the storage of a socket, and `load` its row.
#[inline(always)]
pub(crate) unsafe fn to_backend(
    ctx: &SkBuffContext,
    state: *mut SockState,
    load: *mut BackendLoad,
    segment: &Segment,
) -> Option<()> {
    // SAFETY: the caller's promise.
    unsafe {
        add(&raw mut (*load).tx_bytes, segment.len.into());
        let from = (*state).phase;
        if from == AWAITING || from == phase::UNKNOWN {
            return None;
        }
        let sent = http::sent(segment.first(ctx)?);
        let is_first = (*state).sent_ns == 0;
        if !is_first && is_before(segment.seq, (*state).request_seq.wrapping_add(1)) {
            // Sent again.
            return None;
        }
        let to = phase::on_sent(from, sent, is_first);
        if to == from {
            return None;
        }
        if !matches!(sent, Sent::Other) {
            // Before the phase, for whoever sees the answer on another processor.
            (*state).request_seq = segment.seq;
            (*state).answered_to = segment.ack;
            let now = bpf_ktime_get_ns();
            (*state).sent_ns = now;
            // The silence of the backend begins with the first request that it leaves without a byte.
            if (*load).awaiting == 0 || (*load).asked_ns <= (*load).last_rx_ns {
                (&raw mut (*load).asked_ns).write_volatile(now);
            }
        }
        socket::step(state, load, from, Step { phase: to, progress: 0 });
    }
    Some(())
}

/// A segment from the backend, seen from either side. A first one is read in `buffer`. What was seen before counts as
/// bytes and as a sign of life, and no more.
///
/// # Safety
/// As for [`to_backend`], and nobody else uses the buffer meanwhile.
#[inline(always)]
pub(crate) unsafe fn from_backend(
    ctx: &SkBuffContext,
    state: *mut SockState,
    load: *mut BackendLoad,
    segment: &Segment,
    buffer: impl FnOnce() -> Option<*mut HeadBuffer>,
) -> Option<()> {
    // SAFETY: the caller's promise; a timestamp may be won by any writer.
    unsafe {
        add(&raw mut (*load).rx_bytes, segment.len.into());
        let now = bpf_ktime_get_ns();
        (&raw mut (*load).last_rx_ns).write_volatile(now);
        let from = (*state).phase;
        match from {
            AWAITING | AWAITING_HEAD | CHUNKED | SIZED => {}
            _ => return None,
        }
        let seen = (*state).answered_to;
        let fresh = beyond(seen, segment.end());
        // Nothing of one that was seen to its end.
        let segment = &segment.without(beyond(segment.seq, seen))?;
        match from {
            CHUNKED => {
                let tail = segment.tail(ctx, (*state).progress)?;
                go_on(state, load, segment, CHUNKED, phase::on_chunks(tail, segment.len))
            }
            // What is missing before it counts as come, and does not count when it comes.
            SIZED => go_on(state, load, segment, SIZED, phase::on_bytes((*state).progress, fresh)),
            _ if segment.seq == seen => answered(ctx, state, load, segment, from, now, buffer),
            _ => overtakes(ctx, state, segment),
        }
    }
}

/// The first segment of an answer.
///
/// # Safety
/// As for [`from_backend`].
#[inline(always)]
unsafe fn answered(
    ctx: &SkBuffContext,
    state: *mut SockState,
    load: *mut BackendLoad,
    segment: &Segment,
    from: u8,
    now: u64,
    buffer: impl FnOnce() -> Option<*mut HeadBuffer>,
) -> Option<()> {
    // SAFETY: the caller's promise.
    let (request_seq, sent_ns, progress) =
        unsafe { ((*state).request_seq, (*state).sent_ns, (*state).progress) };
    if !is_before(request_seq, segment.ack) {
        // Its sender does not know of the request: something after the last answer.
        return None;
    }
    let buffer = buffer()?;
    let len = segment.start(ctx, buffer)?;
    // SAFETY: the caller's promise.
    let head = http::head(unsafe { &mut *buffer }, len);
    let to = phase::on_answer(from, &head, segment.tail(ctx, 0)?, segment.len);
    let (overtaken, end) = (Overtaken::from_progress(progress), segment.end());
    // SAFETY: the caller's promise.
    unsafe {
        if to.phase == from {
            (*state).answered_to = end;
            return None;
        }
        (*state).answered_to = overtaken.reaches(end);
        let to = phase::on_overtaken(to, overtaken, end);
        if socket::step(state, load, from, to) && to.phase != phase::UNKNOWN {
            add(&raw mut (*load).ttfb_ns, now.wrapping_sub(sent_ns));
            add(&raw mut (*load).ttfb_count, 1);
        }
    }
    Some(())
}

/// A segment of an answer whose first one has not come.
///
/// # Safety
/// As for [`from_backend`].
#[inline(always)]
unsafe fn overtakes(ctx: &SkBuffContext, state: *mut SockState, segment: &Segment) -> Option<()> {
    let is_end = http::ends_chunked(segment.tail(ctx, 0)?, segment.len);
    // SAFETY: the caller's promise; as in `go_on`.
    unsafe {
        let overtaken = Overtaken::from_progress((*state).progress).by(segment.end(), is_end);
        (*state).progress = overtaken.progress();
    }
    Some(())
}

/// A later segment of an answer. While the phase stays only this direction writes the progress: no lock.
///
/// # Safety
/// As for [`from_backend`].
#[inline(always)]
unsafe fn go_on(
    state: *mut SockState,
    load: *mut BackendLoad,
    segment: &Segment,
    from: u8,
    to: Step,
) -> Option<()> {
    // SAFETY: the caller's promise.
    unsafe {
        (*state).answered_to = segment.end();
        if to.phase == from {
            (*state).progress = to.progress;
        } else {
            socket::step(state, load, from, to);
        }
    }
    Some(())
}

/// State and row of the buffer's socket, if its connection is counted.
#[inline(always)]
fn counted(ctx: &SkBuffContext) -> Option<(*mut SockState, *mut BackendLoad)> {
    let sk = socket::of_buffer(ctx)?;
    // SAFETY: the socket and its storage were checked non-null.
    unsafe {
        let state = socket::storage(sk.cast(), 0)?;
        Some((state, socket::row(state)?))
    }
}
