//! What feeds the façade: the set of backends, their readiness, their models, their reports.

use router_common::BackendId;

use super::Placement;
use super::entry::Entry;
use super::standing::Standing;
use crate::backend::{BackendSpec, Models, Report};
use crate::load::InFlight;
use crate::load::arrivals::Arrivals;
use crate::signal::Signal;
use crate::time::Nanos;
use crate::trust::Trust;

impl Placement {
    /// Rows with a backend, in the order they came.
    #[must_use]
    pub fn backends(&self) -> &[BackendId] {
        &self.order
    }

    /// Adds a backend at row `id`, or changes its configuration. A new one is not ready until told so.
    pub fn set_backend(&mut self, id: BackendId, spec: BackendSpec) {
        self.pools.forget();
        if let Some(entry) = self.entry_mut(id) {
            entry.spec = spec;
            self.changed(id);
            return;
        }
        if self.entries.len() <= id.index() {
            self.entries.resize_with(id.index() + 1, || None);
            self.standings.resize(id.index() + 1, Standing::VACANT);
        }
        let arrivals = Arrivals::new(self.config.request_stats_window);
        let entry = Entry::new(spec, self.next_generation, arrivals, &self.config.tuning);
        self.entries[id.index()] = Some(entry);
        self.next_generation += 1;
        self.order.push(id);
        self.changed(id);
    }

    /// Removes a backend and what the index holds of it. Tickets still out end without effect.
    pub fn remove_backend(&mut self, id: BackendId) {
        if self.entries.get_mut(id.index()).and_then(Option::take).is_some() {
            self.standings[id.index()] = Standing::VACANT;
            self.pools.forget();
            self.order.retain(|&o| o != id);
            self.trie.clear(id);
            self.table.publish(id, InFlight::default());
        }
    }

    /// Whether requests may go there.
    pub fn set_ready(&mut self, id: BackendId, ready: bool) {
        if let Some(entry) = self.entry_mut(id) {
            entry.is_ready = ready;
            self.changed(id);
        }
    }

    /// Whether it is to get nothing new while what is there goes on.
    pub fn set_draining(&mut self, id: BackendId, draining: bool) {
        if let Some(entry) = self.entry_mut(id) {
            entry.is_draining = draining;
            self.changed(id);
        }
    }

    /// How far it is trusted with requests; full trust at first.
    pub fn set_trust(&mut self, id: BackendId, trust: Trust) {
        let next_ticket = self.next_ticket;
        let Some(entry) = self.entry_mut(id) else { return };
        if !matches!(entry.trust, Trust::Trial(_)) {
            entry.trial_from = next_ticket;
        }
        entry.trust = trust;
        self.changed(id);
    }

    /// What models it serves.
    pub fn set_models(&mut self, id: BackendId, models: Models) {
        let Some(entry) = self.entry_mut(id) else { return };
        let are_same = match (&entry.models, &models) {
            (Models::Unknown, Models::Unknown) => true,
            (Models::Listed(a, _), Models::Listed(b, _)) => a == b,
            _ => false,
        };
        entry.models = models;
        if !are_same {
            self.pools.forget();
        }
    }

    /// To be called when a scrape is sent, so that the report is compared with what was in flight since.
    pub fn report_begins(&mut self, now: Nanos, id: BackendId) {
        if let Some(entry) = self.entry_mut(id) {
            entry.load.report_begins(now);
        }
    }

    /// What a scrape said. Returns it as it is kept: what cannot be true is unknown.
    pub fn report(&mut self, now: Nanos, id: BackendId, report: Report) -> Report {
        let others = self.table.others(id).requests;
        let Some(entry) = self.entry_mut(id) else { return report };
        let report = entry.credible.judge(now, report, entry.load.had());
        let ours = entry.load.report_ends().saturating_add(others);
        let total = match (report.running, report.waiting) {
            (Signal::Known { value: running, at }, Signal::Known { value: waiting, .. }) => {
                Signal::known(running.saturating_add(waiting), at)
            }
            (Signal::Unknown(why), _) | (_, Signal::Unknown(why)) => Signal::Unknown(why),
        };
        entry.foreign.on_report(now, total, ours);
        let decoding = entry.load.decoding();
        entry.load.seats.on_report(now, report.running, report.waiting, decoding);
        // A pool does not shrink because one question failed: what was told last stays, at its age.
        let kv_tokens = match report.kv_tokens {
            Signal::Unknown(_) => entry.report.kv_tokens,
            told @ Signal::Known { .. } => told,
        };
        entry.report = Report { kv_tokens, ..report.clone() };
        self.changed(id);
        report
    }

    /// Forgets what the backend is believed to hold (it restarted).
    pub fn clear_cache(&mut self, id: BackendId) {
        while !self.clear_cache_some(id) {}
    }

    /// A part of that, which takes a fraction of a millisecond; false if it is to be called again.
    pub fn clear_cache_some(&mut self, id: BackendId) -> bool {
        const MARKS: usize = 1024;
        if let Some(entry) = self.entry_mut(id) {
            // Another process may be there, with another pool.
            entry.report.kv_tokens = Signal::default();
            self.changed(id);
        }
        self.trie.clear_some(id, MARKS)
    }
}
