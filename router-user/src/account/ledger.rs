//! The one owner of the policy in a process: all workers pick and count here, under one lock.
//!
//! Pick and count are one step, so two requests never see the same count. Readiness is told: the proxy says that a
//! connection failed, and from then on the engine's watch alone says when it is back. Does no IO and starts no task.
//! Invariant: the lock is held for one call of the policy, never across an await.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use router_policy::prefix::{BlockHash, Copying, Held, TrieCounters};
use router_policy::{
    BackendId, BackendSnapshot, BackendSpec, Cost, Decision, Models, Nanos, Outcome, PickError, Placement,
    PolicyConfig, PolicyName, Reason, Record, Report, RequestShape, Taught, Ticket, Trust, Usage, Wait,
};

use super::guard::InFlightGuard;
use crate::clock;

/// One placement: where and why. Its count is in the guard beside it.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Where.
    pub backend: BackendId,
    /// Why.
    pub reason: Reason,
    /// Prompt tokens the index believes cached there.
    pub matched_tokens: u64,
    /// Prompt tokens, estimated.
    pub prompt_tokens: u64,
    /// The cost there.
    pub cost: Cost,
    /// How many backends were compared.
    pub candidates: usize,
    /// Whether another process chose the same backend at the same moment, and this is the second choice.
    pub moved: bool,
    /// Everything it was made from, when records are kept.
    pub record: Option<Box<Record>>,
}

/// Takes what was placed: where, when, and the prompt's blocks. Must never wait.
pub type Tell = dyn Fn(BackendId, Nanos, &[BlockHash]) + Send + Sync;

