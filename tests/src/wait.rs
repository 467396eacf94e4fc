//! Waiting for what must come about, with a deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// What takes longer than this has failed.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Whether there is time for what takes minutes (`cargo xtask test --long`).
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("UNLATCH_LONG").is_some()
}

/// Waits until `what` holds.
///
/// # Panics
/// It does not hold within [`DEADLINE`].
#[track_caller]
pub fn until(rule: &str, mut what: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !what() {
        assert!(Instant::now() < end, "{rule}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits the same way without a pause, where the time matters.
///
/// # Panics
/// It does not hold within [`DEADLINE`].
#[track_caller]
pub fn until_busily(rule: &str, mut what: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !what() {
        assert!(Instant::now() < end, "{rule}: not within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

/// Something one thread does and another waits for.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// Lets all through, from now on.
    pub fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.0.0.lock()
    }

    /// Waits until it is open.
    ///
    /// # Panics
    /// It is not opened within [`DEADLINE`].
    #[track_caller]
    pub fn wait(&self) {
        self.wait_within(DEADLINE);
    }

    /// Waits until it is open, for a scene that takes longer to set.
    ///
    /// # Panics
    /// It is not opened in time.
    #[track_caller]
    pub fn wait_within(&self, deadline: Duration) {
        let mut open = self.0.0.lock();
        let end = Instant::now() + deadline;
        while !*open {
            let timed_out = self.0.1.wait_until(&mut open, end).timed_out();
            assert!(!timed_out || *open, "a gate was not opened within {deadline:?}");
        }
    }
}
