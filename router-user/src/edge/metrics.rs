//! `unlatch_edge_packets_total{verdict}`, read from the program's own counters at each scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::maps::Counters;

/// The counters as a metric. They outlive the router; a scrape that cannot read them has none.
pub struct EdgePackets(pub(super) Counters);

impl fmt::Debug for EdgePackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EdgePackets")
    }
}

impl Collector for EdgePackets {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Ok(counts) = self.0.read() else { return Ok(()) };
        let help = "Packets the edge guard saw, by what became of them";
        let mut metric =
            encoder.encode_descriptor("unlatch_edge_packets", help, None, MetricType::Counter)?;
        for (verdict, count) in counts {
            ConstCounter::new(count).encode(metric.encode_family(&[("verdict", verdict.as_str())])?)?;
        }
        Ok(())
    }
}
