//! From entries to candidates: the filter, and what the pickers need of each backend it leaves.

use router_common::BackendId;

use super::Placement;
use super::entry::Entry;
use crate::config::OwnCounts;
use crate::cost::{Load, PoolMeans};
use crate::decision::PickError;
use crate::filter::{Gate, Verdict, judge, refusal, serves};
use crate::load::ewma::pool_mean;
use crate::pick::Candidate;
use crate::prefix::Matches;
use crate::request::RequestShape;
use crate::time::Nanos;

impl Placement {
    /// The candidates in list order (never empty), and the means of their pool.
    pub(super) fn candidates(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        tried: &[BackendId],
        matches: &Matches,
    ) -> Result<(Vec<Candidate>, PoolMeans), PickError> {
        let model = request.model.as_deref();
        self.settle(now);
        let means = self.pool_means(model);
        let mut furthest = None;
        let mut found = Vec::with_capacity(self.order.len());
        for at in 0..self.order.len() {
            let id = self.order[at];
            let verdict = self.judge(id, model, tried);
            furthest = furthest.max(verdict);
            if verdict == Some(Verdict::Candidate) {
                found.extend(self.candidate(now, request, id, matches, means.proven_seats));
            }
        }
        if found.is_empty() { Err(refusal(furthest)) } else { Ok((found, means)) }
    }

    /// One backend as the pickers see it.
    pub(super) fn candidate(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        id: BackendId,
        matches: &Matches,
        proven_seats: u32,
    ) -> Option<Candidate> {
        let others = self.table.others(id);
        let means = self.entries[id.index()].as_ref()?.load.mean_request().unwrap_or_default();
        let interval = self.config.scrape_interval;
        let exact = self.config.own_counts == OwnCounts::Exact;
        let entry = self.entries[id.index()].as_mut()?;
        let own = entry.load.in_flight();
        let foreign = entry.foreign.now(now, interval).value().unwrap_or(0.0);
        let reported = reported_requests(entry);
        let mut load = Load {
            requests: f64::from(own.requests) + f64::from(others.requests) + foreign,
            q_tokens: own.q_tokens as f64 + others.q_tokens as f64 + foreign * means.0,
            c_tokens: own.c_tokens as f64 + others.c_tokens as f64 + foreign * means.1,
            kv_tokens: entry.kv_tokens() as f64,
            seats: entry.load.seats.seats(entry.spec.max_num_seqs, entry.report.seats, proven_seats),
        };
        if !exact {
            load.requests = reported.unwrap_or(0.0);
        }
        let matched_blocks = matches.blocks(id);
        Some(Candidate {
            id,
            load,
            is_counted: exact || reported.is_some(),
            is_stale: !exact || foreign > 0.0,
            matched_blocks,
            matched_tokens: request.matched_tokens(matched_blocks),
            arrivals: entry.arrivals.in_window(now),
            last_turn: entry.last_turn,
        })
    }

    /// Means over the backends that serve the model, ready or not.
    pub(super) fn pool_means(&self, model: Option<&str>) -> PoolMeans {
        let pool = || {
            self.order
                .iter()
                .filter_map(|id| self.entries[id.index()].as_ref())
                .filter(|e| serves(&e.spec, &e.models, model))
        };
        let uncached = pool_mean(pool().map(|e| e.load.mean_request().map(|m| m.0)));
        let prompt = pool_mean(pool().map(|e| e.load.mean_request().map(|m| m.1)));
        PoolMeans::new(
            pool_mean(pool().map(|e| e.load.decode_seconds().value())),
            pool_mean(pool().map(|e| e.load.prefill_rate().value())),
            uncached.zip(prompt),
            pool().map(|e| e.load.seats.proven()).max().unwrap_or(0),
        )
    }

    /// Lets time pass: predicted prefills end, long waits teach seats.
    fn settle(&mut self, now: Nanos) {
        for id in &self.order {
            if let Some(entry) = &mut self.entries[id.index()] {
                let rate = entry.prefill_rate();
                entry.load.expire_predicted(now);
                entry.load.learn_from_waiting(now, rate);
            }
        }
    }

    fn judge(&self, id: BackendId, model: Option<&str>, tried: &[BackendId]) -> Option<Verdict> {
        let entry = self.entries[id.index()].as_ref()?;
        let requests = entry.load.in_flight().requests.saturating_add(self.table.others(id).requests);
        let gate = Gate {
            spec: &entry.spec,
            models: &entry.models,
            is_ready: entry.is_ready,
            requests,
            was_tried: tried.contains(&id),
        };
        Some(judge(gate, model))
    }
}

/// Requests there by the last report and what was dispatched since; `None` without a report.
fn reported_requests(entry: &Entry) -> Option<f64> {
    let total = entry.report.running.value()?.saturating_add(entry.report.waiting.value()?);
    Some(f64::from(total.saturating_add(entry.load.dispatched_since_report())))
}
