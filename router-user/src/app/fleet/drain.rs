//! Draining: nothing new goes to a backend, and what is there ends.
//!
//! It is done when the router has nothing in flight there and the kernel sees no request there that is not another
//! process's. One that is to leave is then taken out of everything, its row last: that has to wait until no connection
//! of the pool is open any more. At its deadline what is left is cut, visibly for the clients.

use std::time::{Duration, Instant};

use router_policy::BackendId;

use super::entry::Entry;
use super::{Fleet, State};
use crate::backends::Target;

/// How often it is looked whether a drain is done.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Those that join have this long to become ready before the others leave.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// Workers look every 200 ms whom to cut, and clients must be told.
const CUT_TIME: Duration = Duration::from_secs(2);

/// How a backend stands in the fleet.
pub(super) enum Standing {
    Serving,
    /// It drains once those that joined in its place are ready, at the latest then.
    Leaving(Instant),
    Draining(Draining),
    /// It left; only its row waits for connections to close.
    Gone,
}

/// A drain.
#[derive(Clone, Copy, Debug)]
pub(in crate::app) struct Draining {
    /// Since when.
    pub(in crate::app) since: Instant,
    /// When what is left is cut; `None` = never.
    pub(in crate::app) until: Option<Instant>,
    /// What follows.
    pub(in crate::app) then: Then,
    /// Nothing is in flight there.
    pub(in crate::app) is_done: bool,
}

/// What follows a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::app) enum Then {
    /// An operator asked for it: it stays as it is until an operator takes that back.
    Stay,
    /// No source names it any more.
    Leave,
}

/// Why an operator's wish cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such backend.
    #[error("no such backend")]
    NoBackend,
    /// It does not drain on an operator's word.
    #[error("it does not drain")]
    NotDraining,
    /// It is leaving already.
    #[error("it is leaving already")]
    Leaving,
    /// Another source names it.
    #[error("{0} names it: take it out there, or drain it")]
    NamedBy(String),
}

impl Fleet {
    /// Nothing new goes to a backend from now on; what is there has until `deadline`, or until it ends.
    ///
    /// # Errors
    /// [`Refused`]: there is none, or it is leaving.
    pub fn drain(&self, id: BackendId, deadline: Option<Duration>) -> Result<(), Refused> {
        let mut state = self.state.lock();
        let entry = find(&mut state, id)?;
        if entry.is_leaving() {
            return Err(Refused::Leaving);
        }
        tracing::info!(backend = entry.target.url, "draining");
        self.begin(entry, Then::Stay, deadline);
        Ok(())
    }

    /// Takes an operator's drain back.
    ///
    /// # Errors
    /// [`Refused`]: there is none, or it does not drain on an operator's word.
    pub fn undrain(&self, id: BackendId) -> Result<(), Refused> {
        let mut state = self.state.lock();
        let entry = find(&mut state, id)?;
        if !matches!(entry.standing, Standing::Draining(Draining { then: Then::Stay, .. })) {
            return Err(Refused::NotDraining);
        }
        tracing::info!(backend = entry.target.url, "draining no more");
        self.serve_on(entry);
        Ok(())
    }

    /// What is in flight at a backend that drains has so long from now on.
    pub(super) fn set_deadline(&self, id: BackendId, deadline: Duration) {
        let mut state = self.state.lock();
        if let Ok(Entry { standing: Standing::Draining(draining), .. }) = find(&mut state, id) {
            draining.until = Some(Instant::now() + deadline);
        }
    }

    /// It drains no more.
    pub(super) fn serve_on(&self, entry: &mut Entry) {
        entry.standing = Standing::Serving;
        entry.target.set_cut(false);
        self.parts.ledger.draining(entry.id, false);
    }

    /// It drains, and then follows `then`.
    pub(super) fn begin(&self, entry: &mut Entry, then: Then, deadline: Option<Duration>) {
        let now = Instant::now();
        let since = entry.draining().map_or(now, |before| before.since);
        let until = deadline.map(|deadline| now + deadline);
        self.parts.ledger.draining(entry.id, true);
        entry.standing = Standing::Draining(Draining { since, until, then, is_done: false });
        self.drains.notify_one();
    }

