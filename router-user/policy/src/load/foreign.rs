//! Requests at an engine that are not ours: what its report says beyond our own count, fading with age.

use std::time::Duration;

use crate::signal::{Signal, Why};
use crate::time::Nanos;

/// Foreign requests in flight at one engine (policy.md's F).
#[derive(Clone, Copy, Debug, Default)]
pub struct Foreign {
    at_report: Signal<u32>,
}

impl Foreign {
    /// Nothing was reported.
    pub const NONE: Self = Self { at_report: Signal::Unknown(Why::NeverHeard) };

    /// A report counted `total` while we had `ours` there at most since it was asked for. Never below zero: a
    /// report cannot lower our own count.
    pub fn on_report(&mut self, now: Nanos, total: Option<u32>, ours: u32) {
        self.at_report = match total {
            Some(total) => Signal::known(total.saturating_sub(ours), now),
            None => Signal::default(),
        };
    }

    /// Foreign requests now, fading linearly to nothing over `fade` since the report; unknown without a report.
    #[must_use]
    pub fn now(&self, now: Nanos, fade: Duration) -> Signal<f64> {
        match self.at_report {
            Signal::Known { value: 0, at } => Signal::known(0.0, at),
            Signal::Known { value, at } => {
                let faded = now.seconds_since(at) / fade.as_secs_f64().max(1e-9);
                Signal::known(f64::from(value) * (1.0 - faded).max(0.0), at)
            }
            Signal::Unknown(why) => Signal::Unknown(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Foreign, Nanos};

    #[test]
    fn fades_over_its_time_and_never_goes_below_zero() {
        let second = Duration::from_secs(3);
        let mut f = Foreign::default();
        assert_eq!(f.now(Nanos(0), second).value(), None, "unknown is not zero");
        f.on_report(Nanos(0), Some(10), 4);
        assert_eq!(f.now(Nanos(0), second).value(), Some(6.0));
        assert_eq!(f.now(Nanos(1_500_000_000), second).value(), Some(3.0));
        assert_eq!(f.now(Nanos(9_000_000_000), second).value(), Some(0.0));
        f.on_report(Nanos(0), Some(2), 7);
        assert_eq!(f.now(Nanos(0), second).value(), Some(0.0));
        f.on_report(Nanos(0), None, 7);
        assert_eq!(f.now(Nanos(0), second).value(), None);
    }
}
