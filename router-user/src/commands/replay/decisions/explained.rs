//! A decision with names for its numbers: what `--json` prints, and what the tables are made of.

use serde::Serialize;

use super::because;
use crate::decisions::{CandidateLine, Line};

/// One decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Explained {
    /// Number of the decision in its process.
    pub(super) id: u64,
    /// `X-Request-Id`; `null` = not recorded.
    pub(super) request: Option<String>,
    /// Seconds of the router's monotonic clock.
    pub(super) at_s: f64,
    /// Keyed hash of the prompt's last complete block.
    pub(super) prompt: String,
    pub(super) prompt_tokens: u64,
    pub(super) stream: bool,
    pub(super) chosen: String,
    pub(super) reason: String,
    /// The reason in one sentence.
    pub(super) because: String,
    pub(super) pool_means: PoolMeans,
    pub(super) candidates: Vec<Considered>,
}

/// What was known of the pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PoolMeans {
    pub(super) decode_seconds: f64,
    pub(super) prefill_tokens_per_second: f64,
    pub(super) chars_per_token: f64,
    /// Of a request; `null` = none was seen yet.
    pub(super) uncached_tokens: Option<f64>,
    /// Of a request; `null` = none was seen yet.
    pub(super) prompt_tokens: Option<f64>,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Considered {
    pub(super) backend: String,
    pub(super) is_chosen: bool,
    pub(super) terms: Terms,
    /// The sum of the terms.
    pub(super) total: f64,
    /// What was compared: the total, weighed by speed where that is on.
    pub(super) compared: f64,
    /// By how much `compared` could be above the least and still count as equal.
    pub(super) band: f64,
    pub(super) known: Known,
    pub(super) age_seconds: Ages,
}

/// The terms of a cost, in prompt tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Terms {
    pub(super) uncached: f64,
    pub(super) disturbance: f64,
    pub(super) queued: f64,
    pub(super) context: f64,
    pub(super) overflow: f64,
    pub(super) seat: f64,
}

impl Terms {
    /// All, with their names, in the order of the formula.
    pub(super) const fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("uncached", self.uncached),
            ("disturbance", self.disturbance),
            ("queued", self.queued),
            ("context", self.context),
            ("overflow", self.overflow),
            ("seat", self.seat),
        ]
    }

    /// Their sum.
    pub(super) fn total(&self) -> f64 {
        self.named().iter().map(|(_, tokens)| tokens).sum()
    }
}

/// What the terms were made from. `null` = unknown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Known {
    /// The sum of the three after it.
    pub(super) in_flight: Option<f64>,
    pub(super) own: Option<u32>,
    pub(super) others: u32,
    pub(super) foreign: Option<f64>,
    /// All requests there, as its host told in band.
    pub(super) in_band: Option<u32>,
    pub(super) q_tokens: f64,
    pub(super) c_tokens: f64,
    pub(super) kv_tokens: f64,
    pub(super) kv_source: String,
    pub(super) seats: u32,
    pub(super) seats_source: String,
    pub(super) matched_tokens: u64,
    pub(super) prefill_tokens_per_second: f64,
    /// 0 = assumed.
    pub(super) prefill_samples: u64,
    /// Beside the counts, in no term.
    pub(super) kernel_awaiting: Option<u64>,
    pub(super) kernel_streaming: Option<u64>,
}

/// How old each input was. 0 = counted at that moment, `null` = nobody told it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Ages {
    pub(super) own: Option<f64>,
    pub(super) others: f64,
    pub(super) foreign: Option<f64>,
    pub(super) in_band: Option<f64>,
    pub(super) report: Option<f64>,
    pub(super) kv_tokens: Option<f64>,
    pub(super) seats: Option<f64>,
    /// Of the last byte that the kernel saw come from there.
    pub(super) last_byte: Option<f64>,
}

impl Explained {
    pub(super) fn new(line: &Line) -> Self {
        let chosen = line.candidates.iter().position(|c| c.backend == line.chosen);
        let candidates: Vec<_> =
            (0..).zip(&line.candidates).map(|(at, c)| Considered::new(c, chosen == Some(at))).collect();
        let [decode_seconds, prefill_tokens_per_second, chars_per_token] = line.means;
        // A mean of 0 tokens is that of no request.
        let [uncached_tokens, prompt_tokens] = line.mean_request.map(|mean| (mean > 0.0).then_some(mean));
        Self {
            id: line.id,
            request: line.request.clone(),
            at_s: line.at_ns as f64 / 1e9,
            prompt: line.prompt.clone(),
            prompt_tokens: line.tokens,
            stream: line.stream,
            chosen: line.chosen.clone(),
            reason: line.reason.clone(),
            because: because::sentence(&line.chosen, &line.reason, &candidates),
            pool_means: PoolMeans {
                decode_seconds,
                prefill_tokens_per_second,
                chars_per_token,
                uncached_tokens,
                prompt_tokens,
            },
            candidates,
        }
    }
}

impl Considered {
    fn new(c: &CandidateLine, is_chosen: bool) -> Self {
        let [uncached, disturbance, queued, context, overflow, seat] = c.cost;
        let terms = Terms { uncached, disturbance, queued, context, overflow, seat };
        let [q_tokens, c_tokens, kv_tokens] = c.q_c_k;
        Self {
            backend: c.backend.clone(),
            is_chosen,
            terms,
            total: terms.total(),
            compared: c.compared,
            band: c.band,
            known: Known {
                in_flight: c.in_flight,
                own: c.own,
                others: c.others,
                foreign: c.foreign,
                in_band: c.in_band.map(|(all, _)| all),
                q_tokens,
                c_tokens,
                kv_tokens,
                kv_source: c.kv.0.clone(),
                seats: c.seats.0,
                seats_source: c.seats.1.clone(),
                matched_tokens: c.matched,
                prefill_tokens_per_second: c.prefill.0,
                prefill_samples: c.prefill.1,
                kernel_awaiting: c.kernel.map(|(awaiting, ..)| awaiting),
                kernel_streaming: c.kernel.map(|(_, streaming, _)| streaming),
            },
            age_seconds: Ages {
                own: c.own.map(|_| 0.0),
                others: 0.0,
                foreign: c.foreign_age_s,
                in_band: c.in_band.map(|(_, age)| age),
                report: c.report_age_s,
                kv_tokens: c.kv.1,
                seats: c.seats.2,
                last_byte: c.kernel.and_then(|(.., silent)| silent),
            },
        }
    }

    /// Whether what was compared is not the plain total.
    pub(super) fn is_weighed(&self) -> bool {
        !is_equal(self.total, self.compared)
    }
}

/// Equal as placement takes it: a relative difference of 1e-9.
pub(super) fn is_equal(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}
