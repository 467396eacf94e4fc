//! One decision with everything it was made from: what was known of each candidate, how old it was, what each term of
//! its cost came to. No text; a prompt is its size and the keyed hash of its last complete block.

use router_common::BackendId;

use super::Placement;
use super::candidates::Scene;
use super::entry::Entry;
use crate::config::OwnCounts;
use crate::cost::{PoolMeans, one_request};
use crate::decision::{Cost, Reason};
use crate::load::{Seats, Seen};
use crate::pick::{Candidate, Choice, priced};
use crate::time::Nanos;

/// A decision and its grounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Number of the decision in this process.
    pub id: u64,
    /// When.
    pub at: Nanos,
    /// Keyed hash of the prompt's last complete block; 0 without one.
    pub prompt_hash: u128,
    /// Prompt tokens, estimated.
    pub prompt_tokens: u64,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// Where it went.
    pub chosen: BackendId,
    /// Why.
    pub reason: Reason,
    /// Means of the pool that the seat term and the estimate of tokens used.
    pub means: PoolMeans,
    /// Everybody who was compared.
    pub candidates: Vec<CandidateRecord>,
}

/// Whence the size of a KV pool is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// Configured.
    Configured,
    /// The engine told.
    Reported,
    /// Nobody told: the default.
    Assumed,
}

impl KvSource {
    /// The source as one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Reported => "reported",
            Self::Assumed => "assumed",
        }
    }
}

/// One candidate as it was seen.
///
/// What this process counts, and what the others of its host share with it, is exact at the moment of the decision and
/// has no age; the rest is as old as the report it is from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CandidateRecord {
    /// Which.
    pub backend: BackendId,
    /// Requests in flight there (A), foreign ones included, told or assumed; `None` = unknown.
    pub requests: Option<f64>,
    /// Of those, this process's; `None` = it does not use its own counts.
    pub own: Option<u32>,
    /// Of those, the other processes' of the host, by the shared table.
    pub others: u32,
    /// Of those, foreign ones by the last report or what was told in band; `None` = neither: the mean of the others' is
    /// assumed.
    pub foreign: Option<f64>,
    /// Seconds since that; `None` = neither.
    pub foreign_age_seconds: Option<f64>,
    /// All requests there as its host told in band, and the seconds since; `None` = it never did.
    pub in_band: Option<(u32, f64)>,
    /// Seconds since the last report; `None` = never heard.
    pub report_age_seconds: Option<f64>,
    /// Whether its count was only as fresh as a report.
    pub is_stale: bool,
    /// Prompt tokens believed cached there.
    pub matched_tokens: u64,
    /// Unanswered prefill tokens there (Q).
    pub q_tokens: f64,
    /// Prompt tokens in flight there (C).
    pub c_tokens: f64,
    /// KV pool in tokens (K).
    pub kv_tokens: f64,
    /// Whence K is known.
    pub kv_source: KvSource,
    /// Seconds since K was reported; `None` where no report told it.
    pub kv_age_seconds: Option<f64>,
    /// Seats (S).
    pub seats: Seats,
    /// Seconds since S was reported; `None` where no report told it.
    pub seats_age_seconds: Option<f64>,
    /// Prefill in tokens per second (R), learned or, without samples, assumed.
    pub prefill_rate: f64,
    /// Samples that R was learned from.
    pub prefill_samples: u64,
    /// What the kernel saw there, read at the decision; `None` where it does not look.
    pub seen: Option<Seen>,
    /// The terms of its cost.
    pub cost: Cost,
    /// What was compared: the sum, weighed by speed where that is on.
    pub compared: f64,
    /// By how much the cost could be above the least and still count as equal: 0 for exact counts. Of `prefix-cost`
    /// only.
    pub band: f64,
}

impl Placement {
    pub(super) fn record(&self, scene: &Scene<'_>, candidates: &[Candidate], choice: Choice) -> Record {
        let Scene { now, request, means, .. } = *scene;
        let prompt_tokens = scene.prompt_tokens();
        let mut seen: Vec<_> =
            candidates.iter().filter_map(|c| self.seen(now, c, prompt_tokens, means)).collect();
        let least = seen.iter().min_by(|a, b| a.compared.total_cmp(&b.compared));
        let is_least_stale = least.is_some_and(|least| least.is_stale);
        for c in seen.iter_mut().filter(|c| !(c.is_stale || is_least_stale)) {
            c.band = 0.0;
        }
        Record {
            id: self.next_ticket,
            at: now,
            prompt_hash: super::chain_of(request).last().copied().unwrap_or(0),
            prompt_tokens,
            stream: request.stream,
            chosen: candidates[choice.index].id,
            reason: choice.reason,
            means: *means,
            candidates: seen,
        }
    }

    fn seen(
        &self,
        now: Nanos,
        c: &Candidate,
        prompt_tokens: u64,
        means: &PoolMeans,
    ) -> Option<CandidateRecord> {
        let tuning = &self.config.tuning;
        let entry = self.entry(c.id)?;
        let (cost, compared) = priced(c, prompt_tokens, means, tuning);
        let foreign = entry.foreign.or_fresher(now, c.told).now(now, self.fade);
        let own = entry.load.in_flight().requests;
        let is_exact = self.config.own_counts == OwnCounts::Exact;
        // Not read again: the others may have counted on since the decision, and the sum must stay the one used.
        let others =
            c.load.requests - f64::from(own) - f64::from(if c.foreign.is_nan() { 0.0 } else { c.foreign });
        let (kv_source, kv_age_seconds) = kv_source(entry, now);
        Some(CandidateRecord {
            backend: c.id,
            requests: c.is_counted.then_some(c.load.requests),
            own: is_exact.then_some(own),
            others: if is_exact { others.round() as u32 } else { 0 },
            foreign: foreign.value(),
            foreign_age_seconds: foreign.age_seconds(now),
            in_band: c.told.map(|told| (told.in_flight, now.seconds_since(told.at))),
            report_age_seconds: entry.report.running.age_seconds(now),
            is_stale: c.is_stale,
            matched_tokens: c.matched_tokens,
            q_tokens: c.load.q_tokens,
            c_tokens: c.load.c_tokens,
            kv_tokens: c.load.kv_tokens,
            kv_source,
            kv_age_seconds,
            seats: c.load.seats,
            seats_age_seconds: match c.load.seats {
                Seats::Reported(_) => entry.report.seats.age_seconds(now),
                _ => None,
            },
            prefill_rate: c.load.prefill_rate,
            prefill_samples: entry.load.prefill_rate().with_count().map_or(0, |(_, samples)| samples),
            seen: self.table.seen(c.id, now),
            cost,
            compared,
            band: one_request(cost.uncached, means, tuning),
        })
    }
}

/// Whence K is known (as [`Entry::kv_tokens`] takes it), and how old a report is that told it.
fn kv_source(entry: &Entry, now: Nanos) -> (KvSource, Option<f64>) {
    match (entry.spec.kv_tokens, entry.report.kv_tokens.age_seconds(now)) {
        (Some(_), _) => (KvSource::Configured, None),
        (None, Some(age)) => (KvSource::Reported, Some(age)),
        (None, None) => (KvSource::Assumed, None),
    }
}
