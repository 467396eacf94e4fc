//! Which other processes listen.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::metrics::gauge::Gauge;

use super::place::MEMBERS;

const _: () = assert!(MEMBERS <= u32::BITS as usize);

/// The numbers of the others that listen, as far as it is known: who greets or tells does, who cannot be reached does
/// not.
#[derive(Debug, Default)]
pub(super) struct Peers {
    alive: AtomicU32,
    shown: Gauge,
}

impl Peers {
    /// How many there are, for the metrics.
    pub(super) fn shown(&self) -> Gauge {
        self.shown.clone()
    }

    /// Whether there is anybody to tell.
    pub(super) fn any(&self) -> bool {
        self.alive.load(Relaxed) != 0
    }

    pub(super) fn is_alive(&self, number: usize) -> bool {
        self.alive.load(Relaxed) & (1 << number) != 0
    }

    pub(super) fn listens(&self, number: usize, listens: bool) {
        let bit = 1 << number;
        let before =
            if listens { self.alive.fetch_or(bit, Relaxed) } else { self.alive.fetch_and(!bit, Relaxed) };
        if (before & bit != 0) != listens {
            self.shown.set(i64::from(self.alive.load(Relaxed).count_ones()));
        }
    }
}
