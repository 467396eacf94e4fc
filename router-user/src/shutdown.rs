//! The end of a router: who is told, and by which signals.
//!
//! Three steps: leaving (still serving, while those who balance before this router learn that it goes), draining (nothing
//! new is accepted, what is in flight goes on) and stopping (what is left is cut).
//! Invariant: a step is never taken back, and a [`Switch`] that is dropped means stopping.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Poll, Waker};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How far the end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// All is served.
    #[default]
    Serving,
    /// The router says that it is not ready; connections end after their request, new ones after their first.
    Leaving,
    /// Nothing new is accepted.
    Draining,
    /// What is left is cut.
    Stopping,
}

/// Announces the steps.
#[derive(Debug)]
pub struct Switch(watch::Sender<Phase>);

impl Default for Switch {
    fn default() -> Self {
        Self(watch::Sender::new(Phase::default()))
    }
}

impl Switch {
    /// Who wants to be told.
    #[must_use]
    pub fn listen(&self) -> Ending {
        Ending(self.0.subscribe())
    }

    /// Takes a step; an earlier one than the present is ignored.
    pub fn go(&self, to: Phase) {
        self.0.send_if_modified(|phase| {
            let is_further = *phase < to;
            *phase = (*phase).max(to);
            is_further
        });
    }
}

/// Hears of the steps.
#[derive(Clone, Debug)]
pub struct Ending(watch::Receiver<Phase>);

impl Ending {
    /// Waits until at least this step. Dropping the future changes nothing.
    pub async fn reached(&mut self, phase: Phase) {
        // An error means that the switch is gone: the last step.
        let _gone = self.0.wait_for(|now| *now >= phase).await;
    }

    /// Drives `work` to its end; when this step is reached, `then` is told of it once. Where nothing was announced that
    /// is looked at by one comparison a wake-up, since the work of a connection is woken for every token.
    pub async fn tell<F: Future>(
        mut self,
        phase: Phase,
        mut work: Pin<&mut F>,
        then: impl FnOnce(Pin<&mut F>),
    ) -> F::Output {
        let known = self.clone();
        let mut reached = pin!(self.reached(phase));
        let mut then = Some(then);
        // Who is woken when it is reached.
        let mut registered: Option<Waker> = None;
        poll_fn(|cx| {
            let ended = work.as_mut().poll(cx);
            let is_registered = registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            if ended.is_ready() || then.is_none() || (is_registered && !known.is_outdated()) {
                return ended;
            }
            if reached.as_mut().poll(cx).is_pending() {
                registered = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if let Some(then) = then.take() {
                then(work.as_mut());
            }
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Whether anything was announced since this was made or cloned.
    fn is_outdated(&self) -> bool {
        !matches!(self.0.has_changed(), Ok(false))
    }

    /// The step now.
    #[must_use]
    pub fn phase(&self) -> Phase {
        if self.0.has_changed().is_err() { Phase::Stopping } else { *self.0.borrow() }
    }
}

/// SIGTERM and SIGINT, from the moment this is made.
#[derive(Debug)]
pub struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Takes over both signals.
    ///
    /// # Errors
    /// The handler cannot be installed.
    pub fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of them.
    pub async fn next(&mut self) {
        // Their order does not matter: both mean the same.
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// SIGHUP, which asks for the configuration to be read again, from the moment this is made.
#[derive(Debug)]
pub struct Reloads(tokio::signal::unix::Signal);

impl Reloads {
    /// Takes the signal over.
    ///
    /// # Errors
    /// The handler cannot be installed.
    pub fn new() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next; several that came before are one. Dropping the future loses none.
    pub async fn next(&mut self) {
        let _closed = self.0.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Poll;
    use std::time::Duration;

    use super::{Phase, Switch};

    const WITHIN: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn steps_are_never_taken_back() {
        let switch = Switch::default();
        let mut ending = switch.listen();
        switch.go(Phase::Stopping);
        switch.go(Phase::Draining);
        assert_eq!(ending.phase(), Phase::Stopping);
        ending.reached(Phase::Draining).await;
    }

    #[tokio::test]
    async fn a_dropped_switch_means_stopping() {
        let mut ending = Switch::default().listen();
        ending.reached(Phase::Stopping).await;
        assert_eq!(ending.phase(), Phase::Stopping);
    }

    /// Work that is woken again and again, and ends when it was told to.
    #[tokio::test]
    async fn work_is_told_once_whenever_the_step_comes() {
        for wakes_before in [0, 1, 5] {
            let (switch, told, mut polls) = (Switch::default(), AtomicU32::new(0), 0);
            if wakes_before == 0 {
                switch.go(Phase::Draining);
            }
            let work = poll_fn(|cx| {
                polls += 1;
                if polls == wakes_before {
                    switch.go(Phase::Draining);
                } else if polls < wakes_before {
                    cx.waker().wake_by_ref();
                }
                if told.load(Ordering::Relaxed) > 0 { Poll::Ready(()) } else { Poll::Pending }
            });
            let tell = |_: Pin<&mut _>| _ = told.fetch_add(1, Ordering::Relaxed);
            let work = pin!(work);
            let listening = switch.listen();
            let ended = tokio::time::timeout(WITHIN, listening.tell(Phase::Draining, work, tell)).await;
            assert!(ended.is_ok(), "{wakes_before}: it was not told");
            assert_eq!(told.into_inner(), 1, "{wakes_before}");
        }
    }

    #[tokio::test]
    async fn work_that_waits_is_woken_to_be_told() {
        let switch = Switch::default();
        let told = AtomicU32::new(0);
        let work =
            pin!(poll_fn(|_| if told.load(Ordering::Relaxed) > 0 { Poll::Ready(()) } else { Poll::Pending }));
        let tell = |_: Pin<&mut _>| _ = told.fetch_add(1, Ordering::Relaxed);
        let later = async {
            tokio::task::yield_now().await;
            switch.go(Phase::Stopping);
        };
        let ended = async { tokio::join!(switch.listen().tell(Phase::Draining, work, tell), later) };
        assert!(tokio::time::timeout(WITHIN, ended).await.is_ok(), "it was not told");
    }
}