/// The policy and its counts, shared by all threads.
pub struct Ledger {
    placement: Mutex<Placement>,
    tell: OnceLock<Box<Tell>>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Ledger {
    /// Owns a policy that has no backends yet.
    #[must_use]
    pub fn new(placement: Placement) -> Arc<Self> {
        Arc::new(Self { placement: Mutex::new(placement), tell: OnceLock::new() })
    }

    /// From now on `tell` is called with every placement of a prompt, outside of the lock. Only the first call counts.
    pub fn tell_placements(&self, tell: Box<Tell>) {
        let _second = self.tell.set(tell);
    }

    /// Another process placed a prompt with these blocks there. Holds the lock for one insertion.
    pub fn heard(&self, id: BackendId, blocks: &[BlockHash]) {
        self.placement.lock().observe_foreign(id, blocks);
    }

    /// Adds a backend, or changes its configuration. A new one is not ready until it is said to be.
    pub fn set_backend(&self, id: BackendId, spec: BackendSpec) {
        self.placement.lock().set_backend(id, spec);
    }

    /// Another policy or other constants; see [`Placement::reconfigure`].
    pub fn reconfigure(&self, config: PolicyConfig) {
        self.placement.lock().reconfigure(config);
    }

    /// How backends are chosen now.
    #[must_use]
    pub fn policy(&self) -> PolicyName {
        self.placement.lock().config().policy
    }

    /// Removes a backend. Requests there end without effect on a later backend at the same row.
    pub fn remove_backend(&self, id: BackendId) {
        self.cache_lost(id);
        self.placement.lock().remove_backend(id);
    }

    /// Chooses a backend and counts the request there, in one step. `tried` are not candidates.
    ///
    /// # Errors
    /// [`PickError`] when no candidate is left; nothing is then counted or inserted anywhere.
    pub fn pick(
        self: &Arc<Self>,
        shape: &RequestShape,
        tried: &[BackendId],
    ) -> Result<(Placed, InFlightGuard), PickError> {
        // The clock is read under the lock, so that the policy's time never goes back.
        let decision = {
            let mut placement = self.placement.lock();
            let now = clock::now();
            placement.pick(now, shape, tried)?
        };
        Ok(self.placed(decision, shape))
    }

    /// Counts a request where the caller says (warm-ups).
    ///
    /// # Errors
    /// [`PickError::NoBackend`] if there is no such backend.
    pub fn pick_forced(
        self: &Arc<Self>,
        shape: &RequestShape,
        id: BackendId,
    ) -> Result<(Placed, InFlightGuard), PickError> {
        let decision = {
            let mut placement = self.placement.lock();
            let now = clock::now();
            placement.pick_forced(now, shape, id)?
        };
        Ok(self.placed(decision, shape))
    }

    fn placed(self: &Arc<Self>, decision: Decision, shape: &RequestShape) -> (Placed, InFlightGuard) {
        let Decision { ticket, reason, matched_tokens, prompt_tokens, cost, candidates, moved, record } =
            decision;
        if let (Some(tell), true) = (self.tell.get(), shape.shaped) {
            tell(ticket.backend(), ticket.sent(), &shape.chain.blocks);
        }
        let placed = Placed {
            backend: ticket.backend(),
            reason,
            matched_tokens,
            prompt_tokens,
            cost,
            candidates,
            moved,
            record,
        };
        (placed, InFlightGuard::new(Arc::clone(self), ticket))
    }

    pub(super) fn first_byte(&self, ticket: &mut Ticket) {
        let mut placement = self.placement.lock();
        let now = clock::now();
        placement.on_first_byte(now, ticket);
    }

    pub(super) fn finished(&self, ticket: Ticket, outcome: Outcome, usage: &Usage) {
        let mut placement = self.placement.lock();
        let now = clock::now();
        placement.on_finished(now, ticket, outcome, usage);
    }

    /// Whether requests may go there.
    pub fn ready(&self, id: BackendId, is_ready: bool) {
        self.placement.lock().set_ready(id, is_ready);
    }

    /// Whether it is to get nothing new while what is there goes on.
    pub fn draining(&self, id: BackendId, is_draining: bool) {
        self.placement.lock().set_draining(id, is_draining);
    }

    /// How far it is trusted.
    pub fn trust(&self, id: BackendId, trust: Trust) {
        self.placement.lock().set_trust(id, trust);
    }

    /// The oldest request without a byte of each of these, sent at the time beside it or later and before `until`.
    #[must_use]
    pub fn waits(&self, asked: &[(BackendId, Nanos)], until: Nanos) -> Vec<Option<Wait>> {
        let placement = self.placement.lock();
        asked.iter().map(|&(id, from)| placement.wait(id, from, until)).collect()
    }

    pub(super) fn expected_seconds(&self, ticket: &Ticket) -> f64 {
        self.placement.lock().expected_seconds(ticket.backend(), ticket.stream())
    }

    /// What models it serves.
    pub fn models(&self, id: BackendId, models: Models) {
        self.placement.lock().set_models(id, models);
    }

    /// A scrape is being sent there.
    pub fn report_begins(&self, id: BackendId) {
        let mut placement = self.placement.lock();
        let now = clock::now();
        placement.report_begins(now, id);
    }

    /// What a scrape said. Returns it as it is kept: what cannot be true is unknown.
    pub fn report(&self, id: BackendId, report: Report) -> Report {
        let mut placement = self.placement.lock();
        let now = clock::now();
        placement.report(now, id, report)
    }

    /// The backend restarted: what it cached is gone.
    pub fn cache_lost(&self, id: BackendId) {
        loop {
            let mut placement = self.placement.lock();
            let is_done = placement.clear_cache_some(id);
            // A large cache takes tens of milliseconds: picks go first.
            MutexGuard::unlock_fair(placement);
            if is_done {
                return;
            }
        }
    }

    /// Begins to copy what is held of a backend; an earlier copy of it is void.
    #[must_use]
    pub fn begin_copy(&self, id: BackendId) -> Copying {
        self.placement.lock().begin_copy(id)
    }

    /// Calls `see` with what comes next of a copy, at most `marks` times, under the lock; whether more is to come.
    /// `None`: the backend lost everything meanwhile, and what was seen is void.
    pub fn copy(
        &self,
        copying: &Copying,
        marks: usize,
        see: impl FnMut(Held<&mut dyn ExactSizeIterator<Item = BlockHash>>),
    ) -> Option<bool> {
        self.placement.lock().copy(copying, marks, see)
    }

    /// A prompt is cached there, and behind it so many blocks of its answer, as an earlier router knew.
    pub fn remember(&self, id: BackendId, blocks: &[BlockHash], answer_blocks: usize) {
        self.placement.lock().remember(id, blocks, answer_blocks);
    }

    /// What a backend has taught.
    #[must_use]
    pub fn taught(&self, id: BackendId) -> Option<Taught> {
        self.placement.lock().taught(id)
    }

    /// What a backend taught an earlier router.
    pub fn teach(&self, id: BackendId, taught: &Taught) {
        let mut placement = self.placement.lock();
        let now = clock::now();
        placement.teach(now, id, taught);
    }

    /// Rows with a backend, in order.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendId> {
        self.placement.lock().backends().to_vec()
    }

    /// Whether requests may go there, and this process's requests in flight there; `None` if there is none. O(1).
    #[must_use]
    pub fn readiness(&self, id: BackendId) -> Option<(bool, u32)> {
        self.placement.lock().readiness(id)
    }

