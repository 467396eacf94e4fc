//! What is told of a run: a few numbers over the requests sent after the warm-up.

use router_policy::Nanos;
use serde::Serialize;

use super::record::{Record, Run};

/// Share of the time that is warm-up and not measured.
const WARM_UP: f64 = 0.25;

/// The numbers of one policy. Times in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    /// Its name.
    pub(super) policy: String,
    /// Whether it uses knowledge no router has.
    pub(super) is_oracle: bool,
    pub(super) ttft_mean_s: f64,
    pub(super) ttft_p50_s: f64,
    pub(super) ttft_p90_s: f64,
    pub(super) ttft_p99_s: f64,
    pub(super) e2e_mean_s: f64,
    /// Share of the prompt tokens that the engines' caches had.
    pub(super) hit_ratio: f64,
    /// Most requests in flight at an engine over their mean, averaged over time.
    pub(super) imbalance: f64,
    /// From the start to the last end, warm-up included.
    pub(super) makespan_s: f64,
    /// Requests measured.
    pub(super) requests: u64,
    /// Requests that no engine took, warm-up included.
    pub(super) refused: u64,
    /// Of `http`: what 99 % of the requests were sent late by at most, warm-up included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) late_p99_s: Option<f64>,
}

/// One number of a summary.
pub(super) type Metric = fn(&Summary) -> f64;

/// The measures that claims may be about, and ratios are printed of.
pub(super) const METRICS: [(&str, Metric); 8] = [
    ("ttft_mean", |s| s.ttft_mean_s),
    ("ttft_p50", |s| s.ttft_p50_s),
    ("ttft_p90", |s| s.ttft_p90_s),
    ("ttft_p99", |s| s.ttft_p99_s),
    ("e2e_mean", |s| s.e2e_mean_s),
    ("hit_ratio", |s| s.hit_ratio),
    ("imbalance", |s| s.imbalance),
    ("makespan", |s| s.makespan_s),
];

/// When the warm-up is over, if sessions start within `duration_seconds`.
pub(super) fn measured_from(duration_seconds: f64) -> Nanos {
    Nanos::from_secs_f64(duration_seconds * WARM_UP)
}

/// The numbers of a run whose sessions start within `duration_seconds`.
pub(super) fn summary(policy: &str, is_oracle: bool, run: &Run, duration_seconds: f64) -> Summary {
    let begin = measured_from(duration_seconds);
    let end = Nanos::from_secs_f64(duration_seconds);
    let measured: Vec<&Record> = run.records.iter().filter(|r| r.sent >= begin).collect();
    let mut ttft: Vec<f64> = measured.iter().map(|r| r.ttft_seconds()).collect();
    ttft.sort_by(f64::total_cmp);
    let prompt: u64 = measured.iter().map(|r| u64::from(r.prompt_tokens)).sum();
    let cached: u64 = measured.iter().map(|r| u64::from(r.cached_tokens)).sum();
    let rows = run.samples.rows().filter(|(at, _)| (begin..end).contains(at));
    Summary {
        policy: policy.to_owned(),
        is_oracle,
        ttft_mean_s: mean(ttft.iter().copied()),
        ttft_p50_s: percentile(&ttft, 0.50),
        ttft_p90_s: percentile(&ttft, 0.90),
        ttft_p99_s: percentile(&ttft, 0.99),
        e2e_mean_s: mean(measured.iter().map(|r| r.e2e_seconds())),
        hit_ratio: cached as f64 / prompt.max(1) as f64,
        imbalance: mean(rows.filter_map(|(_, counts)| imbalance(counts))),
        makespan_s: run.makespan.seconds_since(Nanos(0)),
        requests: measured.len() as u64,
        refused: run.refused,
        late_p99_s: None,
    }
}

/// What 99 % of these do not exceed.
pub(super) fn p99(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    percentile(&values, 0.99)
}

/// The largest count over the mean; `None` if nothing is in flight.
fn imbalance(counts: &[u32]) -> Option<f64> {
    let sum: u32 = counts.iter().sum();
    let most = counts.iter().copied().max()?;
    (sum > 0).then(|| f64::from(most) * counts.len() as f64 / f64::from(sum))
}

/// 0 of nothing.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f64
}

/// The least value that a share `p` of the sorted values do not exceed; 0 of nothing.
fn percentile(sorted: &[f64], p: f64) -> f64 {
    let rank = (p * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn record(sent: u64, ttft_ms: u64) -> Record {
        Record {
            sent: Nanos(sent * SECOND),
            first_token: Nanos(sent * SECOND + ttft_ms * 1_000_000),
            ended: Nanos((sent + 10) * SECOND),
            prompt_tokens: 100,
            cached_tokens: 40,
            engine: 0,
        }
    }

    #[test]
    fn only_what_was_sent_after_the_first_quarter_counts() {
        let mut records = vec![record(24, 60_000)];
        records.extend((1..=100).map(|i| record(25, i * 10)));
        let run = Run { records, makespan: Nanos(40 * SECOND), refused: 2, ..Run::default() };
        let s = summary("p", false, &run, 100.0);
        assert_eq!((s.requests, s.refused), (100, 2));
        assert!((s.ttft_mean_s - 0.505).abs() < 1e-9);
        assert_eq!((s.ttft_p50_s, s.ttft_p90_s, s.ttft_p99_s), (0.5, 0.9, 0.99));
        assert_eq!((s.e2e_mean_s, s.hit_ratio, s.makespan_s), (10.0, 0.4, 40.0));
    }

    #[test]
    fn imbalance_is_the_largest_over_the_mean() {
        assert_eq!(imbalance(&[4, 0]), Some(2.0));
        assert_eq!(imbalance(&[3, 3, 3]), Some(1.0));
        assert_eq!(imbalance(&[0, 0]), None);
    }

    #[test]
    fn nothing_measured_is_all_zeros_and_no_nan() {
        let s = summary("p", true, &Run::default(), 100.0);
        assert!(METRICS.iter().all(|(_, metric)| metric(&s) == 0.0), "{s:?}");
    }
}
