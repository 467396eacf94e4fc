//! The one clock of the process: `CLOCK_MONOTONIC`, so that its values compare with the kernel's in the maps.

use router_policy::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds of `CLOCK_MONOTONIC`.
#[must_use]
pub fn now() -> Nanos {
    let t = clock_gettime(ClockId::Monotonic);
    Nanos(t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs())
}
