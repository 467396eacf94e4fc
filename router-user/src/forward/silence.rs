//! Silence within an answer: when to say something to the client, and when to break off.
//!
//! The clock is read when the engine is waited for, and one timer a stream fires about once per limit, however many
//! bytes come; until it does it is not asked again. Invariant: before an answer's first byte nothing is broken off; a long prefill is no fault.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Bounds of silence; see `config::Limits`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilenceLimits {
    /// Broken off after so long without a byte.
    pub idle: Option<Duration>,
    /// A comment is due after so long without a byte or a comment.
    pub comment: Option<Duration>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Comment,
    End,
}

/// The silence of one answer.
#[derive(Debug)]
pub(super) struct Silence {
    limits: SilenceLimits,
    /// Since when nothing came; `None` while something does.
    since: Option<Instant>,
    commented: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Whom the timer wakes, and whether it was set for the end too.
    set: Option<(Waker, bool)>,
}

impl Silence {
    pub(super) const fn new(limits: SilenceLimits) -> Self {
        Self { limits, since: None, commented: None, timer: None, set: None }
    }

    /// Something came.
    pub(super) const fn broken(&mut self) {
        self.since = None;
    }

    /// Nothing is there now. `may_end`: the answer's first byte came.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, may_end: bool) -> Poll<Due> {
        let limits = self.limits;
        if limits.idle.is_none() && limits.comment.is_none() {
            return Poll::Pending;
        }
        let since = *self.since.get_or_insert_with(|| {
            self.commented = None;
            Instant::now()
        });
        if self.is_set(cx, may_end) {
            return Poll::Pending;
        }
        self.set = None;
        loop {
            let end = limits.idle.filter(|_| may_end).map(|after| since + after);
            let comment = limits.comment.map(|after| self.commented.unwrap_or(since) + after);
            let Some(next) = end.into_iter().chain(comment).min() else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(next)));
            // Set for an earlier silence it fires early, and is set anew.
            if timer.deadline() > next {
                timer.as_mut().reset(next);
            }
            if timer.as_mut().poll(cx).is_pending() {
                self.set = Some((cx.waker().clone(), may_end));
                return Poll::Pending;
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Poll::Ready(Due::End);
            }
            if comment.is_some_and(|comment| now >= comment) {
                self.commented = Some(now);
                return Poll::Ready(Due::Comment);
            }
            timer.as_mut().reset(next);
        }
    }

    /// Whether the timer still runs, and no later than it is to fire: silences only begin later.
    fn is_set(&self, cx: &Context<'_>, may_end: bool) -> bool {
        let (Some(timer), Some((waker, for_end))) = (&self.timer, &self.set) else { return false };
        *for_end == may_end && !timer.is_elapsed() && waker.will_wake(cx.waker())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Due, Silence, SilenceLimits};

    const SECOND: Duration = Duration::from_secs(1);

    async fn due(silence: &mut Silence, may_end: bool) -> Due {
        poll_fn(|cx| silence.poll(cx, may_end)).await
    }

    #[tokio::test(start_paused = true)]
    async fn comments_are_due_again_and_again_and_the_end_once() {
        let limits = SilenceLimits { idle: Some(10 * SECOND), comment: Some(4 * SECOND) };
        let mut silence = Silence::new(limits);
        let start = Instant::now();
        for (due_now, after) in [(Due::Comment, 4), (Due::Comment, 8), (Due::End, 10)] {
            assert_eq!(due(&mut silence, true).await, due_now);
            assert_eq!(start.elapsed().as_secs(), after);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_begins_the_silence_anew() {
        let mut silence = Silence::new(SilenceLimits { idle: Some(10 * SECOND), comment: None });
        for _ in 0..3 {
            let wait = tokio::time::timeout(9 * SECOND, due(&mut silence, true));
            assert!(wait.await.is_err(), "9 s are not 10");
            silence.broken();
        }
        let start = Instant::now();
        assert_eq!(due(&mut silence, true).await, Due::End);
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn before_the_first_byte_nothing_ends() {
        let mut silence = Silence::new(SilenceLimits { idle: Some(SECOND), comment: None });
        let wait = tokio::time::timeout(600 * SECOND, due(&mut silence, false));
        assert!(wait.await.is_err());
    }
}
