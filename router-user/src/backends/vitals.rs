//! Signs of life and of trouble of one engine, from all who meet it, to the [`Health`] that judges them.
//!
//! A request leaves its good signs in two atomics, which cost it next to nothing; the control thread takes them up a
//! few times a second ([`Vitals::beat`]). A bad sign is judged where it is met, at once. Who judges also tells the
//! verdict, under the lock, so that the last word told is the last verdict. Invariant: nothing is held while waiting.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use router_policy::{Nanos, Trust, Wait};
use tokio::sync::Notify;

use super::health::{Cause, Health, Probe, Rules};

/// A share that moved less is not told.
const SHARE_STEP: f32 = 0.02;

/// Takes a verdict. Must not wait, nor come back to the vitals.
pub type Tell<'a> = &'a dyn Fn(Trust);

/// The vitals of one engine.
#[derive(Debug)]
pub struct Vitals {
    /// The engine's, for people.
    url: String,
    /// Bytes came since the last beat.
    bytes: AtomicBool,
    /// When the last bytes came, to a beat, nanoseconds.
    bytes_at: AtomicU64,
    /// Answers begun since they were last taken up.
    answered: AtomicU32,
    judged: Mutex<Judged>,
    look: Notify,
}

#[derive(Debug)]
struct Judged {
    health: Health,
    told: Trust,
}

/// What people are shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// How far the engine is trusted.
    pub trust: Trust,
    /// What is held against it.
    pub cause: Option<Cause>,
}

impl Vitals {
    /// Of an engine that nothing is known against.
    #[must_use]
    pub fn new(url: String, rules: Rules) -> Self {
        let (bytes, bytes_at, answered, look) = Default::default();
        let judged = Mutex::new(Judged { health: Health::new(rules), told: Trust::Full });
        Self { url, bytes, bytes_at, answered, judged, look }
    }

    /// Bytes of an answer came. Mostly one read of a line that all share.
    #[inline]
    pub fn saw_bytes(&self) {
        if !self.bytes.load(Ordering::Relaxed) {
            self.bytes.store(true, Ordering::Relaxed);
        }
    }

    /// An answer that is no error has begun.
    #[inline]
    pub fn answered(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether bytes came since `then`, to a beat.
    #[must_use]
    pub fn has_bytes_since(&self, then: Nanos) -> bool {
        self.bytes.load(Ordering::Relaxed) || self.bytes_at.load(Ordering::Relaxed) >= then.0
    }

    /// The engine is to be asked at once whether it is there. Does not wait.
    pub fn look(&self) {
        self.look.notify_one();
    }

    /// Waits for the next [`Self::look`]; one since the last wait counts. One waiter only. Dropping the future loses
    /// nothing.
    pub async fn wanted(&self) {
        self.look.notified().await;
    }

    /// A request failed there.
    pub fn failed(&self, now: Nanos, cause: Cause, tell: Tell<'_>) {
        self.judge(now, tell, |health| health.failed(now, cause));
    }

    /// A probe ended.
    pub fn probed(&self, now: Nanos, probe: Probe, tell: Tell<'_>) {
        self.judge(now, tell, |health| health.probed(now, probe));
    }

    /// An inference of our own ended.
    pub fn inferred(&self, now: Nanos, is_answered: bool, tell: Tell<'_>) {
        self.judge(now, tell, |health| health.inferred(now, is_answered));
    }

    /// The kernel sees that its host does not answer.
    pub fn unreachable(&self, now: Nanos, tell: Tell<'_>) {
        self.judge(now, tell, |health| health.unreachable(now));
    }

    /// Another process answers at its address, or it was away.
    pub fn restarted(&self, now: Nanos, tell: Tell<'_>) {
        self.judge(now, tell, |health| health.restarted(now));
    }

    /// From when on requests count for the question whether it hangs.
    #[must_use]
    pub fn counts_from(&self) -> Nanos {
        self.judged.lock().health.counts_from()
    }

    /// Takes up what requests left, looks how long the oldest one waits, and lets time pass. A few times a second.
    pub fn beat(&self, now: Nanos, oldest: Option<Wait>, tell: Tell<'_>) {
        let has_bytes = self.bytes.swap(false, Ordering::Relaxed);
        if has_bytes {
            self.bytes_at.store(now.0, Ordering::Relaxed);
        }
        let last = Nanos(self.bytes_at.load(Ordering::Relaxed));
        self.judge(now, tell, |health| {
            if has_bytes {
                health.alive(now);
            }
            if let Some(Wait { since, expected_seconds }) = oldest {
                health.silent(now, now.seconds_since(since.max(last)), expected_seconds);
            }
        });
    }

    /// The rules it is judged by.
    #[must_use]
    pub fn rules(&self) -> Rules {
        *self.judged.lock().health.rules()
    }

    /// What is thought of it.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let judged = self.judged.lock();
        Verdict { trust: judged.told, cause: judged.health.cause() }
    }

