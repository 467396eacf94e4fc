//! Requests at an engine that are not ours: what its report, or its host in band, says beyond our own count, fading
//! with age. One source at a time, the fresher.

use std::time::Duration;

use super::table::Told;
use crate::signal::{Signal, Why};
use crate::time::Nanos;

/// No engine has more in flight: a greater total is an engine's nonsense, or a lie.
const TOTAL_MAX: u32 = 65_535;

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
    pub fn on_report(&mut self, now: Nanos, total: Signal<u32>, ours: u32) {
        self.at_report = match total {
            Signal::Known { value, .. } => Signal::known(value.min(TOTAL_MAX).saturating_sub(ours), now),
            Signal::Unknown(why) => Signal::Unknown(why),
        };
    }

    /// This, or what was told in band if that is fresher.
    #[must_use]
    pub fn or_fresher(self, now: Nanos, told: Option<Told>) -> Self {
        let Some(Told { in_flight, ours, at }) = told else { return self };
        // It came between the reading of the clock and now, or a map holds nonsense.
        let at = at.min(now);
        if matches!(self.at_report, Signal::Known { at: reported, .. } if reported >= at) {
            return self;
        }
        let mut in_band = Self::NONE;
        in_band.on_report(at, Signal::known(in_flight, at), ours);
        in_band
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
    use super::{Duration, Foreign, Nanos, Signal, TOTAL_MAX, Told, Why};

    const FADE: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn the_fresher_of_report_and_band_counts_and_nothing_heard_is_unknown() {
        let told = |seconds| Some(Told { in_flight: 9, ours: 4, at: at(seconds) });
        let value = |f: Foreign, told, now| f.or_fresher(now, told).now(now, FADE).value();
        assert_eq!(value(Foreign::NONE, None, at(5)), None);
        assert_eq!(value(Foreign::NONE, told(5), at(5)), Some(5.0));
        let mut f = Foreign::default();
        f.on_report(at(5), Signal::known(2, at(5)), 0);
        assert_eq!(value(f, None, at(5)), Some(2.0), "a path that strips the option leaves the report");
        assert_eq!(value(f, told(4), at(5)), Some(2.0));
        assert_eq!(value(f, told(6), at(6)), Some(5.0));
        assert_eq!(value(f, told(6), at(9)), Some(0.0), "it fades like a report");
        assert_eq!(f.or_fresher(at(9), told(6)).now(at(9), FADE).age_seconds(at(9)), Some(3.0));
    }

    #[test]
    fn a_lie_is_bounded_and_never_lowers_our_own_count() {
        let value = |in_flight, when| {
            let told = Some(Told { in_flight, ours: 3, at: when });
            Foreign::NONE.or_fresher(at(5), told).now(at(5), FADE).value()
        };
        assert_eq!(value(0, at(5)), Some(0.0));
        assert_eq!(value(u32::MAX, at(5)), Some(f64::from(TOTAL_MAX - 3)));
        assert_eq!(value(4, Nanos(u64::MAX)), Some(1.0), "nor is it fresher than now");
        let from_the_future =
            Foreign::NONE.or_fresher(at(5), Some(Told { in_flight: 4, ours: 0, at: at(9) }));
        assert_eq!(from_the_future.now(at(8), FADE).value(), Some(0.0), "it fades from when it was read");
    }

    #[test]
    fn fades_over_its_time_and_never_goes_below_zero() {
        let second = Duration::from_secs(3);
        let mut f = Foreign::default();
        assert_eq!(f.now(Nanos(0), second).value(), None, "unknown is not zero");
        f.on_report(Nanos(0), Signal::known(10, Nanos(0)), 4);
        assert_eq!(f.now(Nanos(0), second).value(), Some(6.0));
        assert_eq!(f.now(Nanos(1_500_000_000), second).value(), Some(3.0));
        assert_eq!(f.now(Nanos(9_000_000_000), second).value(), Some(0.0));
        f.on_report(Nanos(0), Signal::known(2, Nanos(0)), 7);
        assert_eq!(f.now(Nanos(0), second).value(), Some(0.0));
        f.on_report(Nanos(0), Signal::Unknown(Why::Refused), 7);
        assert_eq!(f.now(Nanos(0), second), Signal::Unknown(Why::Refused));
    }
}
