//! The engine-host view at devices: what [`crate::local`] sees in a cgroup, with the rules of [`crate::tcx`].
//!
//! A connection is counted with its first request, or, if it is of another protocol, with its first bytes; it ends
//! with the engine's FIN or a reset of either side. Invariant: as in [`crate::tcx`].
#![expect(unsafe_code, reason = "context and map values are raw pointers")]

use core::ptr::read_volatile;

use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_sk_release, bpf_tcp_sock};
use aya_ebpf::programs::SkBuffContext;
use router_common::SockState;
use router_common::http::{self, Sent};
use router_common::tcp::state;

use crate::atomic::increment;
use crate::local::{TOLD, create, live, row_of, sent, storage, take_up};
use crate::packet::Packet;
use crate::phases::to_backend;
use crate::socket;
use crate::tcx::{SOCK_STREAM, ended};

/// A packet that arrives.
#[inline(always)]
pub(crate) fn on_ingress(ctx: &SkBuffContext) -> Option<()> {
    let packet = Packet::of(ctx)?;
    let row = row_of(packet.to.port)?;
    let sk = packet.receiver(ctx)?;
    // SAFETY: the socket was checked non-null, and is given back before anything is returned; what is found of it
    // is a map value, which stays.
    let (state, tcp) = unsafe {
        let tcp = read_volatile(&raw const (*sk).state);
        let state = state_of(ctx, sk, tcp, &packet, row);
        bpf_sk_release(sk.cast());
        (state?, tcp)
    };
    // SAFETY: as above.
    unsafe {
        let load = live(state)?;
        if let Some(segment) = packet.payload() {
            let _goes_on = to_backend(ctx, state, load, &segment);
        }
        // A client that has said all may still await its answer.
        if packet.is_reset() && ended(state, load) && tcp == state::ESTABLISHED {
            increment(&raw mut (*load).resets);
            (&raw mut (*load).last_reset_ns).write_volatile(bpf_ktime_get_ns());
        }
    }
    Some(())
}

/// A packet that the engine sends.
#[inline(always)]
pub(crate) fn on_egress(ctx: &SkBuffContext) -> Option<()> {
    let sk = socket::of_buffer(ctx)?;
    let packet = Packet::of(ctx)?;
    row_of(packet.from.port)?;
    // SAFETY: the socket and what is found of it were checked non-null; a socket sends one segment at a time.
    unsafe {
        if read_volatile(&raw const (*sk).type_) != SOCK_STREAM {
            return None;
        }
        let state = storage(sk.cast())?;
        let load = live(state)?;
        if let Some(segment) = packet.payload() {
            let _goes_on = sent(ctx, sk.cast(), state, load, &segment);
        }
        if packet.is_last_word() {
            ended(state, load);
        }
    }
    Some(())
}

/// The state of the receiver, which is made with what the connection is counted by.
///
/// # Safety
/// `sk` is a socket that the program holds.
#[inline(always)]
unsafe fn state_of(
    ctx: &SkBuffContext,
    sk: *mut bpf_sock,
    tcp: u32,
    packet: &Packet,
    row: u32,
) -> Option<*mut SockState> {
    // SAFETY: the caller's promise; what is found was checked non-null.
    unsafe {
        if let Some(state) = storage(sk.cast())
            && ((*state).counted != 0 || tcp != state::ESTABLISHED)
        {
            return Some(state);
        }
        if tcp != state::ESTABLISHED {
            return None;
        }
        let segment = packet.payload()?;
        // What begins an older connection here may be the middle of something; the next request is soon enough.
        if matches!(http::sent(segment.first(ctx)?), Sent::Other) && !is_fresh(sk) {
            return None;
        }
        let state = create(sk.cast())?;
        take_up(state, row, TOLD)?;
        Some(state)
    }
}

/// Whether nothing has arrived on the connection before.
///
/// # Safety
/// As for [`state_of`].
#[inline(always)]
unsafe fn is_fresh(sk: *mut bpf_sock) -> bool {
    // SAFETY: the caller's promise; what is found was checked non-null.
    unsafe {
        let tcp = bpf_tcp_sock(sk);
        !tcp.is_null() && read_volatile(&raw const (*tcp).bytes_received) == 0
    }
}
