//! One decision with everything it was made from: what was known of each candidate, how old it was, what each term of
//! its cost came to. No text; a prompt is its size and the keyed hash of its last complete block.

use router_common::BackendId;

use super::Placement;
use super::candidates::Scene;
use crate::cost::PoolMeans;
use crate::decision::{Cost, Reason};
use crate::load::Seats;
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

/// One candidate as it was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CandidateRecord {
    /// Which.
    pub backend: BackendId,
    /// Requests in flight there (A), foreign ones included; `None` = unknown.
    pub requests: Option<f64>,
    /// Of those, foreign ones assumed from the last report; `None` = no report.
    pub foreign: Option<f64>,
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
    /// Seats (S).
    pub seats: Seats,
    /// The terms of its cost.
    pub cost: Cost,
    /// What was compared: the sum, weighed by speed where that is on.
    pub compared: f64,
}

impl Placement {
    pub(super) fn record(&self, scene: &Scene<'_>, candidates: &[Candidate], choice: Choice) -> Record {
        let Scene { now, request, means, .. } = *scene;
        let prompt_tokens = scene.prompt_tokens();
        let seen = |c: &Candidate| {
            let (cost, compared) = priced(c, prompt_tokens, means, &self.config.tuning);
            let entry = self.entry(c.id);
            CandidateRecord {
                backend: c.id,
                requests: c.is_counted.then_some(c.load.requests),
                foreign: entry.and_then(|e| e.foreign.now(now, self.fade).value()),
                report_age_seconds: entry.and_then(|e| e.report.running.age_seconds(now)),
                is_stale: c.is_stale,
                matched_tokens: c.matched_tokens,
                q_tokens: c.load.q_tokens,
                c_tokens: c.load.c_tokens,
                kv_tokens: c.load.kv_tokens,
                seats: c.load.seats,
                cost,
                compared,
            }
        };
        Record {
            id: self.next_ticket,
            at: now,
            prompt_hash: super::chain_of(request).last().copied().unwrap_or(0),
            prompt_tokens,
            stream: request.stream,
            chosen: candidates[choice.index].id,
            reason: choice.reason,
            means: *means,
            candidates: candidates.iter().map(seen).collect(),
        }
    }
}
