//! What each source did so far: for `/status`, and as metrics. Sources are names and files; lists of addresses in the
//! configuration itself do nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

/// State of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceStatus {
    /// Its name: `dns:HOST`, `srv:RECORD` or `file:PATH`.
    pub name: String,
    /// Addresses, records or entries of its last good answer.
    pub size: usize,
    /// Good answers that were another than the one before.
    pub changes: u64,
    /// Answers that were none, or not usable.
    pub failures: u64,
    /// Addresses and records that were too many.
    pub cut: u64,
    /// Time since the last good answer; of a file, since it was read. `None`: there was none.
    pub good_age: Option<Duration>,
    /// What is wrong at present.
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Row {
    size: usize,
    changes: u64,
    failures: u64,
    cut: u64,
    good_at: Option<Instant>,
    error: Option<String>,
}

/// All sources.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<BTreeMap<String, Row>>);

impl Board {
    pub(super) fn good(&self, name: &str, size: usize, is_another: bool, cut: usize) {
        let mut rows = self.0.lock();
        let row = rows.entry(name.to_owned()).or_default();
        row.changes += u64::from(is_another);
        row.cut += cut as u64;
        (row.size, row.good_at, row.error) = (size, Some(Instant::now()), None);
    }

    pub(super) fn bad(&self, name: &str, error: String) {
        let mut rows = self.0.lock();
        let row = rows.entry(name.to_owned()).or_default();
        row.failures += 1;
        row.error = Some(error);
    }

    pub(super) fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }

    pub(super) fn status(&self) -> Vec<SourceStatus> {
        let status = |(name, row): (&String, &Row)| SourceStatus {
            name: name.clone(),
            size: row.size,
            changes: row.changes,
            failures: row.failures,
            cut: row.cut,
            good_age: row.good_at.map(|at| at.elapsed()),
            error: row.error.clone(),
        };
        self.0.lock().iter().map(status).collect()
    }

    pub(super) fn register(self: Arc<Self>, series: &mut Registry) {
        series.register_collector(Box::new(Series(self)));
    }
}

#[derive(Debug)]
struct Series(Arc<Board>);

impl Collector for Series {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = self.0.status();
        type Count = fn(&SourceStatus) -> u64;
        let counters: [(&str, &str, Count); 3] = [
            ("changes", "Answers of a source of backends that were another than the one before", |s| {
                s.changes
            }),
            ("failures", "Answers of a source of backends that were none or not usable", |s| s.failures),
            ("cut", "Addresses that a source of backends named beyond the most there may be", |s| s.cut),
        ];
        for (name, help, count) in counters {
            let name = format!("unlatch_discovery_{name}");
            each(&mut encoder, &name, help, all.iter().map(|s| (&s.name[..], ConstCounter::new(count(s)))))?;
        }
        let help = "Time since a source of backends gave its last good answer";
        let ages = all.iter().filter_map(|s| Some((&s.name[..], ConstGauge::new(s.good_age?.as_secs_f64()))));
        each(&mut encoder, "unlatch_discovery_good_age_seconds", help, ages)
    }
}

fn each<'s, M: EncodeMetric + prometheus_client::metrics::TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (&'s str, M)>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, M::TYPE)?;
    for (source, sample) in samples {
        sample.encode(metric.encode_family(&[("source", source)])?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Board;
    use std::sync::Arc;

    #[test]
    fn sources_are_counted_and_forgotten() {
        let board = Arc::new(Board::default());
        board.bad("dns:a", "no".to_owned());
        board.bad("dns:b", "no".to_owned());
        board.good("dns:a", 2, true, 0);
        board.good("dns:a", 2, false, 3);
        let text = |board: &Arc<Board>| {
            let mut series = prometheus_client::registry::Registry::default();
            Arc::clone(board).register(&mut series);
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &series).unwrap();
            text
        };
        let all = text(&board);
        for line in [
            "unlatch_discovery_changes_total{source=\"dns:a\"} 1\n",
            "unlatch_discovery_failures_total{source=\"dns:a\"} 1\n",
            "unlatch_discovery_cut_total{source=\"dns:a\"} 3\n",
            "unlatch_discovery_good_age_seconds{source=\"dns:a\"} ",
            "unlatch_discovery_failures_total{source=\"dns:b\"} 1\n",
        ] {
            assert!(all.contains(line), "{line} in {all}");
        }
        assert!(!all.contains("good_age_seconds{source=\"dns:b\"}"), "what never answered has no age");
        let status = board.status();
        assert_eq!((status[0].size, status[0].error.as_deref()), (2, None));
        assert_eq!((status[1].size, status[1].error.as_deref()), (0, Some("no")));
        board.forget("dns:b");
        assert!(!text(&board).contains("dns:b"), "a source that is gone leaves no series");
    }
}
