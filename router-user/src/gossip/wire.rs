//! What a datagram holds: a header, then placements.
//!
//! ```text
//! header     magic 4 | version u16 | placements u16 | tag u64: hash of all else, with the shared key
//! placement  address 16 | port u16 | blocks u16 | placed at u64 | hashes 16 each
//! ```
//! Numbers are little endian. A datagram without placements is a greeting. Pure: bytes in, bytes out. Invariant: what
//! [`read`] lets through is whole, within the bounds, and as a process with our key and of our version wrote it (so its
//! hashes are true chains, which the index relies on); no bytes make it panic, or allocate more than their length.

use router_common::BackendAddr;
use router_policy::Nanos;
use router_policy::prefix::BlockHash;
use xxhash_rust::xxh3::xxh3_64_with_secret;

use super::place::Key;

const MAGIC: [u8; 4] = *b"ulgs";
/// To be raised with this format and with the rule by which prompts become hashes.
const VERSION: u16 = 1;
const HEADER: usize = 16;
const PLACEMENT: usize = 28;
const HASH: usize = 16;

/// Bytes of a datagram at most.
pub(super) const DATAGRAM_MAX: usize = 64 << 10;

/// Blocks told of one prompt at most: a megabyte of text. What lies beyond is not told.
pub(super) const BLOCKS_MAX: usize = 4000;

const _: () = assert!(HEADER + PLACEMENT + HASH * BLOCKS_MAX <= DATAGRAM_MAX);
const _: () = assert!(DATAGRAM_MAX <= u16::MAX as usize + 1, "so neither blocks nor placements overflow");

/// Why a datagram was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// No such datagram is written.
    Malformed,
    /// Another version of the program wrote it.
    OtherVersion,
    /// Another key made it, or it was changed since.
    WrongTag,
}

/// One placement, as it lies in a datagram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Placement<'a> {
    /// Where it went; indexes of rows mean nothing to others.
    pub(super) addr: BackendAddr,
    /// When, by the host's one monotonic clock.
    pub(super) at: Nanos,
    hashes: &'a [[u8; HASH]],
}

impl Placement<'_> {
    /// The prompt's blocks, in order.
    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = BlockHash> {
        self.hashes.iter().map(|hash| BlockHash::from_le_bytes(*hash))
    }
}

/// Reads a datagram of a process with this key.
pub(super) fn read<'a>(datagram: &'a [u8], key: &Key) -> Result<Vec<Placement<'a>>, Refused> {
    let mut bytes = Bytes(datagram);
    if datagram.len() > DATAGRAM_MAX || bytes.take()? != MAGIC {
        return Err(Refused::Malformed);
    }
    if u16::from_le_bytes(bytes.take()?) != VERSION {
        return Err(Refused::OtherVersion);
    }
    let count = u16::from_le_bytes(bytes.take()?);
    if bytes.take()? != tag(count, bytes.0, key) {
        return Err(Refused::WrongTag);
    }
    let placements: Vec<_> = (0..count).map_while(|_| bytes.placement().ok()).collect();
    if placements.len() == usize::from(count) && bytes.0.is_empty() {
        Ok(placements)
    } else {
        Err(Refused::Malformed)
    }
}

/// Magic and version are the reader's own.
fn tag(count: u16, placements: &[u8], key: &Key) -> [u8; 8] {
    (xxh3_64_with_secret(placements, &key.0) ^ u64::from(count)).to_le_bytes()
}

/// What was not read yet.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Refused::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn placement(&mut self) -> Result<Placement<'a>, Refused> {
        let (octets, port) = (self.take()?, u16::from_le_bytes(self.take()?));
        let blocks = usize::from(u16::from_le_bytes(self.take()?));
        let at = Nanos(u64::from_le_bytes(self.take()?));
        if !(1..=BLOCKS_MAX).contains(&blocks) {
            return Err(Refused::Malformed);
        }
        let (hashes, rest) = self.0.split_at_checked(HASH * blocks).ok_or(Refused::Malformed)?;
        self.0 = rest;
        Ok(Placement { addr: BackendAddr::from_octets(octets, port), at, hashes: hashes.as_chunks().0 })
    }
}

/// A datagram being written.
#[derive(Debug)]
pub(super) struct Datagram {
    bytes: Vec<u8>,
    count: u16,
}

impl Datagram {
    /// A greeting, until something is added.
    pub(super) fn new() -> Self {
        let mut bytes = Vec::with_capacity(DATAGRAM_MAX);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.resize(HEADER, 0);
        Self { bytes, count: 0 }
    }

    /// Adds a placement of at most [`BLOCKS_MAX`] blocks; false, and nothing is added, if it does not fit any more.
    pub(super) fn add(&mut self, addr: BackendAddr, at: Nanos, blocks: &[BlockHash]) -> bool {
        let (Ok(port), Ok(len)) = (u16::try_from(addr.port), u16::try_from(blocks.len())) else {
            return false;
        };
        if self.bytes.len() + PLACEMENT + HASH * blocks.len() > DATAGRAM_MAX {
            return false;
        }
        self.bytes.extend(addr.octets());
        self.bytes.extend(port.to_le_bytes());
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(at.0.to_le_bytes());
        self.bytes.extend(blocks.iter().flat_map(|hash| hash.to_le_bytes()));
        self.count += 1;
        true
    }

