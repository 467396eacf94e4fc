//! Adding to a counter that several processors and processes write.
//!
//! `*p += 1` loses counts. `AtomicU64::fetch_add` does not exist for this target, which has no compare-and-swap
//! in its base instruction set; the intrinsic below it, with its result unused, is one `lock *(u64 *)` instruction.
#![expect(unsafe_code, reason = "pointers into map values")]

use core::intrinsics::{AtomicOrdering, atomic_xadd};

/// Adds to the counter.
///
/// # Safety
/// `counter` points to an aligned `u64` in a map value.
#[inline(always)]
pub(crate) unsafe fn add(counter: *mut u64, n: u64) {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, n) };
}

/// Adds one to the counter.
///
/// # Safety
/// `counter` points to an aligned `u64` in a map value.
#[inline(always)]
pub(crate) unsafe fn increment(counter: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe { add(counter, 1) };
}

/// Takes one from the gauge.
///
/// # Safety
/// `gauge` points to an aligned `u64` in a map value.
#[inline(always)]
pub(crate) unsafe fn decrement(gauge: *mut u64) {
    // SAFETY: the caller's promise. Adding the greatest u64 wraps to one less.
    unsafe { add(gauge, u64::MAX) };
}
