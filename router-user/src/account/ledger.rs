//! The one owner of the policy in a process: all workers pick and count here, under one lock.
//!
//! Pick and count are one step, so two requests never see the same count. Also owns readiness: a backend is ready
//! when it answers (told by its watch) and is not backed off (told by the proxy); a back-off ends by itself at the
//! first pick after it. Does no IO and starts no task. Invariant: the lock is held for one call of the policy, never
//! across an await.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use router_policy::{
    BackendId, BackendSnapshot, BackendSpec, Cost, Decision, Models, Nanos, Outcome, PickError, Placement,
    Reason, Report, RequestShape, Ticket,
};

use super::guard::InFlightGuard;
use crate::clock;

/// One placement: where and why. Its count is in the guard beside it.
#[derive(Clone, Copy, Debug)]
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
}

/// The policy and its counts, shared by all threads.
pub struct Ledger {
    inner: Mutex<Inner>,
}

struct Inner {
    placement: Placement,
    rows: Vec<Option<Row>>,
    /// The earliest end of a back-off; `None` = nobody is backed off.
    next_return: Option<Nanos>,
}

/// What readiness and names are made of.
struct Row {
    spec: BackendSpec,
    listed: Vec<String>,
    is_answering: bool,
    backed_off_until: Option<Nanos>,
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
        Arc::new(Self { inner: Mutex::new(Inner { placement, rows: Vec::new(), next_return: None }) })
    }

    /// Adds a backend, or changes its configuration. A new one is not ready until it is said to answer.
    pub fn set_backend(&self, id: BackendId, spec: BackendSpec) {
        let mut inner = self.inner.lock();
        inner.placement.set_backend(id, spec.clone());
        if inner.rows.len() <= id.index() {
            inner.rows.resize_with(id.index() + 1, || None);
        }
        match &mut inner.rows[id.index()] {
            Some(row) => row.spec = spec,
            empty => {
                *empty = Some(Row { spec, listed: Vec::new(), is_answering: false, backed_off_until: None });
            }
        }
    }

    /// Removes a backend. Requests there end without effect on a later backend at the same row.
    pub fn remove_backend(&self, id: BackendId) {
        let mut inner = self.inner.lock();
        inner.placement.remove_backend(id);
        if let Some(row) = inner.rows.get_mut(id.index()) {
            *row = None;
        }
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
            let mut inner = self.inner.lock();
            let now = clock::now();
            inner.end_back_offs(now);
            inner.placement.pick(now, shape, tried)?
        };
        Ok(self.placed(decision))
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
            let mut inner = self.inner.lock();
            let now = clock::now();
            inner.placement.pick_forced(now, shape, id)?
        };
        Ok(self.placed(decision))
    }

    fn placed(self: &Arc<Self>, decision: Decision) -> (Placed, InFlightGuard) {
        let Decision { ticket, reason, matched_tokens, prompt_tokens, cost, candidates } = decision;
        let placed =
            Placed { backend: ticket.backend(), reason, matched_tokens, prompt_tokens, cost, candidates };
        (placed, InFlightGuard::new(Arc::clone(self), ticket))
    }

    pub(super) fn first_byte(&self, now: Nanos, ticket: &mut Ticket) {
        self.inner.lock().placement.on_first_byte(now, ticket);
    }

    pub(super) fn finished(&self, now: Nanos, ticket: Ticket, outcome: Outcome) {
        self.inner.lock().placement.on_finished(now, ticket, outcome);
    }

    /// Connections there fail: no requests until `until`. It then takes part again by itself.
    pub fn back_off(&self, id: BackendId, until: Nanos) {
        let mut inner = self.inner.lock();
        if let Some(row) = inner.row(id) {
            row.backed_off_until = Some(until);
            inner.next_return = Some(inner.next_return.map_or(until, |next| next.min(until)));
            inner.settle(id);
        }
    }

    /// A connection there came about: no back-off any more.
    pub fn reached(&self, id: BackendId) {
        let mut inner = self.inner.lock();
        if let Some(row) = inner.row(id)
            && row.backed_off_until.take().is_some()
        {
            inner.settle(id);
        }
    }

    /// Whether the backend answers.
    pub fn ready(&self, id: BackendId, is_answering: bool) {
        let mut inner = self.inner.lock();
        if let Some(row) = inner.row(id) {
            row.is_answering = is_answering;
            inner.settle(id);
        }
    }

    /// What models it serves.
    pub fn models(&self, id: BackendId, models: Models) {
        let mut inner = self.inner.lock();
        if let Some(row) = inner.row(id) {
            row.listed = match &models {
                Models::Listed(names, _) => names.clone(),
                Models::Unknown => Vec::new(),
            };
            inner.placement.set_models(id, models);
        }
    }

    /// A scrape is being sent there.
    pub fn report_begins(&self, id: BackendId) {
        self.inner.lock().placement.report_begins(id);
    }

    /// What a scrape said.
    pub fn report(&self, id: BackendId, report: Report) {
        let mut inner = self.inner.lock();
        let now = clock::now();
        inner.placement.report(now, id, report);
    }

    /// The backend restarted: what it cached is gone.
    pub fn cache_lost(&self, id: BackendId) {
        self.inner.lock().placement.clear_cache(id);
    }

    /// Rows with a backend, in order.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendId> {
        self.inner.lock().placement.backends().to_vec()
    }

    /// What is held of a backend.
    #[must_use]
    pub fn snapshot(&self, id: BackendId) -> Option<BackendSnapshot> {
        let mut inner = self.inner.lock();
        let now = clock::now();
        inner.end_back_offs(now);
        inner.placement.snapshot(now, id)
    }

    /// Whether any backend is ready.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.end_back_offs(clock::now());
        inner.rows.iter().flatten().any(Row::is_ready)
    }

    /// Names under which clients may ask: configured models and aliases, else what the engines list. Sorted.
    #[must_use]
    pub fn model_names(&self) -> BTreeSet<String> {
        let inner = self.inner.lock();
        let mut names = BTreeSet::new();
        for row in inner.rows.iter().flatten() {
            match &row.spec.model {
                Some(model) => names.extend([model.clone()]),
                None => names.extend(row.listed.iter().cloned()),
            }
            names.extend(row.spec.aliases.iter().cloned());
        }
        names
    }
}