    /// Takes all placements out again.
    pub(super) fn clear(&mut self) {
        self.bytes.truncate(HEADER);
        self.count = 0;
    }

    /// How many placements it holds.
    pub(super) const fn count(&self) -> u16 {
        self.count
    }

    /// The datagram as it is, for processes with this key. O(bytes).
    pub(super) fn sealed(&mut self, key: &Key) -> &[u8] {
        let tag = tag(self.count, &self.bytes[HEADER..], key);
        self.bytes[6..8].copy_from_slice(&self.count.to_le_bytes());
        self.bytes[8..HEADER].copy_from_slice(&tag);
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::place::KEY_BYTES;
    use super::*;

    const KEY: Key = Key([7; KEY_BYTES]);

    type Told = ([u8; 16], u16, u64, Vec<u128>);

    fn told() -> impl Strategy<Value = Told> {
        (any::<[u8; 16]>(), any::<u16>(), any::<u64>(), prop::collection::vec(any::<u128>(), 1..40))
    }

    fn datagram(all: &[Told]) -> Vec<u8> {
        let mut datagram = Datagram::new();
        for (octets, port, at, blocks) in all {
            assert!(datagram.add(BackendAddr::from_octets(*octets, *port), Nanos(*at), blocks));
        }
        datagram.sealed(&KEY).to_vec()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read(all in prop::collection::vec(told(), 0..20)) {
            let datagram = datagram(&all);
            let read = read(&datagram, &KEY).unwrap();
            let read: Vec<Told> = read.iter()
                .map(|p| (p.addr.octets(), p.addr.port as u16, p.at.0, p.blocks().collect()))
                .collect();
            prop_assert_eq!(read, all);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(read(&bytes, &KEY).is_err(), "no chance makes the magic number");
        }

        /// Rightly sealed, so that the reader of placements meets them.
        #[test]
        fn sealed_nonsense_is_read_whole_or_not_at_all(
            all in prop::collection::vec(told(), 0..4),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
            more in prop::collection::vec(any::<u8>(), 0..60),
            cuts in any::<bool>(),
            count in 0_u16..6,
        ) {
            let mut bytes = datagram(&all).split_off(HEADER);
            if !bytes.is_empty() {
                changes.iter().for_each(|(at, to)| { let at = at.index(bytes.len()); bytes[at] = *to; });
                bytes.truncate(if cuts { cut.index(bytes.len()) } else { bytes.len() });
            }
            bytes.extend(more);
            let mut sealed = Datagram { count, ..Datagram::new() };
            sealed.bytes.extend(bytes);
            let sealed = sealed.sealed(&KEY).to_vec();
            match read(&sealed, &KEY) {
                Ok(placements) => {
                    let whole: usize = placements.iter().map(|p| PLACEMENT + HASH * p.blocks().len()).sum();
                    prop_assert_eq!((HEADER + whole, placements.len()), (sealed.len(), usize::from(count)));
                    prop_assert!(placements.iter().all(|p| (1..=BLOCKS_MAX).contains(&p.blocks().len())));
                }
                Err(why) => prop_assert_eq!(why, Refused::Malformed),
            }
        }

        #[test]
        fn whatever_was_changed_is_refused(
            all in prop::collection::vec(told(), 1..4),
            at in any::<prop::sample::Index>(),
            by in 1_u8..,
        ) {
            let mut bytes = datagram(&all);
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert!(read(&bytes, &KEY).is_err());
        }
    }

    #[test]
    fn every_cut_of_a_datagram_is_refused() {
        let datagram = datagram(&[([1; 16], 80, 7, vec![1, 2]), ([2; 16], 81, 8, vec![3])]);
        for len in 0..datagram.len() {
            assert!(read(&datagram[..len], &KEY).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn other_versions_and_other_keys_are_told_apart() {
        let mut datagram = datagram(&[([1; 16], 80, 7, vec![1])]);
        assert_eq!(read(&datagram, &Key([8; KEY_BYTES])), Err(Refused::WrongTag));
        datagram[4] += 1;
        assert_eq!(read(&datagram, &KEY), Err(Refused::OtherVersion));
        datagram[0] += 1;
        assert_eq!(read(&datagram, &KEY), Err(Refused::Malformed));
    }

    #[test]
    fn the_longest_prompt_fits_and_a_full_datagram_takes_no_more() {
        let mut datagram = Datagram::new();
        let addr = BackendAddr::from_octets([1; 16], 80);
        assert!(datagram.add(addr, Nanos(1), &vec![9; BLOCKS_MAX]));
        assert!(!datagram.add(addr, Nanos(1), &[9; 200]), "beyond its bound");
        assert_eq!((datagram.count(), read(datagram.sealed(&KEY), &KEY).unwrap().len()), (1, 1));
        datagram.clear();
        assert!(!datagram.add(BackendAddr { port: 1 << 16, ..addr }, Nanos(1), &[9]), "no port");
        assert_eq!(read(datagram.sealed(&KEY), &KEY), Ok(Vec::new()), "a greeting");
    }
}
