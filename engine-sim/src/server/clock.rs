//! Real time to virtual time and back.
//!
//! Invariant: both directions are computed from the same origin, so late wake-ups never add up to a drift.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::Nanos;

/// A clock that runs `scale` times as fast as the real one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    origin: Instant,
    scale: f64,
}

impl Clock {
    /// Virtual time 0 is now. `scale` is positive.
    pub(super) fn start(scale: f64) -> Self {
        Self { origin: Instant::now(), scale }
    }

    /// The virtual time of this moment.
    pub(super) fn now(&self) -> Nanos {
        Nanos((self.origin.elapsed().as_nanos() as f64 * self.scale) as u64)
    }

    /// The first real moment at which `at` has come.
    pub(super) fn instant_of(&self, at: Nanos) -> Instant {
        self.origin + Duration::from_nanos((at.0 as f64 / self.scale).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_converted_back_is_itself_at_any_scale() {
        for scale in [0.001, 1.0, 7.0, 1000.0] {
            let clock = Clock::start(scale);
            for at in [0_u64, 1, 999_999, 7_400_000, 3_600_000_000_000] {
                let real = clock.instant_of(Nanos(at)).duration_since(clock.origin);
                let back = real.as_nanos() as f64 * scale;
                assert!(
                    (back - at as f64).abs() <= scale.max(1.0) + 1.0,
                    "{at} at {scale} came back as {back}"
                );
            }
        }
    }
}
