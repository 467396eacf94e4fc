//! The counts table: rows of `LOAD`, slots of `WORKERS`, names of `NAMES`.
//!
//! Lies over the pinned maps or, in the very same layout, in memory of this process; nobody who holds a table can
//! tell which. Owns what the fields mean on the router's side; does not open or pin anything (`kernel`, `pins`) and
//! does not decide which row an address gets (`rows`). Invariant: this process stores request counts only into
//! its own slot.

use std::hint::spin_loop;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use router_common::limits::{MAX_BACKENDS, MAX_WORKERS, NAME_BYTES};
use router_common::{BackendId, BackendLoad, BackendName, WorkerSlot};
use router_policy::{InFlight, LoadTable, Nanos, Told};

use super::region::{Access, Region};

/// Three arrays, shared or private.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) load: Region,
    workers: Region,
    names: Region,
}

const LOAD_BYTES: usize = MAX_BACKENDS * size_of::<BackendLoad>();
const WORKERS_BYTES: usize = MAX_WORKERS * size_of::<WorkerSlot>();
const NAMES_BYTES: usize = MAX_BACKENDS * size_of::<BackendName>();

/// Looks at a row that one process has for its move, while those below it wait: a few microseconds.
const LOOKS_FOR_EACH_ABOVE: u32 = 100;

/// The three arrays of slots in a row.
const SLOT_ARRAYS: [usize; 3] =
    [offset_of!(BackendLoad, workers), offset_of!(BackendLoad, q_tokens), offset_of!(BackendLoad, c_tokens)];

impl Table {
    /// The table over three maps.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(super) fn over(
        load: BorrowedFd<'_>,
        workers: BorrowedFd<'_>,
        names: BorrowedFd<'_>,
        access: Access,
    ) -> io::Result<Self> {
        Ok(Self {
            load: Region::of_map(load, LOAD_BYTES, access)?,
            workers: Region::of_map(workers, WORKERS_BYTES, access)?,
            names: Region::of_map(names, NAMES_BYTES, access)?,
        })
    }

    /// A table of zeros in this process's memory.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(super) fn private() -> io::Result<Self> {
        Ok(Self {
            load: Region::private(LOAD_BYTES)?,
            workers: Region::private(WORKERS_BYTES)?,
            names: Region::private(NAMES_BYTES)?,
        })
    }

    /// A copy of a row, field by field: values of one row may be of slightly different moments.
    pub(super) fn row(&self, id: BackendId) -> BackendLoad {
        read_row(&self.load, row_offset(id))
    }

    /// Connections that the engine broke so far, and those that are there, as the kernel counts.
    pub(super) fn resets_and_conns(&self, id: BackendId) -> [u64; 2] {
        let fields = [offset_of!(BackendLoad, resets), offset_of!(BackendLoad, conns)];
        fields.map(|field| self.load.u64(row_offset(id) + field).load(Relaxed))
    }

    /// Requests in flight at a row: the sum over live slots.
    pub(super) fn in_flight(&self, id: BackendId) -> u32 {
        self.sum(id, None).requests
    }

    /// What the host of a row's backend last told in band; `None` if it never did.
    fn told(&self, id: BackendId) -> Option<Told> {
        let at = self.load.u64(row_offset(id) + offset_of!(BackendLoad, remote_at_ns)).load(Acquire);
        let [in_flight, ours] = read_remote(&self.load, row_offset(id));
        (at > 0).then_some(Told { in_flight, ours, at: Nanos(at) })
    }

    /// Whether nothing is counted at a row, by the kernel or by any live router.
    pub(super) fn is_quiet(&self, id: BackendId) -> bool {
        let conns = self.load.u64(row_offset(id) + offset_of!(BackendLoad, conns)).load(Relaxed);
        conns == 0 && self.in_flight(id) == 0
    }

    /// Sets a row to zeros. Only for a row that no key leads to.
    pub(super) fn clear_row(&self, id: BackendId) {
        for word in 0..size_of::<BackendLoad>() / 8 {
            self.load.u64(row_offset(id) + 8 * word).store(0, Relaxed);
        }
    }

    /// The sum over live slots, without one.
    pub(super) fn sum(&self, id: BackendId, without: Option<usize>) -> InFlight {
        let mut sum = InFlight::default();
        for slot in 0..MAX_WORKERS {
            if Some(slot) == without || self.cookie(slot) == 0 {
                continue;
            }
            let [requests, q, c] = SLOT_ARRAYS.map(|array| self.cell(id, array, slot).load(Relaxed));
            sum.requests = sum.requests.saturating_add(requests);
            sum.q_tokens += u64::from(q);
            sum.c_tokens += u64::from(c);
        }
        sum
    }

    /// Stores what the process in a slot counts.
    pub(super) fn publish(&self, id: BackendId, slot: usize, own: InFlight) {
        let clamp = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let values = [own.requests, clamp(own.q_tokens), clamp(own.c_tokens)];
        for (array, value) in SLOT_ARRAYS.into_iter().zip(values) {
            self.cell(id, array, slot).store(value, Relaxed);
        }
    }

    /// Whether the process in a slot, which has just published a choice, gives way to others that counted at the row
    /// since their requests there were `before`. The highest slot goes at once; each below gives those above it time
    /// to go first, and stays if they did.
    pub(super) fn gives_way(&self, id: BackendId, slot: usize, before: u32) -> bool {
        // Between storing one's own count and reading the others': of two that choose at once the later sees the
        // earlier, and perhaps both see each other.
        fence(SeqCst);
        let has_more = || self.sum(id, Some(slot)).requests > before;
        if !has_more() {
            return false;
        }
        let above = (self.live_slots() >> slot >> 1).count_ones();
        (0..above * LOOKS_FOR_EACH_ABOVE).all(|_| {
            spin_loop();
            has_more()
        })
    }

    fn cell(&self, id: BackendId, array: usize, slot: usize) -> &AtomicU32 {
        self.load.u32(row_offset(id) + array + 4 * slot)
    }
}