    fn judge(&self, now: Nanos, tell: Tell<'_>, sign: impl FnOnce(&mut Health)) {
        let mut judged = self.judged.lock();
        let Judged { health, told } = &mut *judged;
        health.answered(now, self.answered.swap(0, Ordering::Relaxed));
        sign(health);
        health.tick(now);
        let trust = health.trust(now);
        let is_same = match (*told, trust) {
            (Trust::Rising(before), Trust::Rising(share)) => (share - before).abs() < SHARE_STEP,
            (before, trust) => before == trust,
        };
        if !is_same {
            if told.as_str() != trust.as_str() {
                self.say(trust, health.cause());
            }
            *told = trust;
            tell(trust);
        }
    }

    fn say(&self, trust: Trust, cause: Option<Cause>) {
        let (backend, state) = (self.url.as_str(), trust.as_str());
        match (trust, cause) {
            (Trust::Suspect | Trust::Ejected, Some(cause)) => {
                tracing::warn!(backend, state, cause = cause.as_str(), "the engine is trusted less");
            }
            _ => tracing::info!(backend, state, "the engine is trusted more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use router_policy::{Nanos, Trust, Wait};

    use super::{Cause, Rules, Vitals};

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * SECOND)
    }

    #[test]
    fn answers_left_by_requests_count_before_the_next_failure() {
        let vitals = Vitals::new(String::new(), Rules::default());
        for _ in 0..20 {
            vitals.failed(at(1), Cause::Errors, &|_| panic!("never in a row"));
            vitals.failed(at(1), Cause::Errors, &|_| panic!("never in a row"));
            (0..3).for_each(|_| vitals.answered());
        }
    }

    #[test]
    fn each_verdict_is_told_once() {
        let vitals = Vitals::new(String::new(), Rules::default());
        let told = RefCell::new(Vec::new());
        let tell = |trust: Trust| told.borrow_mut().push(trust.as_str());
        (0..8).for_each(|_| vitals.failed(at(1), Cause::Cut, &tell));
        (0..10).for_each(|_| vitals.beat(at(6), None, &tell));
        vitals.answered();
        (0..10).for_each(|_| vitals.beat(at(7), None, &tell));
        vitals.beat(at(17), None, &tell);
        assert_eq!(*told.borrow(), ["suspect", "ejected", "half_open", "slow_start", "ready"]);
    }

    #[test]
    fn an_engine_hangs_from_its_last_byte_on_however_old_the_request_is() {
        let vitals = Vitals::new(String::new(), Rules::default());
        let oldest = Some(Wait { since: at(1), expected_seconds: 0.0 });
        vitals.saw_bytes();
        vitals.beat(at(100), oldest, &|_| panic!("it lives"));
        assert!(vitals.has_bytes_since(at(100)) && !vitals.has_bytes_since(at(101)));
        vitals.beat(at(104), oldest, &|_| panic!("5 s are not over"));
        let told = RefCell::new(Vec::new());
        vitals.beat(at(106), oldest, &|trust| told.borrow_mut().push(trust));
        assert_eq!(*told.borrow(), [Trust::Suspect]);
    }
}
