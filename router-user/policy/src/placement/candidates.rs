//! From entries to candidates: the filter, and what the pickers need of each backend it leaves.

use router_common::BackendId;

use super::Placement;
use super::entry::Entry;
use crate::config::OwnCounts;
use crate::cost::{Load, PoolKnown, PoolMeans};
use crate::decision::PickError;
use crate::filter::{Gate, Verdict, judge, refusal, serves};
use crate::load::InFlight;
use crate::pick::Candidate;
use crate::prefix::Walk;
use crate::request::RequestShape;
use crate::time::Nanos;

/// A mean over those that have a value.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    n: u32,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.n += 1;
        }
    }

    fn value(self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / f64::from(self.n))
    }
}

impl Placement {
    /// Fills `found` with the candidates in list order.
    ///
    /// # Errors
    /// Nobody is left; the nearest miss says why.
    pub(super) fn find_candidates(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        tried: &[BackendId],
        walk: &Walk,
        means: &PoolMeans,
        found: &mut Vec<Candidate>,
    ) -> Result<(), PickError> {
        found.clear();
        let model = request.model.as_deref();
        let mut furthest = None;
        for at in 0..self.order.len() {
            let id = self.order[at];
            let others = self.table.others(id);
            let Some(entry) = &self.entries[id.index()] else { continue };
            let gate = Gate {
                spec: &entry.spec,
                models: &entry.models,
                is_ready: entry.is_ready,
                requests: entry.load.in_flight().requests.saturating_add(others.requests),
                was_tried: tried.contains(&id),
            };
            let verdict = judge(gate, model);
            furthest = furthest.max(Some(verdict));
            if verdict == Verdict::Candidate {
                found.extend(self.candidate(now, request, id, others, walk, means));
            }
        }
        if found.is_empty() { Err(refusal(furthest)) } else { Ok(()) }
    }

    /// One backend as the pickers see it.
    pub(super) fn candidate(
        &mut self,
        now: Nanos,
        request: &RequestShape,
        id: BackendId,
        others: InFlight,
        walk: &Walk,
        means: &PoolMeans,
    ) -> Option<Candidate> {
        let fade = self.fade();
        let tuning = &self.config.tuning;
        let is_exact = self.config.own_counts == OwnCounts::Exact;
        let entry = self.entries[id.index()].as_mut()?;
        let own = entry.load.in_flight();
        let foreign = entry.foreign.now(now, fade).value().unwrap_or(0.0);
        let reported = if is_exact { None } else { entry.reported_requests(now, fade) };
        let counted = f64::from(own.requests) + f64::from(others.requests) + foreign;
        let load = Load {
            requests: if is_exact { counted } else { reported.unwrap_or(0.0) },
            q_tokens: own.q_tokens as f64 + others.q_tokens as f64 + foreign * means.uncached,
            c_tokens: own.c_tokens as f64 + others.c_tokens as f64 + foreign * means.prompt,
            kv_tokens: entry.kv_tokens(tuning) as f64,
            seats: entry.load.seats.seats(entry.spec.max_num_seqs, entry.report.seats, means.proven_seats),
            prefill_rate: entry.prefill_rate(tuning),
        };
        let matched_blocks = walk.leading_blocks(id);
        Some(Candidate {
            id,
            load,
            is_counted: is_exact || reported.is_some(),
            is_stale: !is_exact || foreign > 0.0,
            matched_blocks,
            matched_tokens: request.matched_tokens(matched_blocks, means.chars_per_token),
            arrivals: entry.arrivals.in_window(now),
            last_turn: entry.last_turn,
            ring_seed: entry.ring_seed,
        })
    }

    /// Means over the backends that serve the model, ready or not. O(backends).
    pub(super) fn pool_means(&self, model: Option<&str>) -> PoolMeans {
        let [mut decode, mut rate, mut uncached, mut prompt, mut chars] = [Mean::default(); 5];
        let mut proven_seats = 0;
        for entry in self.pool(model) {
            decode.add(entry.load.decode_seconds().value());
            rate.add(entry.load.prefill_rate().value());
            chars.add(entry.load.chars_per_token().value());
            let request = entry.load.mean_request();
            uncached.add(request.map(|m| m.0));
            prompt.add(request.map(|m| m.1));
            proven_seats = proven_seats.max(entry.load.seats.proven());
        }
        let known = PoolKnown {
            decode_seconds: decode.value(),
            prefill_rate: rate.value(),
            uncached: uncached.value(),
            prompt: prompt.value(),
            chars_per_token: chars.value(),
            proven_seats,
        };
        PoolMeans::new(&known, &self.config.tuning)
    }

    /// Lets time pass: predicted prefills end, long waits teach seats.
    pub(super) fn settle(&mut self, now: Nanos) {
        let tuning = &self.config.tuning;
        for id in &self.order {
            if let Some(entry) = &mut self.entries[id.index()] {
                let rate = entry.prefill_rate(tuning);
                entry.load.expire_predicted(now);
                entry.load.learn_from_waiting(now, rate, tuning);
            }
        }
    }

    fn pool(&self, model: Option<&str>) -> impl Iterator<Item = &Entry> {
        let entries = self.order.iter().filter_map(|id| self.entries[id.index()].as_ref());
        entries.filter(move |e| serves(&e.spec, &e.models, model))
    }
}
