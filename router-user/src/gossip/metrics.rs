//! What was told, heard and lost.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::peers::Peers;

/// Up to 20 ms is what is wanted; beyond, how bad it is.
const DELAY_SECONDS: [f64; 10] = [2.5e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.25];

/// Why a placement did not reach a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// More was placed at once than may wait here.
    QueueFull,
    /// The other process does not take its datagrams.
    SocketFull,
    /// The datagram could not be sent.
    Failed,
    /// No datagram of ours: another version, another key, damaged.
    Unreadable,
    /// This process has no such backend.
    UnknownBackend,
}

impl Lost {
    const ALL: [Self; 5] =
        [Self::QueueFull, Self::SocketFull, Self::Failed, Self::Unreadable, Self::UnknownBackend];

    const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::SocketFull => "socket_full",
            Self::Failed => "failed",
            Self::Unreadable => "unreadable",
            Self::UnknownBackend => "unknown_backend",
        }
    }
}

/// Counters of one process.
#[derive(Debug)]
pub(super) struct Metrics {
    /// Placements sent, once a process they were sent to.
    pub(super) told: Counter,
    /// Placements that others sent and that were taken.
    pub(super) heard: Counter,
    /// From the placement there until it was taken here.
    pub(super) delay: Histogram,
    lost: [Counter; Lost::ALL.len()],
}

impl Metrics {
    pub(super) fn new(series: &mut Registry, peers: &Peers) -> Self {
        let lost = Family::<[(&'static str, &'static str); 1], Counter>::default();
        let metrics = Self {
            told: Counter::default(),
            heard: Counter::default(),
            delay: Histogram::new(DELAY_SECONDS),
            lost: Lost::ALL.map(|why| lost.get_or_create_owned(&[("reason", why.as_str())])),
        };
        let help = "Router processes of this host that this one tells its placements";
        series.register("unlatch_gossip_peers", help, peers.shown());
        let help = "Placements sent to other router processes, one each";
        series.register("unlatch_gossip_told", help, metrics.told.clone());
        series.register("unlatch_gossip_heard", "Placements of other processes taken", metrics.heard.clone());
        let help = "Placements, or datagrams that cannot be read, that went no further";
        series.register("unlatch_gossip_lost", help, lost);
        let help = "From a placement in another process until this one knew";
        series.register("unlatch_gossip_delay_seconds", help, metrics.delay.clone());
        metrics
    }

    pub(super) fn lost(&self, why: Lost, placements: u64) {
        self.lost[why as usize].inc_by(placements);
    }
}

#[cfg(test)]
impl Metrics {
    /// What was lost for a reason.
    pub(super) fn of(&self, why: Lost) -> u64 {
        self.lost[why as usize].get()
    }
}
