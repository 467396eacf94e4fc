//! One life of the simulated process after another: when it began, when it is ready, and that it ended.
//!
//! Invariant: no two lives began at the same time, so a router can tell a restart by that alone.

use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// The life of now.
#[derive(Debug)]
pub(super) struct Life {
    start_delay: Duration,
    now: Mutex<Now>,
    /// Restarts so far; each ends the connections of the life before.
    restarts: watch::Sender<u64>,
}

#[derive(Debug)]
struct Now {
    started_at_s: f64,
    ready_at: Instant,
}

impl Life {
    pub(super) fn begin(start_delay: Duration) -> Self {
        let now = Now { started_at_s: unix_seconds(), ready_at: Instant::now() + start_delay };
        Self { start_delay, now: Mutex::new(now), restarts: watch::Sender::new(0) }
    }

    /// Ends this life and begins the next.
    pub(super) fn begin_anew(&self) {
        let mut now = self.now.lock();
        // A hundredth of a second is what the real clock is read by.
        now.started_at_s = unix_seconds().max(now.started_at_s + 0.01);
        now.ready_at = Instant::now() + self.start_delay;
        self.restarts.send_modify(|count| *count += 1);
    }

    /// Unix time of its beginning.
    pub(super) fn started_at_s(&self) -> f64 {
        self.now.lock().started_at_s
    }

    pub(super) fn is_ready(&self) -> bool {
        Instant::now() >= self.now.lock().ready_at
    }

    pub(super) fn restarts(&self) -> u64 {
        *self.restarts.borrow()
    }

    /// Changes when this life ends.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.restarts.subscribe()
    }
}

/// In hundredths, as Linux tells the start of a process.
fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_secs_f64() * 100.0).floor() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_life_begins_later_and_waits_until_it_is_ready() {
        let life = Life::begin(Duration::from_secs(2));
        let mut watch = life.watch();
        let mut last = 0.0;
        for restarts in 0..5 {
            assert!(life.started_at_s() > last);
            last = life.started_at_s();
            assert!(!life.is_ready());
            tokio::time::advance(Duration::from_secs(2)).await;
            assert!(life.is_ready());
            assert_eq!((life.restarts(), watch.has_changed().unwrap()), (restarts, restarts > 0));
            watch.mark_unchanged();
            life.begin_anew();
        }
    }
}