impl Inner {
    fn row(&mut self, id: BackendId) -> Option<&mut Row> {
        self.rows.get_mut(id.index())?.as_mut()
    }

    /// Tells the policy what the row's state amounts to.
    fn settle(&mut self, id: BackendId) {
        if let Some(is_ready) = self.row(id).map(|row| row.is_ready()) {
            self.placement.set_ready(id, is_ready);
        }
    }

    /// Ends the back-offs that are over. One comparison when there is none.
    fn end_back_offs(&mut self, now: Nanos) {
        if self.next_return.is_none_or(|next| now < next) {
            return;
        }
        self.next_return = None;
        for index in 0..self.rows.len() {
            let Some(row) = &mut self.rows[index] else { continue };
            match row.backed_off_until {
                Some(until) if now >= until => {
                    row.backed_off_until = None;
                    let is_ready = row.is_ready();
                    let id = BackendId::new(index).expect("invariant: rows are indexed by BackendId");
                    self.placement.set_ready(id, is_ready);
                }
                Some(until) => {
                    self.next_return = Some(self.next_return.map_or(until, |next| next.min(until)))
                }
                None => {}
            }
        }
    }
}

impl Row {
    const fn is_ready(&self) -> bool {
        self.is_answering && self.backed_off_until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::time::Duration;

    use router_policy::load::Alone;
    use router_policy::{
        BackendId, BackendSpec, Models, Nanos, Outcome, PickError, Placement, PolicyConfig, RequestShape,
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
            guard.first_byte(clock::now());
            guard.finish(clock::now(), outcome);
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
    fn a_backend_that_answers_is_ready_unless_backed_off() {
        let ledger = ledger(1);
        let far = Nanos(u64::MAX);
        ledger.back_off(id(0), far);
        assert_eq!(pick(&ledger), Err(PickError::NoneReady));
        ledger.ready(id(0), true);
        assert_eq!(pick(&ledger), Err(PickError::NoneReady), "answering does not end a back-off");
        ledger.reached(id(0));
        assert_eq!(pick(&ledger), Ok(id(0)), "a connection does");
        ledger.ready(id(0), false);
        ledger.reached(id(0));
        assert_eq!(pick(&ledger), Err(PickError::NoneReady), "a connection is no answer");
    }

    #[test]
    fn back_offs_end_by_themselves_each_at_its_time() {
        let ledger = ledger(2);
        ledger.back_off(id(0), clock::now() + Duration::from_millis(5));
        ledger.back_off(id(1), Nanos(u64::MAX));
        std::thread::sleep(Duration::from_millis(6));
        assert_eq!(pick(&ledger), Ok(id(0)));
        assert!(!ledger.snapshot(id(1)).unwrap().ready);
        assert!(ledger.any_ready());
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
