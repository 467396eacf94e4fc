//! What an engine has in flight, told by its host on packets that leave anyway ([`router_common::inband`]).
//!
//! On the engine's host an option is written to the packets of accepted connections whose peer is to be told; on a
//! router's it is read from those of connections to known backends. Programs of their own, so that a kernel without the
//! helpers loses nothing else. Invariant: a connection that was not asked for costs nothing: its flags stay as they are.
#![expect(unsafe_code, reason = "context and map values are raw pointers")]

use core::ptr::read_volatile;

use aya_ebpf::bindings::{
    BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_HDR_OPT_LEN_CB, BPF_SOCK_OPS_PARSE_HDR_OPT_CB,
    BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB,
    BPF_SOCK_OPS_WRITE_HDR_OPT_CB, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG,
};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_load_hdr_opt, bpf_reserve_hdr_opt, bpf_store_hdr_opt};
use aya_ebpf::programs::SockOpsContext;
use router_common::edge::FAMILY_BITS;
use router_common::inband::{BYTES, SEARCH, decode, encode, key_of};
use router_common::limits::MAX_WORKERS;
use router_common::{BackendLoad, SockState};

use crate::maps::LOCAL_PEERS;
use crate::{local, sock_ops, socket};

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
    let flags = ctx.cb_flags() | BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG;
    ctx.set_cb_flags(flags as i32).ok()
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

/// Marks a connection whose peer is to be told, and asks for its packets.
#[inline(always)]
fn begin(ctx: &SockOpsContext) -> Option<()> {
    // Whichever program comes first: it must be counted, and is only once.
    local::accepted(ctx)?;
    let key = Key::new(FAMILY_BITS + 128, key_of(&sock_ops::remote(ctx)));
    LOCAL_PEERS.get(&key)?;
    let flags = ctx.cb_flags() | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
    ctx.set_cb_flags(flags as i32).ok()?;
    // SAFETY: points to the socket's storage, checked non-null.
    unsafe { (*marked(ctx)?).role = SockState::SERVED_TELLING };
    Some(())
}

/// Takes room in a packet's header. Without room, as beside many SACK blocks, the packet leaves without.
#[inline(always)]
fn reserve(ctx: &SockOpsContext) -> Option<()> {
    telling(ctx)?;
    // SAFETY: the kernel's own context.
    let failed = unsafe { bpf_reserve_hdr_opt(ctx.ops, BYTES as u32, 0) };
    (failed == 0).then_some(())
}

/// Writes what the engine has in flight now; a connection whose requests cannot be told counts as one.
#[inline(always)]
fn write(ctx: &SockOpsContext) -> Option<()> {
    let state = telling(ctx)?;
    // SAFETY: points to the socket's storage, and to its row, checked non-null.
    let in_flight = unsafe {
        let load = local::load_of(state)?;
        let gauge = |gauge: *const u64| read_volatile(gauge);
        gauge(&raw const (*load).awaiting)
            .wrapping_add(gauge(&raw const (*load).streaming))
            .wrapping_add(gauge(&raw const (*load).unknown))
    };
    let option = encode(if in_flight > u64::from(u32::MAX) { u32::MAX } else { in_flight as u32 });
    // SAFETY: the helper reads as many bytes as there are.
    let failed = unsafe { bpf_store_hdr_opt(ctx.ops, option.as_ptr().cast(), BYTES as u32, 0) };
    (failed == 0).then_some(())
}

/// The state of a connection whose peer is to be told: another program may have asked for the packets of others.
#[inline(always)]
fn telling(ctx: &SockOpsContext) -> Option<*const SockState> {
    let state = marked(ctx)?;
    // SAFETY: points to the socket's storage, checked non-null.
    (unsafe { (*state).role } == SockState::SERVED_TELLING).then_some(state.cast_const())
}

#[inline(always)]
fn marked(ctx: &SockOpsContext) -> Option<*mut SockState> {
    // SAFETY: the socket was checked non-null.
    unsafe { local::storage(socket::of_event(ctx)?) }
}