/// Slots: which processes count.
impl Table {
    /// Who is in a slot; `cookie` 0 = nobody.
    pub(super) fn worker(&self, slot: usize) -> WorkerSlot {
        let base = slot_offset(slot);
        WorkerSlot {
            cookie: self.cookie(slot),
            pid: self.workers.u32(base + offset_of!(WorkerSlot, pid)).load(Relaxed),
            reserved: 0,
            started_ns: self.workers.u64(base + offset_of!(WorkerSlot, started_ns)).load(Relaxed),
        }
    }

    /// Takes a free slot for the process whose anchor has this cookie, and empties it in all rows; `None` when
    /// all are taken.
    pub(super) fn claim(&self, cookie: u64, pid: u32, now_ns: u64) -> Option<usize> {
        (0..MAX_WORKERS).find(|&slot| self.claim_slot(slot, cookie, pid, now_ns))
    }

    /// Takes a slot if it is free, as [`Self::claim`] does; whether it was.
    pub(super) fn claim_slot(&self, slot: usize, cookie: u64, pid: u32, now_ns: u64) -> bool {
        assert_ne!(cookie, 0, "a cookie of 0 means a free slot");
        let base = slot_offset(slot);
        let owner = self.workers.u64(base + offset_of!(WorkerSlot, cookie));
        if owner.compare_exchange(0, cookie, AcqRel, Relaxed).is_err() {
            return false;
        }
        self.empty(slot);
        self.workers.u32(base + offset_of!(WorkerSlot, pid)).store(pid, Relaxed);
        self.workers.u64(base + offset_of!(WorkerSlot, started_ns)).store(now_ns, Release);
        true
    }

    /// Gives a slot back: first its values, last the slot, so that nobody claims it half cleared.
    pub(super) fn free(&self, slot: usize) {
        self.empty(slot);
        let base = slot_offset(slot);
        self.workers.u32(base + offset_of!(WorkerSlot, pid)).store(0, Relaxed);
        self.workers.u64(base + offset_of!(WorkerSlot, cookie)).store(0, Release);
    }

    /// Zeroes a slot's counts and takes its reference from every row. The slot stays taken.
    fn empty(&self, slot: usize) {
        for id in ids() {
            for array in SLOT_ARRAYS {
                self.cell(id, array, slot).store(0, Relaxed);
            }
            self.drop_ref(id, slot);
        }
    }

    /// The owner of a slot; 0 = nobody.
    pub(super) fn cookie(&self, slot: usize) -> u64 {
        self.workers.u64(slot_offset(slot) + offset_of!(WorkerSlot, cookie)).load(Acquire)
    }

    /// One bit a live slot.
    pub(super) fn live_slots(&self) -> u32 {
        (0..MAX_WORKERS).filter(|&slot| self.cookie(slot) != 0).fold(0, |mask, slot| mask | 1 << slot)
    }
}

