//! The edge guard: an object of its own, so that nothing in it can take the load signal down.
//!
//! Reading order: [`maps`] (what is shared), [`packet`] (what is read of a packet); what a packet gets is decided in
//! `router_common::edge`. Invariant: a packet is dropped by a rule or an empty bucket only; what cannot be read, or
//! remembered, passes and is counted.
#![no_std]
#![no_main]

mod maps;
#[path = "../object.rs"]
mod object;
mod packet;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use router_common::edge::{SourceKey, Verdict, bucket_of, by_rule, take};

/// Drops what denied sources send to guarded ports, and openings beyond a source's bucket.
#[xdp]
fn edge_guard(ctx: XdpContext) -> u32 {
    let verdict = judge(&ctx);
    count(verdict);
    if verdict.is_passed() { XDP_PASS } else { XDP_DROP }
}

#[inline(always)]
fn judge(ctx: &XdpContext) -> Verdict {
    let segment = match packet::segment(ctx) {
        Ok(segment) => segment,
        Err(unread) => return unread,
    };
    if maps::PORTS.get_ptr(u32::from(segment.port)).is_none() {
        return Verdict::Other;
    }
    let longest = Key::new(size_of::<SourceKey>() as u32 * 8, segment.source);
    let rule = maps::RULES.get(&longest).map_or(0, |rule| *rule);
    match by_rule(rule, segment.flags) {
        Some(verdict) => verdict,
        None => by_bucket(bucket_of(segment.source)),
    }
}

/// What an opening gets that no rule decides.
#[inline(always)]
#[expect(unsafe_code, reason = "pointers into map values")]
fn by_bucket(source: SourceKey) -> Verdict {
    let Some(limits) = maps::LIMITS.get(0) else { return Verdict::Admitted };
    let limits = *limits;
    if limits.interval_ns == 0 {
        return Verdict::Admitted;
    }
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(bucket) = maps::SOURCES.get_ptr_mut(source) else {
        // A source that cannot be remembered passes.
        if let Some(full_at) = take(0, now, limits) {
            let _forgotten = maps::SOURCES.insert(source, full_at, 0);
        }
        return Verdict::Admitted;
    };
    // Two processors with packets of one source may both take the same opening: one more passes, none is lost.
    // SAFETY: an aligned u64 in a map value that lives until the program ends.
    match take(unsafe { bucket.read_volatile() }, now, limits) {
        None => Verdict::Limited,
        Some(full_at) => {
            // SAFETY: as above.
            unsafe { bucket.write_volatile(full_at) };
            Verdict::Admitted
        }
    }
}

#[inline(always)]
#[expect(unsafe_code, reason = "pointers into map values")]
fn count(verdict: Verdict) {
    if let Some(counter) = maps::VERDICTS.get_ptr_mut(verdict as u32) {
        // SAFETY: this processor's own u64, and no other program runs on it meanwhile.
        unsafe { *counter += 1 };
    }
}
