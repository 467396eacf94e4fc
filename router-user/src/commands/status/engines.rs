//! The share of the agent in the status: what all clients have at the engines of this host.

use std::fmt::Write as _;

use router_policy::Nanos;
use serde::Serialize;

use crate::account::local::LocalRow;
use crate::account::mean_ttfb_seconds;
use crate::account::view::Counts;
use crate::clock;

/// An engine's port.
#[derive(Clone, Debug, Serialize)]
pub(in super::super) struct Engine {
    pub(in super::super) port: u16,
    /// None without the programs that follow requests.
    pub(in super::super) in_flight: Option<u64>,
    awaiting: Option<u64>,
    streaming: Option<u64>,
    unknown: Option<u64>,
    conns: u64,
    opened: u64,
    closed: u64,
    resets: u64,
    ttfb_seconds: Option<f64>,
    /// Since the engine's last byte; none before the first.
    silent_seconds: Option<f64>,
}

impl Engine {
    pub(in super::super) fn new(row: &LocalRow, counts: Counts) -> Self {
        let load = &row.load;
        let followed = |n: u64| counts.requests.then_some(n);
        Self {
            port: row.port,
            in_flight: followed(row.in_flight()),
            awaiting: followed(load.awaiting),
            streaming: followed(load.streaming),
            unknown: followed(load.unknown),
            conns: load.conns,
            opened: load.opened,
            closed: load.closed,
            resets: load.resets,
            ttfb_seconds: mean_ttfb_seconds(load).filter(|_| counts.requests),
            silent_seconds: (load.last_rx_ns > 0).then(|| clock::now().seconds_since(Nanos(load.last_rx_ns))),
        }
    }
}

/// A line a port, with the names of the columns before; nothing if there is none.
pub(super) fn table(engines: &[Engine]) -> String {
    if engines.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "{:<45} {:>9} {:>8} {:>9} {:>6} {:>8} {:>8} {:>7}\n",
        "engines of this host, all clients",
        "in flight",
        "awaiting",
        "streaming",
        "conns",
        "opened",
        "closed",
        "resets"
    );
    for e in engines {
        let gauge = |gauge: Option<u64>| match gauge {
            None => "-".to_owned(),
            Some(n) if e.unknown.is_some_and(|unknown| unknown > 0) => format!("{n}+?"),
            Some(n) => n.to_string(),
        };
        let _ = writeln!(
            text,
            "     {:<40} {:>9} {:>8} {:>9} {:>6} {:>8} {:>8} {:>7}",
            format!("port {}", e.port),
            gauge(e.in_flight),
            gauge(e.awaiting),
            gauge(e.streaming),
            e.conns,
            e.opened,
            e.closed,
            e.resets
        );
    }
    text
}
