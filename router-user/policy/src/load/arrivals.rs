//! Arrivals over a window, for `lowest-qps`.

use std::time::Duration;

use crate::time::Nanos;

const BUCKETS: usize = 60;

/// Counts arrivals over the last window, in 60 buckets: an arrival leaves within 1/60 of the window after its
/// time. Bounded; O(1) amortised, O(buckets) to look.
#[derive(Clone, Debug)]
pub struct Arrivals {
    bucket_ns: u64,
    counts: [u32; BUCKETS],
    total: u64,
    /// Number of the newest bucket, counted from time 0.
    newest: u64,
    ever: bool,
}

impl Arrivals {
    /// No arrivals yet. A window of zero counts nothing but "ever".
    #[must_use]
    pub fn new(window: Duration) -> Self {
        let bucket_ns = (window.as_nanos() / BUCKETS as u128).clamp(1, u128::from(u64::MAX)) as u64;
        Self { bucket_ns, counts: [0; BUCKETS], total: 0, newest: 0, ever: false }
    }

    /// One arrival.
    pub fn arrive(&mut self, now: Nanos) {
        let bucket = self.roll(now);
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.total += 1;
        self.ever = true;
    }

    /// Arrivals within the window, or `None` if there never was one.
    #[must_use]
    pub fn in_window(&self, now: Nanos) -> Option<u64> {
        let steps = (now.0 / self.bucket_ns).saturating_sub(self.newest).min(BUCKETS as u64);
        let leaving = |step| u64::from(self.counts[((self.newest + step) % BUCKETS as u64) as usize]);
        self.ever.then(|| self.total.saturating_sub((1..=steps).map(leaving).sum()))
    }

    fn roll(&mut self, now: Nanos) -> usize {
        let number = (now.0 / self.bucket_ns).max(self.newest);
        let steps = (number - self.newest).min(BUCKETS as u64);
        for step in 1..=steps {
            let leaves = &mut self.counts[((self.newest + step) % BUCKETS as u64) as usize];
            self.total = self.total.saturating_sub(u64::from(*leaves));
            *leaves = 0;
        }
        self.newest = number;
        (number % BUCKETS as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrivals, Duration, Nanos};

    #[test]
    fn arrivals_leave_after_the_window() {
        let mut a = Arrivals::new(Duration::from_secs(60));
        assert_eq!(a.in_window(Nanos(5_000_000_000)), None, "never is not zero");
        for s in 0..90_u64 {
            a.arrive(Nanos(s * 1_000_000_000));
        }
        assert_eq!(a.in_window(Nanos(89_000_000_000)), Some(60));
        assert_eq!(a.in_window(Nanos(119_000_000_000)), Some(30));
        assert_eq!(a.in_window(Nanos(900_000_000_000)), Some(0));
        a.arrive(Nanos(901_000_000_000));
        assert_eq!(a.in_window(Nanos(901_000_000_000)), Some(1));
    }
}
