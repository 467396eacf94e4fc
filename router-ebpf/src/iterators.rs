//! Looking at all sockets there are, once, for a process that asks: what it reads is what the programs write.
//!
//! [`seed_tcp`] takes up connections that are older than the programs; [`recount`] tells what is counted, so that
//! what sockets left behind while no program was attached can be found. The programs are here and not beside the
//! others, as there is no macro for their kind. Offsets into the kernel's context are its
//! interface; into its own structures nothing is read.
#![expect(unsafe_code, reason = "context and map values are raw pointers")]

use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::read_volatile;

use aya_ebpf::bindings::{BPF_SK_STORAGE_GET_F_CREATE, seq_file};
use aya_ebpf::helpers::{
    bpf_get_socket_cookie, bpf_getsockopt, bpf_seq_write, bpf_setsockopt, bpf_skc_to_tcp_sock,
};
use router_common::seed::{REFUSED, TAKEN_UP, TOLD_BYTES};
use router_common::{SockState, seed};

use crate::atomic::increment;
use crate::inband::HEARING;
use crate::maps::{LOAD, SEED};
use crate::sock_ops::EVENTS;
use crate::socket;

/// To the next socket.
const GO_ON: i32 = 0;

const SOL_TCP: i32 = 6;
/// From Linux 6.12 on; before, a connection taken up here would never be subtracted.
const TCP_BPF_SOCK_OPS_CB_FLAGS: i32 = 1008;

/// `struct bpf_iter_meta`.
#[repr(C)]
struct Meta {
    seq: *mut seq_file,
}

/// `struct bpf_iter__tcp`.
#[repr(C)]
struct TcpSocket {
    meta: *mut Meta,
    sk: *mut c_void,
}

/// `struct bpf_iter__bpf_sk_storage_map`.
#[repr(C)]
struct Stored {
    meta: *mut Meta,
    _map: *mut c_void,
    _sk: *mut c_void,
    value: *mut SockState,
}

/// Takes up connections that are older than the programs.
// SAFETY: no other item has this name; the loader knows the kind of the program by its section.
#[unsafe(no_mangle)]
// SAFETY: as above.
#[unsafe(link_section = "iter/tcp")]
extern "C" fn seed_tcp(ctx: *mut TcpSocket) -> i32 {
    let _not_asked_for = on_tcp(ctx);
    GO_ON
}

/// Tells what is counted.
// SAFETY: as above.
#[unsafe(no_mangle)]
// SAFETY: as above.
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
extern "C" fn recount(ctx: *mut Stored) -> i32 {
    let _end = on_storage(ctx);
    GO_ON
}

/// Counts the connection if it was asked for, and its end will be told. The kernel holds the socket meanwhile.
#[inline(always)]
fn on_tcp(ctx: *mut TcpSocket) -> Option<()> {
    // SAFETY: the kernel gives a valid context; each pointer is checked before a helper gets it. A socket's events
    // wait for the iterator, so its state is written by nobody else.
    unsafe {
        let (meta, sk) = (read_volatile(&raw const (*ctx).meta), read_volatile(&raw const (*ctx).sk));
        if sk.is_null() {
            return None;
        }
        let sk: *mut c_void = bpf_skc_to_tcp_sock(sk).cast();
        if sk.is_null() {
            return None;
        }
        let row = *SEED.get(bpf_get_socket_cookie(sk))?;
        let load = LOAD.get_ptr_mut(row)?;
        let state = socket::storage(sk, BPF_SK_STORAGE_GET_F_CREATE.into())?;
        if (*state).role == SockState::PROBE || (*state).counted != 0 {
            return None;
        }
        let told = if will_tell_its_end(sk) {
            (*state).backend_plus1 = row + 1;
            (*state).counted = 1;
            increment(&raw mut (*load).conns);
            if (*state).role == SockState::FOREIGN {
                increment(&raw mut (*load).foreign_conns);
            }
            increment(&raw mut (*load).opened);
            TAKEN_UP
        } else {
            REFUSED
        };
        bpf_seq_write((*meta).seq, (&raw const told).cast(), 1);
    }
    Some(())
}

/// Has the kernel tell of the socket what it tells of one that was seen opening, beside whatever else it tells of.
///
/// # Safety
/// `sk` is a socket that the iterator holds.
#[inline(always)]
unsafe fn will_tell_its_end(sk: *mut c_void) -> bool {
    let mut flags: u32 = 0;
    let bytes = size_of::<u32>() as i32;
    // SAFETY: the caller's promise; the value is as long as said.
    unsafe {
        let value = (&raw mut flags).cast();
        if bpf_getsockopt(sk, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, value, bytes) != 0 {
            return false;
        }
        flags |= EVENTS | HEARING;
        bpf_setsockopt(sk, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, (&raw mut flags).cast(), bytes) == 0
    }
}

/// Tells row, role, phase and whether it is counted, of every socket that has a state.
#[inline(always)]
fn on_storage(ctx: *mut Stored) -> Option<()> {
    const { assert!(offset_of!(SockState, backend_plus1) == seed::TOLD_FROM, "what the reader expects") };
    // SAFETY: the kernel gives a valid context, and a value to read from.
    unsafe {
        let (meta, value) = (read_volatile(&raw const (*ctx).meta), read_volatile(&raw const (*ctx).value));
        if value.is_null() {
            return None;
        }
        bpf_seq_write((*meta).seq, (&raw const (*value).backend_plus1).cast(), TOLD_BYTES as u32);
    }
    Some(())
}
