//! Load in band: the TCP option by which an engine's host tells how much its engine has in flight, on packets that
//! leave anyway.
//!
//! `kind 254, length 8, experiment, count`, the latter two in network order. Kind 254 is for experiments, told apart by
//! the number after the length (RFC 6994). A path may strip it: what was not seen is unknown, never 0.

use crate::BackendAddr;
use crate::edge::{SourceKey, key_v4, key_v6};

/// The option's kind.
pub const KIND: u8 = 254;

/// Ours among the experiments.
pub const EXPERIMENT: u16 = 0x554c;

/// Bytes of the option.
pub const BYTES: usize = 8;

/// What the kernel's search for the option begins with: kind, length of kind to experiment, experiment.
pub const SEARCH: [u8; BYTES] = {
    let [high, low] = EXPERIMENT.to_be_bytes();
    [KIND, 4, high, low, 0, 0, 0, 0]
};

/// Entries of `LOCAL_PEERS`: prefixes of peers that are told.
pub const MAX_PEERS: usize = 64;

/// A connection is not told the same again within this time: 10 ms. Two hops and a fraction of a token's time, and a
/// packet without the option costs both hosts half as much.
pub const REPEAT_NS: u64 = 10_000_000;

/// Whether a packet that leaves now is to tell of so many requests, when `last` were told at `at_ns`.
#[inline(always)]
#[must_use]
pub const fn is_news(in_flight: u32, now_ns: u64, last: u32, at_ns: u64) -> bool {
    in_flight != last || now_ns.wrapping_sub(at_ns) >= REPEAT_NS
}

/// The option that tells of so many requests.
#[inline(always)]
#[must_use]
pub const fn encode(in_flight: u32) -> [u8; BYTES] {
    let [high, low] = EXPERIMENT.to_be_bytes();
    let [a, b, c, d] = in_flight.to_be_bytes();
    [KIND, BYTES as u8, high, low, a, b, c, d]
}

/// The requests that an option tells of, as whoever sent it says; `None` if it is another option.
#[inline(always)]
#[must_use]
pub const fn decode(option: [u8; BYTES]) -> Option<u32> {
    let [kind, length, high, low, a, b, c, d] = option;
    let is_ours = kind == KIND && length as usize == BYTES && u16::from_be_bytes([high, low]) == EXPERIMENT;
    if is_ours { Some(u32::from_be_bytes([a, b, c, d])) } else { None }
}

/// The key in `LOCAL_PEERS` of a peer; IPv4 as such, also where it came over IPv6.
#[inline(always)]
#[must_use]
pub const fn key_of(peer: &BackendAddr) -> SourceKey {
    let o = peer.octets();
    if peer.is_ipv4() { key_v4([o[12], o[13], o[14], o[15]]) } else { key_v6(o) }
}

#[cfg(test)]
mod tests {
    use super::{BYTES, BackendAddr, KIND, SEARCH, decode, encode, key_of, key_v4, key_v6};
    use super::{REPEAT_NS, is_news};

    #[test]
    fn what_changed_or_was_not_told_for_a_while_is_news() {
        let now = 5 * REPEAT_NS;
        assert!(is_news(0, now, 0, 0), "nothing was told yet");
        assert!(is_news(3, now, 2, now) && is_news(3, now, 3, now - REPEAT_NS));
        assert!(!is_news(3, now, 3, now - REPEAT_NS + 1));
    }

    #[test]
    fn a_count_comes_back_and_nothing_else_is_one() {
        for count in [0, 1, 0x0102_0304, u32::MAX] {
            assert_eq!(decode(encode(count)), Some(count));
        }
        assert_eq!(encode(5)[..4], [KIND, BYTES as u8, SEARCH[2], SEARCH[3]]);
        for (at, other) in [(0, 253), (1, 7), (2, 0), (3, 0)] {
            let mut option = encode(5);
            option[at] = other;
            assert_eq!(decode(option), None, "{option:?}");
        }
        assert_eq!(decode([0; BYTES]), None);
    }

    #[test]
    fn a_mapped_peer_is_its_ipv4_address() {
        let key = |text: &str| key_of(&BackendAddr::from_socket_addr(text.parse().unwrap()));
        assert_eq!(key("10.9.0.1:7"), key_v4([10, 9, 0, 1]));
        assert_eq!(key("[::ffff:10.9.0.1]:7"), key("10.9.0.1:8"));
        assert_eq!(key("[::1]:7"), key_v6([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]));
    }
}
