//! How long a request may wait for its first byte: what a hung engine is told from a busy one by.

use router_common::BackendId;

use super::Placement;
use super::entry::Entry;
use super::pools::members;
use crate::load::Seats;
use crate::task::Task;
use crate::time::Nanos;

/// The oldest request without a byte at a backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    /// When it was sent.
    pub since: Nanos,
    /// After how many seconds its first byte is expected by now.
    pub expected_seconds: f64,
}

impl Placement {
    /// The oldest request without a byte, of those sent at `from` or later and before `until`. O(log of those without);
    /// where there is one, O(pool).
    #[must_use]
    pub fn wait(&self, id: BackendId, from: Nanos, until: Nanos) -> Option<Wait> {
        let entry = self.entry(id)?;
        let (since, stream) = entry.load.oldest_unanswered(from).filter(|(since, _)| *since < until)?;
        Some(Wait { since, expected_seconds: self.expected(id, entry, stream) })
    }

    /// After how many seconds a request there is expected to have its first byte: the prefill before it, the wait for a
    /// seat, and, where it is no stream, the whole answer. O(pool). 0 without such a backend.
    #[must_use]
    pub fn expected_seconds(&self, id: BackendId, stream: bool) -> f64 {
        self.entry(id).map_or(0.0, |entry| self.expected(id, entry, stream))
    }

    fn expected(&self, id: BackendId, entry: &Entry, stream: bool) -> f64 {
        let standing = &self.standings[id.index()];
        let means = self.pool_means(entry.spec.model.as_deref());
        let seats = f64::from(standing.seats.count().max(1));
        let over = match standing.seats {
            // What use has proven so far is no bound.
            Seats::ProvenByUse(_) => 0.0,
            _ => (f64::from(standing.requests) - seats).max(0.0),
        };
        let prefill = standing.q_tokens / standing.prefill_rate;
        let answer = || {
            let own = entry.load.plain_seconds().value();
            own.or_else(|| self.plain_seconds(entry)).unwrap_or(means.decode_seconds)
        };
        prefill + over / seats * means.decode_seconds + if stream { 0.0 } else { answer() }
    }

    /// What answers that are no streams take in the mean, of the engines that gave some.
    fn plain_seconds(&self, entry: &Entry) -> Option<f64> {
        let pool = members(entry.spec.model.as_deref(), Task::Any, &self.order, &self.entries);
        let told = pool.filter_map(|id| self.entry(id)?.load.plain_seconds().value());
        let (sum, count) = told.fold((0.0, 0), |(sum, count), seconds| (sum + seconds, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    }
}
