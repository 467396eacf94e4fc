//! What a run leaves behind: a record per request, and how many were in flight where.

use router_policy::Nanos;

/// What happened to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) sent: Nanos,
    pub(super) first_token: Nanos,
    pub(super) ended: Nanos,
    pub(super) prompt_tokens: u32,
    /// Prompt tokens that the engine's cache had.
    pub(super) cached_tokens: u32,
    pub(super) engine: usize,
}

impl Record {
    pub(super) fn ttft_seconds(&self) -> f64 {
        self.first_token.seconds_since(self.sent)
    }

    pub(super) fn e2e_seconds(&self) -> f64 {
        self.ended.seconds_since(self.sent)
    }
}

/// Requests in flight per engine, at regular times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Samples {
    /// Nanoseconds between two rows.
    pub(super) interval_ns: u64,
    engines: usize,
    /// Rows one after the other.
    counts: Vec<u32>,
}

impl Samples {
    pub(super) fn new(interval_ns: u64, engines: usize) -> Self {
        Self { interval_ns, engines, counts: Vec::new() }
    }

    /// Nothing changed until `now`: fills the rows up to then.
    pub(super) fn until(&mut self, now: Nanos, in_flight: &[u32]) {
        while (self.counts.len() / self.engines) as u64 * self.interval_ns < now.0 {
            self.counts.extend_from_slice(in_flight);
        }
    }

    /// The rows, by time.
    pub(super) fn rows(&self) -> impl Iterator<Item = (Nanos, &[u32])> {
        let times = (0..).map(|row| Nanos(row * self.interval_ns));
        times.zip(self.counts.chunks_exact(self.engines.max(1)))
    }
}

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// Requests that ended, in the order of their ends.
    pub(super) records: Vec<Record>,
    /// All requests by number, complete once they ended.
    pub(super) under_way: Vec<Record>,
    pub(super) samples: Samples,
    /// Requests that no engine took.
    pub(super) refused: u64,
    /// The last end.
    pub(super) makespan: Nanos,
}

impl Run {
    /// The request with this number ended.
    pub(super) fn ended(&mut self, number: usize, now: Nanos) {
        self.under_way[number].ended = now;
        self.records.push(self.under_way[number]);
        self.makespan = now;
    }

    /// Nothing more comes.
    pub(super) fn finish(&mut self) {
        self.under_way = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_what_held_at_its_time() {
        let mut samples = Samples::new(10, 2);
        samples.until(Nanos(5), &[1, 0]);
        samples.until(Nanos(25), &[2, 1]);
        let rows: Vec<_> = samples.rows().map(|(at, row)| (at.0, row.to_vec())).collect();
        assert_eq!(rows, [(0, vec![1, 0]), (10, vec![2, 1]), (20, vec![2, 1])]);
    }
}
