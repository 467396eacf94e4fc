//! What an engine has in flight, told by its host on packets that leave anyway ([`router_common::inband`]).
//!
//! On the engine's host an option is written to the packets of accepted connections whose peer is to be told; on a
//! router's it is read from those of connections to known backends. Programs of their own, so that a kernel without the
//! helpers loses nothing else. Invariant: a connection that was not asked for costs nothing: its flags stay as they are.
#![expect(unsafe_code, reason = "context and map values are raw pointers")]

use core::ptr::{null_mut, read_volatile};

use aya_ebpf::bindings::{
    BPF_SK_STORAGE_GET_F_CREATE, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_HDR_OPT_LEN_CB,
    BPF_SOCK_OPS_PARSE_HDR_OPT_CB, BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG,
    BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_WRITE_HDR_OPT_CB, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG,
};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::helpers::{
    bpf_ktime_get_ns, bpf_load_hdr_opt, bpf_reserve_hdr_opt, bpf_sk_storage_get, bpf_store_hdr_opt,
};
use aya_ebpf::programs::SockOpsContext;
use router_common::edge::FAMILY_BITS;
use router_common::inband::{BYTES, SEARCH, decode, encode, is_news, key_of};
use router_common::limits::MAX_WORKERS;
use router_common::{BackendLoad, SockState, Telling};

use crate::maps::{LOCAL_LOAD, LOCAL_PEERS, LOCAL_TELLING};
use crate::{local, sock_ops, socket};

/// `BPF_WRITE_HDR_TCP_CURRENT_MSS` of Linux, which the bindings lack.
const BPF_WRITE_HDR_TCP_CURRENT_MSS: u32 = 1;

/// What is to be told of a connection on which a backend's host may tell: packets with options that the kernel does not
/// know.
pub(crate) const HEARING: u32 = BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG;

/// An event of a connection that this host opened.
#[inline(always)]
pub(crate) fn on_router_event(ctx: &SockOpsContext) -> Option<()> {
    match ctx.op() {
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => listen(ctx),
        BPF_SOCK_OPS_PARSE_HDR_OPT_CB => heard(ctx),
        _ => None,
    }
}

/// Asks for packets with options that the kernel does not know, on a connection to a known backend. Not on those of
/// probes: the other host counts the probe itself.
#[inline(always)]
fn listen(ctx: &SockOpsContext) -> Option<()> {
    let state = sock_ops::storage(ctx, 0)?;
    // SAFETY: points to the socket's storage, checked non-null.
    if unsafe { (*state).role == SockState::PROBE || (*state).backend_plus1 == 0 } {
        return None;
    }
    ctx.set_cb_flags((ctx.cb_flags() | HEARING) as i32).ok()
}

/// Notes what the backend's host says, beside what the routers of this host have there at that moment: later they may
/// have more, or less, than it counted.
#[inline(always)]
fn heard(ctx: &SockOpsContext) -> Option<()> {
    let state = sock_ops::storage(ctx, 0)?;
    let mut option = SEARCH;
    // SAFETY: the helper writes at most as many bytes as it is told there are.
    let found = unsafe { bpf_load_hdr_opt(ctx.ops, option.as_mut_ptr().cast(), BYTES as u32, 0) };
    if found != BYTES as i64 {
        return None;
    }
    let in_flight = decode(option)?;
    // SAFETY: points to the socket's storage, and to its row, checked non-null. The pair is stored as one word, as
    // several processors may hear at once.
    unsafe {
        let load = socket::row(state)?;
        let pair = u64::from(in_flight) | u64::from(ours(load)) << 32;
        (&raw mut (*load).remote_in_flight).cast::<u64>().write_volatile(pair);
        (&raw mut (*load).remote_at_ns).write_volatile(bpf_ktime_get_ns());
    }
    Some(())
}

/// What the routers of this host have in flight at a row.
///
/// # Safety
/// `load` is a row.
#[inline(always)]
unsafe fn ours(load: *const BackendLoad) -> u32 {
    let mut sum = 0_u32;
    for slot in 0..MAX_WORKERS {
        // SAFETY: the caller's promise, and a place of the array.
        sum =
            sum.wrapping_add(unsafe { read_volatile((&raw const (*load).workers).cast::<u32>().add(slot)) });
    }
    sum
}