/// Names: what a row stands for, and who uses it.
impl Table {
    /// The URL of a row; `None` if the row was never given away.
    pub(super) fn name(&self, id: BackendId) -> Option<String> {
        let base = name_offset(id);
        let len = self.names.u32(base + offset_of!(BackendName, len)).load(Acquire) as usize;
        if len == 0 {
            return None;
        }
        let url = base + offset_of!(BackendName, url);
        let bytes: Vec<u8> = (0..NAME_BYTES / 4)
            .flat_map(|word| self.names.u32(url + 4 * word).load(Relaxed).to_ne_bytes())
            .take(len)
            .collect();
        Some(String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).collect())
    }

    /// Whether the row was ever given away.
    pub(super) fn is_named(&self, id: BackendId) -> bool {
        self.names.u32(name_offset(id) + offset_of!(BackendName, len)).load(Acquire) != 0
    }

    /// Names a row; a name that is too long is cut.
    pub(super) fn set_name(&self, id: BackendId, url: &str) {
        let bytes = &url.as_bytes()[..url.floor_char_boundary(NAME_BYTES)];
        let base = name_offset(id);
        let mut padded = [0; NAME_BYTES];
        padded[..bytes.len()].copy_from_slice(bytes);
        for (word, chunk) in padded.as_chunks::<4>().0.iter().enumerate() {
            let cell = self.names.u32(base + offset_of!(BackendName, url) + 4 * word);
            cell.store(u32::from_ne_bytes(*chunk), Relaxed);
        }
        self.names.u32(base + offset_of!(BackendName, len)).store(bytes.len() as u32, Release);
    }

    /// The live slots that use a row, one bit each.
    pub(super) fn refs(&self, id: BackendId) -> u32 {
        self.refs_cell(id).load(Acquire) & self.live_slots()
    }

    pub(super) fn add_ref(&self, id: BackendId, slot: usize) {
        self.refs_cell(id).fetch_or(1 << slot, AcqRel);
    }

    pub(super) fn drop_ref(&self, id: BackendId, slot: usize) {
        self.refs_cell(id).fetch_and(!(1 << slot), AcqRel);
    }

    fn refs_cell(&self, id: BackendId) -> &AtomicU32 {
        self.names.u32(name_offset(id) + offset_of!(BackendName, refs))
    }
}

/// A table as one process of it sees it: its slot, and the others.
#[derive(Debug)]
pub(super) struct SharedTable {
    pub(super) table: Table,
    pub(super) slot: usize,
}

impl LoadTable for SharedTable {
    fn others(&self, id: BackendId) -> InFlight {
        self.table.sum(id, Some(self.slot))
    }

    fn gives_way(&self, id: BackendId, before: u32) -> bool {
        self.table.gives_way(id, self.slot, before)
    }

    fn told(&self, id: BackendId) -> Option<Told> {
        self.table.told(id)
    }

    fn publish(&self, id: BackendId, own: InFlight) {
        self.table.publish(id, self.slot, own);
    }
}

impl Drop for SharedTable {
    fn drop(&mut self) {
        self.table.free(self.slot);
    }
}

/// A copy of the row that lies at an offset of a region, field by field.
pub(super) fn read_row(region: &Region, base: usize) -> BackendLoad {
    let wide = |field: usize| region.u64(base + field).load(Relaxed);
    let [remote_in_flight, remote_ours] = read_remote(region, base);
    let slots = |field: usize| std::array::from_fn(|n| region.u32(base + field + 4 * n).load(Relaxed));
    BackendLoad {
        conns: wide(offset_of!(BackendLoad, conns)),
        awaiting: wide(offset_of!(BackendLoad, awaiting)),
        streaming: wide(offset_of!(BackendLoad, streaming)),
        opened: wide(offset_of!(BackendLoad, opened)),
        closed: wide(offset_of!(BackendLoad, closed)),
        resets: wide(offset_of!(BackendLoad, resets)),
        tx_bytes: wide(offset_of!(BackendLoad, tx_bytes)),
        rx_bytes: wide(offset_of!(BackendLoad, rx_bytes)),
        ttfb_ns: wide(offset_of!(BackendLoad, ttfb_ns)),
        ttfb_count: wide(offset_of!(BackendLoad, ttfb_count)),
        last_rx_ns: wide(offset_of!(BackendLoad, last_rx_ns)),
        last_reset_ns: wide(offset_of!(BackendLoad, last_reset_ns)),
        foreign_conns: wide(offset_of!(BackendLoad, foreign_conns)),
        foreign_awaiting: wide(offset_of!(BackendLoad, foreign_awaiting)),
        foreign_streaming: wide(offset_of!(BackendLoad, foreign_streaming)),
        unknown: wide(offset_of!(BackendLoad, unknown)),
        workers: slots(offset_of!(BackendLoad, workers)),
        q_tokens: slots(offset_of!(BackendLoad, q_tokens)),
        c_tokens: slots(offset_of!(BackendLoad, c_tokens)),
        remote_in_flight,
        remote_ours,
        remote_at_ns: wide(offset_of!(BackendLoad, remote_at_ns)),
        retransmits: wide(offset_of!(BackendLoad, retransmits)),
        last_timeout_ns: wide(offset_of!(BackendLoad, last_timeout_ns)),
        zero_windows: wide(offset_of!(BackendLoad, zero_windows)),
        last_zero_window_ns: wide(offset_of!(BackendLoad, last_zero_window_ns)),
        asked_ns: wide(offset_of!(BackendLoad, asked_ns)),
        ..BackendLoad::ZERO
    }
}

