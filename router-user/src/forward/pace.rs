//! How slowly a request's body may come: with no pause over a limit, and not by single bytes for ever. Pure.
//!
//! Only the time that the client is waited for counts. Invariant: a body that comes at [`BYTES_PER_SECOND_MIN`] with
//! pauses within the limit is never broken off.

use std::time::Duration;

/// A body may be waited for one pause in all, and a second more for so many bytes that came.
pub const BYTES_PER_SECOND_MIN: u64 = 500;

/// The pace of one body.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pause_max: Duration,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// For a body with pauses of at most `pause_max`.
    #[must_use]
    pub const fn new(pause_max: Duration) -> Self {
        Self { pause_max, waited: Duration::ZERO, bytes: 0 }
    }

    /// How long the next bytes may be waited for.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let earned = Duration::from_millis(self.bytes.saturating_mul(1000) / BYTES_PER_SECOND_MIN);
        let in_all = self.pause_max.saturating_add(earned);
        self.pause_max.min(in_all.saturating_sub(self.waited))
    }

    /// So many bytes came after so long a wait.
    pub fn came(&mut self, waited: Duration, bytes: u64) {
        self.waited += waited;
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::{BYTES_PER_SECOND_MIN, Pace};
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn single_bytes_are_waited_for_one_pause_in_all() {
        let mut pace = Pace::new(30 * SECOND);
        let came = (0..).take_while(|_| {
            let is_in_time = pace.patience() >= 10 * SECOND;
            pace.came(10 * SECOND, 1);
            is_in_time
        });
        assert_eq!(came.count(), 3);
        assert!(pace.patience() < SECOND);
    }

    #[test]
    fn a_slow_body_with_long_pauses_comes_through() {
        let mut pace = Pace::new(30 * SECOND);
        for _ in 0..1000 {
            assert_eq!(pace.patience(), 30 * SECOND);
            pace.came(30 * SECOND, 30 * BYTES_PER_SECOND_MIN);
        }
        assert!(pace.patience() <= 30 * SECOND, "one pause is never longer");
    }
}