    /// What is held of a backend.
    #[must_use]
    pub fn snapshot(&self, id: BackendId) -> Option<BackendSnapshot> {
        let placement = self.placement.lock();
        placement.snapshot(clock::now(), id)
    }

    /// Blocks, bytes and counters of the prefix index.
    pub fn index_status<T>(&self, make: impl FnOnce(usize, usize, TrieCounters) -> T) -> T {
        let placement = self.placement.lock();
        let index = placement.index();
        make(index.len(), index.bytes(), index.counters())
    }

    /// Whether any backend is ready.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        let placement = self.placement.lock();
        let is_ready = |&id: &BackendId| placement.readiness(id).is_some_and(|(is_ready, _)| is_ready);
        placement.backends().iter().any(is_ready)
    }

    /// Names under which clients may ask: configured models and aliases, else what the engines list. Sorted.
    #[must_use]
    pub fn model_names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for snapshot in self.backends().into_iter().filter_map(|id| self.snapshot(id)) {
            names.extend(snapshot.model_names().into_iter().map(str::to_owned));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use router_policy::load::Alone;
    use router_policy::{
        BackendId, BackendSpec, Models, Outcome, PickError, Placement, PolicyConfig, RequestShape, Usage,
    };

    use super::Ledger;
    use crate::clock;

    fn id(row: usize) -> BackendId {
        BackendId::new(row).unwrap()
    }

    /// A ledger of so many backends, all answering.
    fn ledger(backends: usize) -> Arc<Ledger> {
        let ledger = Ledger::new(Placement::new(PolicyConfig::default(), Box::new(Alone), 1));
        for row in 0..backends {
            ledger.set_backend(id(row), BackendSpec::default());
            ledger.ready(id(row), true);
        }
        ledger
    }

    fn in_flight(ledger: &Ledger) -> u32 {
        ledger.backends().into_iter().map(|id| ledger.snapshot(id).unwrap().own.requests).sum()
    }

    fn pick(ledger: &Arc<Ledger>) -> Result<BackendId, PickError> {
        ledger.pick(&RequestShape::unshaped(), &[]).map(|(placed, _guard)| placed.backend)
    }

    #[test]
    fn each_outcome_gives_the_count_back_once() {
        let ledger = ledger(1);
        for outcome in [Outcome::Completed, Outcome::ClientGone, Outcome::UpstreamFailed, Outcome::NeverSent]
        {
            let (_, mut guard) = ledger.pick(&RequestShape::unshaped(), &[]).unwrap();
            assert_eq!(in_flight(&ledger), 1);
            guard.first_byte();
            guard.finish(outcome, &Usage::default());
            assert_eq!(in_flight(&ledger), 0, "{outcome:?}");
        }
    }

    #[test]
    fn a_dropped_guard_gives_the_count_back() {
        let ledger = ledger(1);
        let picked = ledger.pick(&RequestShape::unshaped(), &[]).unwrap();
        assert_eq!(in_flight(&ledger), 1);
        drop(picked);
        assert_eq!(in_flight(&ledger), 0);
    }

    #[test]
    fn a_panic_gives_the_count_back() {
        let ledger = ledger(1);
        let in_request = AssertUnwindSafe(|| {
            let _picked = ledger.pick(&RequestShape::unshaped(), &[]).unwrap();
            panic!("within a request");
        });
        assert!(catch_unwind(in_request).is_err());
        assert_eq!(in_flight(&ledger), 0);
    }

    #[test]
    fn what_is_not_ready_is_not_picked() {
        let ledger = ledger(1);
        assert!(ledger.any_ready());
        ledger.ready(id(0), false);
        assert_eq!(pick(&ledger), Err(PickError::NoneReady));
        assert!(!ledger.any_ready());
        ledger.ready(id(0), true);
        assert_eq!(pick(&ledger), Ok(id(0)));
    }

    #[test]
    fn names_are_what_is_configured_else_what_is_listed() {
        let ledger = ledger(2);
        let spec =
            BackendSpec { model: Some("m".into()), aliases: vec!["fast".into()], ..BackendSpec::default() };
        ledger.set_backend(id(0), spec);
        for row in [0, 1] {
            ledger.models(id(row), Models::Listed(vec![format!("listed-{row}")], clock::now()));
        }
        assert_eq!(ledger.model_names().into_iter().collect::<Vec<_>>(), ["fast", "listed-1", "m"]);
        ledger.remove_backend(id(1));
        assert_eq!(ledger.model_names().len(), 2);
    }
}
