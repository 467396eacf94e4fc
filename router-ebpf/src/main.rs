//! The programs that the kernel runs, one thin wrapper each.
//!
//! Reading order: [`maps`] (what is shared), [`sock_ops`] (connections counted per backend), [`phases`] (the request
//! on each), [`release`] (what a dead router leaves behind), [`local`] (the same seen from the
//! engine's host, for the agent), [`inband`] (what that host tells the routers), [`tcx`] and [`local_tcx`] (the two
//! views at devices), [`iterators`] (a look at all sockets), [`packet`], [`socket`], [`segment`], [`atomic`], [`object`]. No decision that `router-common` could hold and test on the host.
//! Invariant: a program never refuses anything; whatever fails in it only leaves a count as it was.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(internal_features, reason = "the BPF target has no fetch_add; see `atomic`")]

mod atomic;
mod inband;
mod iterators;
mod local;
mod local_tcx;
mod maps;
mod object;
mod packet;
mod phases;
mod release;
mod segment;
mod sock_ops;
mod socket;
mod tcx;

use aya_ebpf::bindings::tcx_action_base::TCX_NEXT;
use aya_ebpf::macros::{cgroup_skb, cgroup_sock, classifier, sock_ops};
use aya_ebpf::programs::{SkBuffContext, SockContext, SockOpsContext, TcContext};

/// What programs of these two kinds return to let the kernel go on.
const GO_ON: u32 = 1;

/// Counts the connections that processes of the cgroup open to known backends.
#[sock_ops]
fn inflight_sockops(ctx: SockOpsContext) -> u32 {
    sock_ops::on_event(&ctx);
    GO_ON
}

/// Follows requests to known backends.
#[cgroup_skb(egress)]
fn phase_egress(ctx: SkBuffContext) -> i32 {
    let _nothing_to_count = phases::on_egress(&ctx);
    GO_ON as i32
}

/// Follows the answers.
#[cgroup_skb(ingress)]
fn phase_ingress(ctx: SkBuffContext) -> i32 {
    let _nothing_to_count = phases::on_ingress(&ctx);
    GO_ON as i32
}

/// Zeroes what a router process counted, when its anchor socket goes; marks connections closed on this side.
#[cgroup_sock(sock_release)]
fn release(ctx: SockContext) -> i32 {
    release::on_release(&ctx);
    GO_ON as i32
}

/// Hears what the hosts of backends tell in band. Apart, as kernels before 5.10 cannot.
#[sock_ops]
fn inband_hear(ctx: SockOpsContext) -> u32 {
    let _not_told = inband::on_router_event(&ctx);
    GO_ON
}

/// Counts connections to known backends and follows requests on them, at a device.
#[classifier]
fn tcx_egress(ctx: TcContext) -> i32 {
    let _nothing_to_count = tcx::on_egress(&SkBuffContext { skb: ctx.skb });
    TCX_NEXT
}

/// Follows the answers, at a device.
#[classifier]
fn tcx_ingress(ctx: TcContext) -> i32 {
    let _nothing_to_count = tcx::on_ingress(&SkBuffContext { skb: ctx.skb });
    TCX_NEXT
}

/// Counts the requests to engines, at a device.
#[classifier]
fn local_tcx_in(ctx: TcContext) -> i32 {
    let _nothing_to_count = local_tcx::on_ingress(&SkBuffContext { skb: ctx.skb });
    TCX_NEXT
}

/// Follows their answers, at a device.
#[classifier]
fn local_tcx_out(ctx: TcContext) -> i32 {
    let _nothing_to_count = local_tcx::on_egress(&SkBuffContext { skb: ctx.skb });
    TCX_NEXT
}

/// Counts the connections that engines of the cgroup accept.
#[sock_ops]
fn local_sockops(ctx: SockOpsContext) -> u32 {
    local::on_event(&ctx);
    GO_ON
}

/// Follows requests to them.
#[cgroup_skb(ingress)]
fn local_ingress(ctx: SkBuffContext) -> i32 {
    let _nothing_to_count = local::on_ingress(&ctx);
    GO_ON as i32
}

/// Follows their answers.
#[cgroup_skb(egress)]
fn local_egress(ctx: SkBuffContext) -> i32 {
    let _nothing_to_count = local::on_egress(&ctx);
    GO_ON as i32
}

/// Ends what is outstanding on a connection that the engine let go.
#[cgroup_sock(sock_release)]
fn local_release(ctx: SockContext) -> i32 {
    let _nothing_to_count = local::on_release(&ctx);
    GO_ON as i32
}

/// Tells routers what an engine has in flight. Attached only where that is asked for.
#[sock_ops]
fn inband_tell(ctx: SockOpsContext) -> u32 {
    let _not_told = inband::on_engine_event(&ctx);
    GO_ON
}
