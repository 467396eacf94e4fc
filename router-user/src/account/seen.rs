//! What the kernel's fields of a row say, and when they say nothing.
//!
//! Unknown is never a zero: without the programs that follow requests there are no phases, and while the requests of
//! some connection cannot be told (TLS, HTTP/2, a tunnel), sums over all of them mean nothing.

use router_common::BackendLoad;

/// A row with what the attached programs fill in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRow {
    /// The row.
    pub load: BackendLoad,
    /// Whether requests are followed, not connections alone.
    pub has_phases: bool,
}

impl KernelRow {
    /// Requests sent whose answer has not begun, on connections whose requests can be told.
    #[must_use]
    pub fn awaiting(&self) -> Option<u64> {
        self.has_phases.then_some(self.load.awaiting)
    }

    /// Answers that have begun and not ended, on such connections.
    #[must_use]
    pub fn streaming(&self) -> Option<u64> {
        self.has_phases.then_some(self.load.streaming)
    }

    /// Connections whose requests cannot be told.
    #[must_use]
    pub fn unknown(&self) -> Option<u64> {
        self.has_phases.then_some(self.load.unknown)
    }

    /// Requests of other processes of this host than routers, on such connections.
    #[must_use]
    pub fn foreign(&self) -> Option<u64> {
        let foreign = self.load.foreign_awaiting.saturating_add(self.load.foreign_streaming);
        self.has_phases.then_some(foreign)
    }

    /// Mean time from request to first byte since the row was made, seconds; `None` before the first answer.
    #[must_use]
    pub fn ttfb_seconds(&self) -> Option<f64> {
        mean_ttfb_seconds(&self.load).filter(|_| self.has_phases)
    }

    /// The routers' requests as the kernel sees them, without `in_flight` that they count themselves: 0 when both agree.
    /// For a moment they may not: a request is counted before it is sent, and the kernel sees an end first.
    #[must_use]
    pub fn drift(&self, in_flight: u64) -> Option<i64> {
        if !self.has_phases || self.load.unknown > 0 {
            return None;
        }
        let all = self.load.awaiting.saturating_add(self.load.streaming);
        let routers = all.saturating_sub(self.foreign().unwrap_or_default());
        i64::try_from(routers).ok()?.checked_sub(i64::try_from(in_flight).ok()?)
    }
}

/// Mean time from request to first byte, seconds; `None` before the first answer.
#[must_use]
pub fn mean_ttfb_seconds(load: &BackendLoad) -> Option<f64> {
    (load.ttfb_count > 0).then(|| load.ttfb_ns as f64 / load.ttfb_count as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::KernelRow;
    use router_common::BackendLoad;

    const LOAD: BackendLoad = BackendLoad {
        awaiting: 3,
        streaming: 4,
        foreign_awaiting: 1,
        foreign_streaming: 1,
        ttfb_ns: 3_000_000_000,
        ttfb_count: 2,
        ..BackendLoad::ZERO
    };

    #[test]
    fn drift_is_the_routers_share_beside_their_own_count() {
        let row = KernelRow { load: LOAD, has_phases: true };
        assert_eq!((row.drift(5), row.drift(2), row.drift(9)), (Some(0), Some(3), Some(-4)));
        assert_eq!((row.foreign(), row.ttfb_seconds()), (Some(2), Some(1.5)));
    }

    #[test]
    fn what_cannot_be_known_is_no_number() {
        let row = KernelRow { load: LOAD, has_phases: false };
        assert_eq!((row.awaiting(), row.streaming(), row.unknown(), row.foreign()), (None, None, None, None));
        assert_eq!((row.drift(5), row.ttfb_seconds()), (None, None));
        let load = BackendLoad { unknown: 1, ttfb_count: 0, ..LOAD };
        let hidden = KernelRow { load, has_phases: true };
        assert_eq!((hidden.drift(5), hidden.ttfb_seconds(), hidden.unknown()), (None, None, Some(1)));
        let torn = BackendLoad { awaiting: u64::MAX, streaming: u64::MAX, ..LOAD };
        assert_eq!(KernelRow { load: torn, has_phases: true }.drift(0), None, "a map may hold anything");
    }
}