/// An event of a connection that an engine accepted.
#[inline(always)]
pub(crate) fn on_engine_event(ctx: &SockOpsContext) -> Option<()> {
    match ctx.op() {
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => begin(ctx),
        BPF_SOCK_OPS_HDR_OPT_LEN_CB => reserve(ctx),
        BPF_SOCK_OPS_WRITE_HDR_OPT_CB => write(ctx),
        _ => None,
    }
}

/// Asks for the packets of a connection whose peer is to be told.
#[inline(always)]
fn begin(ctx: &SockOpsContext) -> Option<()> {
    // Whichever program comes first: it must be counted, and is only once.
    local::accepted(ctx)?;
    let key = Key::new(FAMILY_BITS + 128, key_of(&sock_ops::remote(ctx)));
    LOCAL_PEERS.get(&key)?;
    let telling = telling(ctx, BPF_SK_STORAGE_GET_F_CREATE.into())?;
    // SAFETY: both point to the socket's storage, checked non-null.
    unsafe { (*telling).row_plus1 = (*local::storage(socket::of_event(ctx)?)?).backend_plus1 };
    let flags = ctx.cb_flags() | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
    ctx.set_cb_flags(flags as i32).ok()
}

/// Takes room in a packet's header, if there is something new to tell. Without room, as beside many SACK blocks, the
/// packet leaves without.
#[inline(always)]
fn reserve(ctx: &SockOpsContext) -> Option<()> {
    // How long segments may be is asked apart from any: each must have the room.
    if ctx.arg(0) != BPF_WRITE_HDR_TCP_CURRENT_MSS {
        // SAFETY: points to the socket's storage, checked non-null.
        let (row_plus1, last, at_ns) = unsafe {
            let telling = telling(ctx, 0)?;
            ((*telling).row_plus1, (*telling).in_flight, (*telling).at_ns)
        };
        // SAFETY: the helper takes nothing.
        if !is_news(in_flight(row_plus1)?, unsafe { bpf_ktime_get_ns() }, last, at_ns) {
            return None;
        }
    }
    // SAFETY: the kernel's own context.
    let failed = unsafe { bpf_reserve_hdr_opt(ctx.ops, BYTES as u32, 0) };
    (failed == 0).then_some(())
}

/// Writes what the engine has in flight now.
#[inline(always)]
fn write(ctx: &SockOpsContext) -> Option<()> {
    let telling = telling(ctx, 0)?;
    // SAFETY: points to the socket's storage, checked non-null; a socket sends one packet at a time.
    unsafe {
        let in_flight = in_flight((*telling).row_plus1)?;
        let option = encode(in_flight);
        if bpf_store_hdr_opt(ctx.ops, option.as_ptr().cast(), BYTES as u32, 0) != 0 {
            return None;
        }
        (*telling).in_flight = in_flight;
        (*telling).at_ns = bpf_ktime_get_ns();
    }
    Some(())
}

/// What all clients have in flight at a port; a connection whose requests cannot be told counts as one.
#[inline(always)]
fn in_flight(row_plus1: u32) -> Option<u32> {
    let load = LOCAL_LOAD.get_ptr(row_plus1.checked_sub(1)?)?;
    // SAFETY: points to a map value, checked non-null.
    let sum = unsafe {
        read_volatile(&raw const (*load).awaiting)
            .wrapping_add(read_volatile(&raw const (*load).streaming))
            .wrapping_add(read_volatile(&raw const (*load).unknown))
    };
    Some(if sum > u64::from(u32::MAX) { u32::MAX } else { sum as u32 })
}

/// What a connection's peer was told; nothing where it is not to be, as where another program asked for its packets.
#[inline(always)]
fn telling(ctx: &SockOpsContext, flags: u64) -> Option<*mut Telling> {
    let sk = socket::of_event(ctx)?;
    // SAFETY: the socket was checked non-null; the map is one of socket storage.
    let telling =
        unsafe { bpf_sk_storage_get((&raw const LOCAL_TELLING).cast_mut().cast(), sk, null_mut(), flags) };
    if telling.is_null() { None } else { Some(telling.cast()) }
}
