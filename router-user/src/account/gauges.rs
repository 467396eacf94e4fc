//! The gauges of a row that the kernel's programs keep, to be compared with what is, and put right.

use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering::Relaxed;

use router_common::BackendLoad;
use router_common::phase::Gauge;

use super::maps::read_row;
use super::region::Region;

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

/// The gauges of a row, and everything else that changes with an event on it.
pub(super) fn read(rows: &Region, row: usize) -> (Gauges, [u64; 6]) {
    let load = read_row(rows, row * size_of::<BackendLoad>());
    let counters = [load.opened, load.closed, load.resets, load.tx_bytes, load.rx_bytes, load.ttfb_count];
    let gauges = Gauges {
        conns: load.conns,
        awaiting: load.awaiting,
        streaming: load.streaming,
        unknown: load.unknown,
        foreign_conns: load.foreign_conns,
        foreign_awaiting: load.foreign_awaiting,
        foreign_streaming: load.foreign_streaming,
    };
    (gauges, counters)
}

/// Adds what is missing to each gauge, and takes away what is too much. Opened connections less closed ones are
/// afterwards, too, those that are open.
pub(super) fn correct(rows: &Region, row: usize, found: Gauges, right: Gauges) {
    let put = |field: usize, found: u64, right: u64| {
        let cell = rows.u64(row * size_of::<BackendLoad>() + field);
        cell.fetch_add(right.wrapping_sub(found), Relaxed);
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

#[cfg(test)]
mod tests {
    use super::{Gauges, correct, read};
    use crate::account::maps::read_row;
    use crate::account::region::Region;
    use router_common::BackendLoad;
    use router_common::phase::Gauge;

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
        let rows = Region::private(4 * size_of::<BackendLoad>()).unwrap();
        let right = Gauges { conns: 2, awaiting: 1, foreign_conns: 1, ..Gauges::default() };
        correct(&rows, 2, Gauges::default(), right);
        assert_eq!(read(&rows, 2).0, right);
        correct(&rows, 2, right, Gauges { conns: 1, ..Gauges::default() });
        let row = read_row(&rows, 2 * size_of::<BackendLoad>());
        assert_eq!([row.conns, row.awaiting, row.foreign_conns, row.opened, row.closed], [1, 0, 0, 2, 1]);
        assert_eq!(read(&rows, 1), read(&rows, 3), "its neighbours are as they were");
    }
}