/// `remote_in_flight` and `remote_ours`, which are written at once.
fn read_remote(region: &Region, base: usize) -> [u32; 2] {
    let pair = region.u64(base + offset_of!(BackendLoad, remote_in_flight)).load(Relaxed);
    // The programs' target is little-endian.
    [pair as u32, (pair >> 32) as u32]
}

/// Every row, in order.
pub(super) fn ids() -> impl Iterator<Item = BackendId> {
    (0..MAX_BACKENDS).filter_map(BackendId::new)
}

fn row_offset(id: BackendId) -> usize {
    id.index() * size_of::<BackendLoad>()
}

fn slot_offset(slot: usize) -> usize {
    slot * size_of::<WorkerSlot>()
}

fn name_offset(id: BackendId) -> usize {
    id.index() * size_of::<BackendName>()
}

#[cfg(test)]
mod tests {
    use super::{SharedTable, Table};
    use router_common::BackendId;
    use router_common::limits::{MAX_WORKERS, NAME_BYTES};
    use router_policy::{InFlight, LoadTable};

    fn id(index: usize) -> BackendId {
        BackendId::new(index).unwrap()
    }

    fn in_flight(requests: u32, q_tokens: u64, c_tokens: u64) -> InFlight {
        InFlight { requests, q_tokens, c_tokens }
    }

    #[test]
    fn others_are_the_live_slots_without_ones_own() {
        let table = Table::private().unwrap();
        for cookie in 1..=3 {
            table.claim(cookie, 100, 0).unwrap();
        }
        let mut seen = SharedTable { table, slot: 2 };
        seen.publish(id(7), in_flight(5, 50, 500));
        seen.slot = 1;
        seen.publish(id(7), in_flight(2, 20, 200));
        seen.slot = 0;
        seen.publish(id(7), in_flight(1, 10, 100));
        assert_eq!(seen.others(id(7)), in_flight(7, 70, 700));
        assert_eq!(seen.others(id(8)), InFlight::default());
        assert_eq!(seen.table.in_flight(id(7)), 8);
        // A slot nobody is in counts nothing, whatever was left in it.
        seen.slot = 9;
        seen.publish(id(7), in_flight(1000, 0, 0));
        assert_eq!(seen.table.in_flight(id(7)), 8);
    }

    #[test]
    fn values_beyond_the_fields_are_clamped() {
        let table = Table::private().unwrap();
        let slot = table.claim(1, 1, 0).unwrap();
        let seen = SharedTable { table, slot };
        seen.publish(id(0), in_flight(1, u64::MAX, 1 << 40));
        let row = seen.table.row(id(0));
        assert_eq!((row.workers[slot], row.q_tokens[slot], row.c_tokens[slot]), (1, u32::MAX, u32::MAX));
    }

    #[test]
    fn every_slot_is_claimed_once_and_emptied_first() {
        let table = Table::private().unwrap();
        let left = SharedTable { table, slot: 3 };
        left.publish(id(1), in_flight(9, 9, 9));
        left.table.add_ref(id(1), 3);
        let mut slots: Vec<_> = (1..=MAX_WORKERS as u64).filter_map(|c| left.table.claim(c, 1, 0)).collect();
        slots.dedup();
        assert_eq!(slots.len(), MAX_WORKERS);
        assert_eq!(left.table.claim(99, 1, 0), None, "the seventeenth must find no slot");
        assert_eq!(left.table.in_flight(id(1)), 0);
        assert_eq!(left.table.refs(id(1)), 0);
    }

    #[test]
    fn names_are_cut_at_a_character_and_shed_control_characters() {
        let table = Table::private().unwrap();
        assert_eq!(table.name(id(0)), None);
        table.set_name(id(0), "http://a\u{1b}[31m:1");
        assert_eq!(table.name(id(0)).unwrap(), "http://a[31m:1");
        let long = format!("{}é", "x".repeat(NAME_BYTES - 1));
        table.set_name(id(0), &long);
        assert_eq!(table.name(id(0)).unwrap(), "x".repeat(NAME_BYTES - 1));
        table.set_name(id(0), "http://b:2");
        assert_eq!(table.name(id(0)).unwrap(), "http://b:2");
    }
}
