//! Sums for people, over what requests counted. Read about once a second while somebody looks, never by a request.

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use router_policy::{BackendId, Reason};

use super::RequestMetrics;

impl RequestMetrics {
    /// Requests placed at the backends that are there now, by reason.
    #[must_use]
    pub fn decisions_by_reason(&self) -> Vec<(&'static str, u64)> {
        let backends: Vec<_> = self.backends.iter().filter_map(|row| row.load_full()).collect();
        let sum = |reason: &Reason| {
            let counters = backends.iter().filter_map(|b| b.decisions[*reason as usize].get());
            counters.map(|counter| counter.get()).sum()
        };
        Reason::ALL.iter().map(|reason| (reason.as_str(), sum(reason))).collect()
    }

    /// Requests placed at a backend.
    #[must_use]
    pub fn placed_at(&self, id: BackendId) -> u64 {
        let backend = self.backends[id.index()].load();
        backend
            .as_deref()
            .map_or(0, |b| b.decisions.iter().filter_map(|c| c.get()).map(|counter| counter.get()).sum())
    }

    /// First bytes by the time they took: upper bound in seconds (`None` = no bound), and how many took no longer.
    #[must_use]
    pub fn ttft_buckets(&self) -> Vec<(Option<f64>, u64)> {
        // The crate gives a histogram's buckets to nobody but an encoder.
        let mut registry = Registry::default();
        registry.register("t", "", self.ttft.clone());
        let mut encoded = String::new();
        if text::encode(&mut encoded, &registry).is_err() {
            return Vec::new();
        }
        let bucket = |line: &str| {
            let (bound, count) = line.strip_prefix("t_bucket{le=\"")?.split_once("\"} ")?;
            Some((bound.parse().ok().filter(|bound: &f64| bound.is_finite()), count.parse().ok()?))
        };
        encoded.lines().filter_map(bucket).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::registry::Registry;
    use router_policy::{BackendId, Reason};

    use super::RequestMetrics;
    use crate::proxy::metrics::SECONDS;

    #[test]
    fn totals_are_those_of_the_metrics() {
        let id = |row| BackendId::new(row).unwrap();
        let m = RequestMetrics::new(&mut Registry::default());
        m.add(id(0), "p", "a");
        m.add(id(7), "p", "b");
        m.placed(id(7), Reason::PrefixMatch, 0, 0);
        m.placed(id(7), Reason::PrefixMatch, 0, 0);
        m.placed(id(0), Reason::PrefixMatch, 0, 0);
        for ms in [300, 300, 700_000] {
            m.first_byte(Duration::from_millis(ms));
        }
        assert!(m.decisions_by_reason().contains(&("prefix_match", 3)));
        assert_eq!(m.decisions_by_reason().iter().map(|(_, n)| n).sum::<u64>(), 3);
        assert_eq!((m.placed_at(id(7)), m.placed_at(id(0)), m.placed_at(id(3))), (2, 1, 0));
        let buckets = m.ttft_buckets();
        let bounds: Vec<_> = buckets.iter().filter_map(|(bound, _)| *bound).collect();
        assert_eq!(bounds, SECONDS);
        assert_eq!(buckets.last(), Some(&(None, 3)));
        assert!(buckets.contains(&(Some(0.25), 0)) && buckets.contains(&(Some(0.5), 2)));
    }
}