    /// Ends drains for ever. Dropping the future leaves them as they are.
    pub(in crate::app) async fn look_after_drains(&self) {
        loop {
            self.drains.notified().await;
            while self.look() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Whether anything still has to be waited for.
    fn look(&self) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        self.leave_if_settled(&mut state, now);
        let mut has_left = false;
        for entry in &mut state.entries {
            let Standing::Draining(draining) = &mut entry.standing else { continue };
            draining.is_done = self.is_empty(entry.id);
            let is_over = draining.until.is_some_and(|until| now >= until);
            if is_over && !draining.is_done && !entry.target.is_cut() {
                cut(&entry.target);
            }
            let is_late = draining.until.is_some_and(|until| now >= until + CUT_TIME);
            if draining.then == Then::Leave && (draining.is_done || is_late) {
                self.part(entry);
                has_left = true;
            }
        }
        if has_left {
            self.tell(&state);
        }
        state.entries.retain(|entry| !(entry.is_gone() && self.is_row_free(entry)));
        state.entries.iter().any(|entry| match &entry.standing {
            Standing::Serving => false,
            Standing::Draining(draining) => !draining.is_done,
            Standing::Leaving(_) | Standing::Gone => true,
        })
    }

    /// No source names it any more, but who joined in its place is not ready yet.
    pub(super) fn begin_soon(&self, entry: &mut Entry) {
        entry.standing = Standing::Leaving(Instant::now() + SETTLE_TIME);
        self.drains.notify_one();
    }

    /// Whether all who are to serve are ready.
    pub(super) fn are_settled(&self, entries: &[Entry]) -> bool {
        let is_ready =
            |entry: &Entry| self.parts.ledger.readiness(entry.id).is_some_and(|(is_ready, _)| is_ready);
        entries.iter().filter(|e| matches!(e.standing, Standing::Serving)).all(is_ready)
    }

    fn leave_if_settled(&self, state: &mut State, now: Instant) {
        if !state.entries.iter().any(|entry| matches!(entry.standing, Standing::Leaving(_))) {
            return;
        }
        let (are_settled, deadline) = (self.are_settled(&state.entries), state.drain_deadline);
        for entry in &mut state.entries {
            if matches!(entry.standing, Standing::Leaving(until) if are_settled || now >= until) {
                self.begin(entry, Then::Leave, Some(deadline));
            }
        }
    }

    /// Whether nothing of ours is in flight there, by our count and by the kernel's.
    fn is_empty(&self, id: BackendId) -> bool {
        let Some((_, own)) = self.parts.ledger.readiness(id) else { return true };
        let seen = self.parts.account.kernel_row(id).filter(|row| row.has_phases);
        let in_kernel = seen.map_or(0, |row| row.load.awaiting + row.load.streaming);
        let others = self.parts.account.in_flight(id).saturating_sub(own);
        own == 0 && in_kernel <= u64::from(others)
    }

    fn part(&self, entry: &mut Entry) {
        entry.standing = Standing::Gone;
        entry.watch = None;
        self.parts.ledger.remove_backend(entry.id);
        self.parts.metrics.remove(entry.id);
        self.parts.account.unregister(entry.id);
        tracing::info!(backend = entry.target.url, "a backend left the fleet");
    }

    /// Gives the row up, unless other processes use it: then it is theirs to give up.
    fn is_row_free(&self, entry: &Entry) -> bool {
        match self.parts.account.forget(entry.id) {
            Ok(is_free) => is_free || self.parts.account.is_used(entry.id),
            Err(error) => {
                tracing::warn!(backend = entry.target.url, %error, "the row of a backend cannot be given up");
                true
            }
        }
    }
}

fn find(state: &mut State, id: BackendId) -> Result<&mut Entry, Refused> {
    state.entries.iter_mut().find(|e| e.id == id && !e.is_gone()).ok_or(Refused::NoBackend)
}

/// What is in flight there ends now.
fn cut(target: &Target) {
    tracing::warn!(backend = target.url, "the deadline of a drain cuts what is in flight there");
    target.set_cut(true);
}
