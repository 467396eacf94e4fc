//! The gauges of a row that the kernel's programs keep, to be compared with what is, and put right.

use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

use router_common::phase::Gauge;
use router_common::{BackendId, BackendLoad};

use super::maps::{Table, row_offset};

/// The gauges of a row that the kernel's programs keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gauges {
    pub(super) conns: u64,
    pub(super) awaiting: u64,
    pub(super) streaming: u64,
    pub(super) unknown: u64,
    pub(super) foreign_conns: u64,
    pub(super) foreign_awaiting: u64,
    pub(super) foreign_streaming: u64,
}

impl Gauges {
    /// One more connection.
    pub(super) fn add(&mut self, is_foreign: bool, gauge: Gauge) {
        self.conns += 1;
        self.foreign_conns += u64::from(is_foreign);
        match gauge {
            Gauge::None => {}
            Gauge::Awaiting => {
                self.awaiting += 1;
                self.foreign_awaiting += u64::from(is_foreign);
            }
            Gauge::Streaming => {
                self.streaming += 1;
                self.foreign_streaming += u64::from(is_foreign);
            }
            Gauge::Unknown => self.unknown += 1,
        }
    }
}

/// What the kernel's programs keep, put right.
impl Table {
    pub(super) fn gauges(&self, id: BackendId) -> Gauges {
        let load = self.row(id);
        Gauges {
            conns: load.conns,
            awaiting: load.awaiting,
            streaming: load.streaming,
            unknown: load.unknown,
            foreign_conns: load.foreign_conns,
            foreign_awaiting: load.foreign_awaiting,
            foreign_streaming: load.foreign_streaming,
        }
    }

    /// Everything that changes with an event on a row.
    pub(super) fn events(&self, id: BackendId) -> (Gauges, [u64; 6]) {
        let load = self.row(id);
        let counters = [load.opened, load.closed, load.resets, load.tx_bytes, load.rx_bytes, load.ttfb_count];
        (self.gauges(id), counters)
    }

    /// Adds what is missing to each gauge, and takes away what is too much. Opened connections less closed ones are
    /// afterwards, too, those that are open.
    pub(super) fn correct(&self, id: BackendId, found: Gauges, right: Gauges) {
        let put = |field: usize, found: u64, right: u64| {
            self.load.u64(row_offset(id) + field).fetch_add(right.wrapping_sub(found), Relaxed);
        };
        put(offset_of!(BackendLoad, conns), found.conns, right.conns);
        put(offset_of!(BackendLoad, awaiting), found.awaiting, right.awaiting);
        put(offset_of!(BackendLoad, streaming), found.streaming, right.streaming);
        put(offset_of!(BackendLoad, unknown), found.unknown, right.unknown);
        put(offset_of!(BackendLoad, foreign_conns), found.foreign_conns, right.foreign_conns);
        put(offset_of!(BackendLoad, foreign_awaiting), found.foreign_awaiting, right.foreign_awaiting);
        put(offset_of!(BackendLoad, foreign_streaming), found.foreign_streaming, right.foreign_streaming);
        if right.conns < found.conns {
            put(offset_of!(BackendLoad, closed), right.conns, found.conns);
        } else {
            put(offset_of!(BackendLoad, opened), found.conns, right.conns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Gauges;
    use crate::account::maps::Table;
    use router_common::BackendId;
    use router_common::phase::Gauge;

    fn id(index: usize) -> BackendId {
        BackendId::new(index).unwrap()
    }

    #[test]
    fn a_socket_adds_to_the_gauges_of_its_role_and_phase() {
        let mut row = Gauges::default();
        row.add(true, Gauge::Awaiting);
        row.add(false, Gauge::Streaming);
        row.add(true, Gauge::Unknown);
        row.add(false, Gauge::None);
        let expected = Gauges {
            conns: 4,
            foreign_conns: 2,
            awaiting: 1,
            foreign_awaiting: 1,
            streaming: 1,
            foreign_streaming: 0,
            unknown: 1,
        };
        assert_eq!(row, expected);
    }

    #[test]
    fn a_correction_adds_what_is_missing_and_closes_what_is_too_much() {
        let table = Table::private().unwrap();
        let found = table.gauges(id(3));
        let right = Gauges { conns: 2, awaiting: 1, foreign_conns: 1, ..Gauges::default() };
        table.correct(id(3), found, right);
        assert_eq!(table.gauges(id(3)), right);
        table.correct(id(3), right, Gauges { conns: 1, ..Gauges::default() });
        let row = table.row(id(3));
        assert_eq!([row.conns, row.awaiting, row.foreign_conns, row.opened, row.closed], [1, 0, 0, 2, 1]);
        assert_eq!(table.row(id(2)), table.row(id(4)), "its neighbours are as they were");
    }
}
