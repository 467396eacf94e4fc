//! The end of a router: who is told, and by which signals.
//!
//! Two steps: draining (nothing new is accepted, what is in flight goes on) and stopping (what is left is cut).
//! Invariant: a step is never taken back, and a [`Switch`] that is dropped means stopping.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How far the end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// All is served.
    #[default]
    Serving,
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

#[cfg(test)]
mod tests {
    use super::{Phase, Switch};

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
}
