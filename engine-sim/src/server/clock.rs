//! Real time to virtual time and back.
//!
//! The clock can be slow for a while, and it can stand still; each such change begins a new origin.
//! Invariant: both directions are computed from the same origin, so late wake-ups never add up to a drift, and
//! virtual time never goes back.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::Nanos;

/// A clock that runs `scale` times as fast as the real one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    scale: f64,
    origin: Instant,
    /// Virtual time at the origin.
    at: Nanos,
    slow: Option<Slow>,
    is_still: bool,
}

/// So many times slower, until then.
#[derive(Clone, Copy, Debug)]
struct Slow {
    factor: f64,
    until: Instant,
}

impl Clock {
    /// Virtual time 0 is now. `scale` is positive.
    pub(super) fn start(scale: f64) -> Self {
        Self { scale, origin: Instant::now(), at: Nanos(0), slow: None, is_still: false }
    }

    /// The virtual time of this moment.
    pub(super) fn now(&self) -> Nanos {
        if self.is_still {
            return self.at;
        }
        let (slow, slow_end) = self.slow_phase();
        let now = Instant::now();
        let slow_time = now.min(slow_end).duration_since(self.origin).as_nanos() as f64 / slow;
        let fast_time = now.saturating_duration_since(slow_end).as_nanos() as f64;
        self.at.plus(Nanos(((slow_time + fast_time) * self.scale) as u64))
    }

    /// The first real moment at which `at` has come; `None` while the clock stands still.
    pub(super) fn instant_of(&self, at: Nanos) -> Option<Instant> {
        if self.is_still {
            return None;
        }
        let (slow, slow_end) = self.slow_phase();
        let left = at.since(self.at).0 as f64 / self.scale;
        let slow_span = slow_end.duration_since(self.origin).as_nanos() as f64;
        let real = if left * slow <= slow_span { left * slow } else { slow_span + left - slow_span / slow };
        Some(self.origin + Duration::from_nanos(real.ceil() as u64))
    }

    /// Runs `factor` times slower (at least 1) from now on, for so long in real time.
    pub(super) fn slow_down(&mut self, factor: f64, span: Duration) {
        self.begin_anew();
        self.slow = Some(Slow { factor, until: self.origin + span });
    }

    /// Runs at full speed from now on.
    pub(super) fn speed_up(&mut self) {
        self.begin_anew();
        self.slow = None;
    }

    /// Stands still from now on.
    pub(super) fn halt(&mut self) {
        self.begin_anew();
        self.is_still = true;
    }

    /// Goes on after [`Self::halt`].
    pub(super) fn go_on(&mut self) {
        self.begin_anew();
        self.is_still = false;
    }

    pub(super) fn is_still(&self) -> bool {
        self.is_still
    }

    fn begin_anew(&mut self) {
        self.at = self.now();
        self.origin = Instant::now();
    }

    /// How slow the clock is from its origin on, and until when.
    fn slow_phase(&self) -> (f64, Instant) {
        match self.slow {
            Some(Slow { factor, until }) if until > self.origin => (factor, until),
            _ => (1.0, self.origin),
        }
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
                let real = clock.instant_of(Nanos(at)).unwrap().duration_since(clock.origin);
                let back = real.as_nanos() as f64 * scale;
                assert!(
                    (back - at as f64).abs() <= scale.max(1.0) + 1.0,
                    "{at} at {scale} came back as {back}"
                );
            }
        }
    }

    async fn pass(ms: u64) {
        tokio::time::advance(Duration::from_millis(ms)).await;
    }

    fn now_ms(clock: &Clock) -> f64 {
        clock.now().as_ms_f64()
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_clock_catches_up_in_speed_but_not_in_time() {
        let mut clock = Clock::start(2.0);
        pass(10).await;
        clock.slow_down(4.0, Duration::from_millis(40));
        let origin = clock.origin;
        let moment = |ms: f64| clock.instant_of(Nanos::from_ms_f64(ms)).unwrap() - origin;
        assert_eq!(moment(30.0), Duration::from_millis(20), "20 + 10 at half the real speed");
        assert_eq!(moment(40.0), Duration::from_millis(40), "the end of the slow time");
        assert_eq!(moment(50.0), Duration::from_millis(45), "and 10 at twice the real speed");
        for (after_ms, want_ms) in [(20, 30.0), (20, 40.0), (5, 50.0)] {
            pass(after_ms).await;
            assert_eq!(now_ms(&clock), want_ms);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_clock_told_to_speed_up_does_at_once() {
        let mut clock = Clock::start(1.0);
        clock.slow_down(10.0, Duration::from_secs(10));
        pass(10).await;
        clock.speed_up();
        pass(10).await;
        assert_eq!(now_ms(&clock), 11.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_stood_still_goes_on_from_there() {
        let mut clock = Clock::start(1.0);
        pass(10).await;
        clock.halt();
        pass(1000).await;
        assert_eq!((now_ms(&clock), clock.instant_of(Nanos(0))), (10.0, None));
        clock.go_on();
        pass(5).await;
        assert_eq!(now_ms(&clock), 15.0);
    }
}
