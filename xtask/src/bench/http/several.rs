//! Several router processes beside one: what their not being one costs, and how late they hear of each other.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::stage::Stage;
use super::{Compared, number};

/// What the mean TTFT of several may be of one's.
const RATIO_MAX: f64 = 1.10;
/// Within this the others should know of a placement, 99 in 100.
const DELAY_MAX: f64 = 0.020;

/// Prints ratios and delays.
///
/// # Errors
/// A run that is not valid, a ratio or a delay out of its bounds.
pub(super) fn judge(one: &Compared, all: &Compared, stage: &Stage) -> Result<()> {
    one.check().context("one process")?;
    all.check().context("several processes")?;
    let sum = |name: &str| Ok::<_, anyhow::Error>(stage.series(name)?.iter().map(|(_, v)| v).sum::<f64>());
    println!(
        "told {}, heard {}, lost {}, moved {} of {} decisions",
        sum("unlatch_gossip_told_total")?,
        sum("unlatch_gossip_heard_total")?,
        sum("unlatch_gossip_lost_total")?,
        sum("unlatch_decisions_moved_total")?,
        sum("unlatch_decisions_total")?,
    );
    let buckets = buckets(&stage.series("unlatch_gossip_delay_seconds_bucket")?);
    let (p50, p99) = (quantile(&buckets, 0.5), quantile(&buckets, 0.99));
    println!("known to the others within {:.2} ms (p50), {:.2} ms (p99)", p50 * 1e3, p99 * 1e3);
    let ratio = number(&all.http, "ttft_mean_s") / number(&one.http, "ttft_mean_s");
    println!("mean TTFT of several processes is {ratio:.3} x that of one (at most {RATIO_MAX})");
    if ratio.is_nan() || ratio > RATIO_MAX || p99.is_nan() || p99 > DELAY_MAX {
        bail!("not met: at most {RATIO_MAX} x, and p99 within {} ms", DELAY_MAX * 1e3);
    }
    Ok(())
}

/// Upper bounds and counts up to them, over all series, in order.
fn buckets(series: &[(String, f64)]) -> Vec<(f64, f64)> {
    let mut sums: BTreeMap<u64, f64> = BTreeMap::new();
    for (labels, count) in series {
        let bound = labels.split('"').nth(1).map(|bound| bound.trim_start_matches('+'));
        if let Some(bound) = bound.and_then(|bound| bound.parse::<f64>().ok()) {
            // The order of bits is that of numbers, as none is negative.
            *sums.entry(bound.to_bits()).or_default() += count;
        }
    }
    sums.into_iter().map(|(bound, count)| (f64::from_bits(bound), count)).collect()
}

/// Where a share of all lies, evenly within its bucket; not a number without any, infinite beyond the last bound.
fn quantile(buckets: &[(f64, f64)], share: f64) -> f64 {
    let all = buckets.last().map_or(0.0, |(_, count)| *count);
    let wanted = share * all;
    let mut before = (0.0, 0.0);
    for &(bound, count) in buckets {
        if all > 0.0 && count >= wanted {
            let part = (wanted - before.1) / (count - before.1).max(1.0);
            return if bound.is_finite() { before.0 + part * (bound - before.0) } else { bound };
        }
        before = (bound, count);
    }
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_all_series_together() {
        let series = [
            ("0.001", 10.0),
            ("0.002", 50.0),
            ("+Inf", 50.0),
            ("0.001", 30.0),
            ("0.002", 50.0),
            ("+Inf", 50.0),
        ]
        .map(|(bound, count)| (format!("{{le=\"{bound}\"}}"), count));
        let buckets = buckets(&series);
        assert_eq!(buckets, [(0.001, 40.0), (0.002, 100.0), (f64::INFINITY, 100.0)]);
        assert!((quantile(&buckets, 0.2) - 0.0005).abs() < 1e-9);
        assert!((quantile(&buckets, 0.7) - 0.0015).abs() < 1e-9);
        assert!(quantile(&[], 0.5).is_nan());
        assert_eq!(quantile(&[(0.1, 0.0), (f64::INFINITY, 3.0)], 0.5), f64::INFINITY);
    }
}
