//! Connections and requests seen at devices, where the cgroup is out of reach: the twin of [`crate::sock_ops`] and
//! [`crate::phases`]. What is sent again, and what hosts tell in band, is not seen here.
//!
//! A device sees packets, not sockets: a connection is counted with the first packet that this side sends on it once
//! it is established, and ends with this side's FIN or a reset of either. One that ends without either (the kernel
//! gives up resending) stays counted until a router compares the gauges with the sockets there are. A connection
//! older than the programs is taken up with its next packet. Invariant: a connection is in `conns` as long as its
//! state says `counted`, and each of its ends takes it out once.
#![expect(unsafe_code, reason = "context and map values are raw pointers")]

use core::ptr::read_volatile;

use aya_ebpf::bindings::BPF_SK_STORAGE_GET_F_CREATE;
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_sk_release, bpf_spin_lock, bpf_spin_unlock};
use aya_ebpf::programs::SkBuffContext;
use router_common::phase::IDLE;
use router_common::tcp::state;
use router_common::{BackendAddr, BackendLoad, SockState};

use crate::atomic::{decrement, increment};
use crate::maps::{BACKENDS, HEAD, LOAD};
use crate::packet::Packet;
use crate::phases::{from_backend, shut, to_backend};
use crate::socket;

/// `SOCK_STREAM` of Linux.
pub(crate) const SOCK_STREAM: u32 = 1;

/// `SockState::progress` of a socket that was seen opening its connection: what it sends first is its first.
const FROM_ITS_BEGINNING: u64 = 1;

/// A packet that this side sends.
#[inline(always)]
pub(crate) fn on_egress(ctx: &SkBuffContext) -> Option<()> {
    let sk = socket::of_buffer(ctx)?;
    let packet = Packet::of(ctx)?;
    let row = row_of(&packet.to)?;
    // SAFETY: the socket and what is found of it were checked non-null.
    unsafe {
        // The kernel answers for sockets that are gone with one of its own.
        if read_volatile(&raw const (*sk).type_) != SOCK_STREAM {
            return None;
        }
        let tcp = read_volatile(&raw const (*sk).state);
        let state = socket::storage(sk.cast(), BPF_SK_STORAGE_GET_F_CREATE.into())?;
        if (*state).counted == 0 {
            match tcp {
                _ if (*state).role == SockState::PROBE => return None,
                state::SYN_SENT => (*state).progress = FROM_ITS_BEGINNING,
                state::ESTABLISHED => take_up(state, row, packet.seq)?,
                _ => {}
            }
        }
        let load = socket::row(state)?;
        if let Some(segment) = packet.payload() {
            let _goes_on = to_backend(ctx, state, load, &segment);
        }
        if packet.is_last_word() {
            ended(state, load);
        }
    }
    Some(())
}

/// A packet that arrives.
#[inline(always)]
pub(crate) fn on_ingress(ctx: &SkBuffContext) -> Option<()> {
    let packet = Packet::of(ctx)?;
    row_of(&packet.from)?;
    let sk = packet.receiver(ctx)?;
    // SAFETY: the socket was checked non-null, and is given back before anything is returned; what is found of it
    // is a map value, which stays.
    let (state, tcp) = unsafe {
        let state = socket::storage(sk.cast(), 0);
        let tcp = read_volatile(&raw const (*sk).state);
        bpf_sk_release(sk.cast());
        (state?, tcp)
    };
    // SAFETY: as above. Nothing interrupts a program that a softirq runs to run another here, so the buffer is this
    // program's.
    unsafe {
        let load = socket::row(state)?;
        if packet.is_window_shut() {
            shut(load);
        }
        if let Some(segment) = packet.payload() {
            let buffer = || HEAD.get_ptr_mut(0);
            let _goes_on = from_backend(ctx, state, load, &segment, buffer);
        }
        if packet.is_reset() {
            if ended(state, load) && tcp == state::ESTABLISHED {
                increment(&raw mut (*load).resets);
                (&raw mut (*load).last_reset_ns).write_volatile(bpf_ktime_get_ns());
            }
        } else if packet.is_last_word() {
            socket::give_back(state, load);
        }
    }
    Some(())
}

/// Counts a connection. What begins one that was not seen opening may be the middle of something: then its next
/// request is its first.
///
/// # Safety
/// `state` is the storage of a socket.
#[inline(always)]
unsafe fn take_up(state: *mut SockState, row: u32, seq: u32) -> Option<()> {
    let load = LOAD.get_ptr_mut(row)?;
    // SAFETY: the caller's promise. Between lock and unlock there is no call.
    unsafe {
        let now = bpf_ktime_get_ns();
        bpf_spin_lock((&raw mut (*state).lock).cast());
        let was = (*state).counted;
        if was == 0 {
            if (*state).progress != FROM_ITS_BEGINNING {
                (*state).sent_ns = now;
                (*state).request_seq = seq.wrapping_sub(1);
            }
            (*state).progress = 0;
            (*state).backend_plus1 = row + 1;
            (*state).counted = 1;
            (*state).released = 0;
        }
        bpf_spin_unlock((&raw mut (*state).lock).cast());
        if was == 0 {
            increment(&raw mut (*load).conns);
            if (*state).role == SockState::FOREIGN {
                increment(&raw mut (*load).foreign_conns);
            }
            increment(&raw mut (*load).opened);
        }
    }
    Some(())
}

/// Takes a connection out of the count, with whatever is outstanding on it. Says whether it was in.
///
/// # Safety
/// `state` is the storage of a socket, and `load` its row.
#[inline(always)]
pub(crate) unsafe fn ended(state: *mut SockState, load: *mut BackendLoad) -> bool {
    // SAFETY: the caller's promise. Between lock and unlock there is no call.
    unsafe {
        bpf_spin_lock((&raw mut (*state).lock).cast());
        let (was_counted, from) = ((*state).counted != 0, (*state).phase);
        (*state).counted = 0;
        (*state).phase = IDLE;
        // Whoever is about to begin a request here finds that it is over.
        (*state).released = 1;
        bpf_spin_unlock((&raw mut (*state).lock).cast());
        if was_counted {
            socket::count(load, (*state).role, from, IDLE);
            decrement(&raw mut (*load).conns);
            if (*state).role == SockState::FOREIGN {
                decrement(&raw mut (*load).foreign_conns);
            }
            increment(&raw mut (*load).closed);
        }
        was_counted
    }
}

#[inline(always)]
fn row_of(backend: &BackendAddr) -> Option<u32> {
    // SAFETY: the value is read at once; a row's key changes only when nothing is open there.
    unsafe { BACKENDS.get(backend) }.copied()
}
