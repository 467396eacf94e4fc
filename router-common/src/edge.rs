//! The edge guard's contract: what a source's key is, which rule means what, how a bucket fills, what is counted.
//!
//! The program at the device looks at packets and asks here; it decides nothing itself. Invariant: only a SYN
//! without ACK can be limited, so a client that is connected is never touched unless its address is denied.

/// Version of the guard's maps; part of their pin path (`<pin-dir>/edge-v1`).
pub const EDGE_LAYOUT_VERSION: u32 = 1;

/// Rules of deny and allow lists together. 4,096 × about 100 B = 400 KiB at most, as they are made.
pub const MAX_RULES: usize = 4096;

/// Sources whose openings are remembered; beyond it the longest unseen is forgotten. 65,536 × about 100 B = 6.4 MiB,
/// set aside when the map is made.
pub const MAX_SOURCES: usize = 65_536;

/// Ports guarded at once, over all routers of the host.
pub const MAX_PORTS: usize = 64;

/// What became of a packet; the index of its counter.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Dropped: the source is denied.
    Denied = 0,
    /// Dropped: a SYN beyond what its source may open.
    Limited = 1,
    /// Passed: a SYN within it.
    Admitted = 2,
    /// Passed: a SYN of an allowed prefix, which is not limited.
    Trusted = 3,
    /// Passed: a later packet to a guarded port.
    Established = 4,
    /// Passed: not TCP to a guarded port.
    Other = 5,
    /// Passed unread: it has a VLAN tag.
    Vlan = 6,
    /// Passed unread: a fragment of a TCP packet over IPv4, or any fragment over IPv6.
    Fragment = 7,
    /// Passed unread: it has IPv6 extension headers.
    Extension = 8,
}

impl Verdict {
    /// How many there are.
    pub const COUNT: usize = 9;

    /// All, in the order of their counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Denied,
        Self::Limited,
        Self::Admitted,
        Self::Trusted,
        Self::Established,
        Self::Other,
        Self::Vlan,
        Self::Fragment,
        Self::Extension,
    ];

    /// As metrics and people write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Limited => "limited",
            Self::Admitted => "admitted",
            Self::Trusted => "trusted",
            Self::Established => "established",
            Self::Other => "other",
            Self::Vlan => "vlan",
            Self::Fragment => "fragment",
            Self::Extension => "extension",
        }
    }

    /// Whether the packet goes on.
    #[must_use]
    pub const fn is_passed(self) -> bool {
        !matches!(self, Self::Denied | Self::Limited)
    }
}

/// Value of a rule: the bit of a denied prefix. The longest prefix that holds a source decides.
pub const RULE_DENY: u32 = 1;
/// Value of a rule: the bit of an allowed prefix, which is neither denied nor limited.
pub const RULE_ALLOW: u32 = 2;
/// Value of a rule: set beside the other if a router's configuration made it.
pub const RULE_CONFIGURED: u32 = 0x100;

/// Bits of a [`SourceKey`] before the address.
pub const FAMILY_BITS: u32 = 32;

/// An address with its family before it, so that no prefix of one family holds addresses of the other.
pub type SourceKey = [u8; 20];

/// The key of an IPv4 address.
#[inline(always)]
#[must_use]
pub const fn key_v4(a: [u8; 4]) -> SourceKey {
    [4, 0, 0, 0, a[0], a[1], a[2], a[3], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// The key of an IPv6 address.
#[inline(always)]
#[must_use]
pub const fn key_v6(a: [u8; 16]) -> SourceKey {
    [
        6, 0, 0, 0, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13],
        a[14], a[15],
    ]
}

/// Whose bucket it is: an IPv4 address, or the /64 of an IPv6 address, within which a host takes any.
#[inline(always)]
#[must_use]
pub const fn bucket_of(mut key: SourceKey) -> SourceKey {
    let mut at = 12;
    while at < 20 {
        key[at] = 0;
        at += 1;
    }
    key
}

/// How fast one source may open connections. All zero (a new map): not limited.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeLimits {
    /// Time in which one more may be opened, nanoseconds; 0 = not limited.
    pub interval_ns: u64,
    /// Openings at once after a pause, at least 1.
    pub burst: u64,
    /// Openings per second, as it was asked for.
    pub rate: u64,
}

impl EdgeLimits {
    /// Most openings per second, and most at once: their product of times stays far below 2^64.
    pub const MAX: u64 = 100_000;

    /// Limits from openings per second (0: none) and openings at once; both are held within [`Self::MAX`].
    #[must_use]
    pub fn new(rate: u64, burst: u64) -> Self {
        let (rate, burst) = (rate.min(Self::MAX), burst.clamp(1, Self::MAX));
        Self { interval_ns: 1_000_000_000_u64.checked_div(rate).unwrap_or(0), burst, rate }
    }
}

/// Who guards a port: value of `PORTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgePort {
    /// The router process.
    pub pid: u32,
    /// The device it guards.
    pub ifindex: u32,
}

/// Takes one opening from a bucket; `None` if it is empty.
///
/// `full_at` is when the bucket will be full, the one number that tells its level: no time and level that two
/// processors could mix up. Limits that change hold from the next packet on, whatever the bucket held before.
#[inline(always)]
#[must_use]
pub const fn take(full_at: u64, now: u64, limits: EdgeLimits) -> Option<u64> {
    let whole = limits.interval_ns.wrapping_mul(limits.burst);
    let from = if full_at < now { now } else { full_at };
    // Never emptier than empty: a source that was emptied under slower limits does not wait for them.
    let from = if from - now > whole { now.wrapping_add(whole) } else { from };
    let then = from.wrapping_add(limits.interval_ns);
    if then - now > whole { None } else { Some(then) }
}

/// What a TCP packet to a guarded port gets by its source's rule; `None`: its bucket decides.
#[inline(always)]
#[must_use]
pub const fn by_rule(rule: u32, tcp_flags: u8) -> Option<Verdict> {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    if rule & RULE_DENY != 0 {
        return Some(Verdict::Denied);
    }
    if tcp_flags & (SYN | ACK) != SYN {
        return Some(Verdict::Established);
    }
    if rule & RULE_ALLOW != 0 { Some(Verdict::Trusted) } else { None }
}

const _: () = {
    assert!(size_of::<EdgeLimits>() == 24);
    assert!(size_of::<EdgePort>() == 8);
};

#[cfg(feature = "user")]
#[expect(unsafe_code, reason = "aya's Pod is an unsafe marker trait")]
mod pod {
    use super::{EdgeLimits, EdgePort};
    // SAFETY: repr(C), u64 only, no padding (asserted above), every bit pattern valid.
    unsafe impl aya::Pod for EdgeLimits {}
    // SAFETY: repr(C), u32 only, no padding (asserted above), every bit pattern valid.
    unsafe impl aya::Pod for EdgePort {}
}

#[cfg(test)]
mod tests {
    use super::{
        EdgeLimits, RULE_ALLOW, RULE_CONFIGURED, RULE_DENY, Verdict, bucket_of, by_rule, key_v4, key_v6, take,
    };

    const SECOND: u64 = 1_000_000_000;

    /// How many of `n` openings at one time a bucket gives, and what it is then.
    fn at_once(mut full_at: u64, now: u64, limits: EdgeLimits, n: u32) -> (u32, u64) {
        let mut given = 0;
        for _ in 0..n {
            if let Some(then) = take(full_at, now, limits) {
                (given, full_at) = (given + 1, then);
            }
        }
        (given, full_at)
    }

    #[test]
    fn a_new_source_opens_its_burst_and_then_its_rate() {
        let limits = EdgeLimits::new(10, 5);
        let (given, full_at) = at_once(0, 7 * SECOND, limits, 20);
        assert_eq!(given, 5);
        let (given, full_at) = at_once(full_at, 7 * SECOND + SECOND / 10, limits, 20);
        assert_eq!(given, 1, "a tenth of a second later one more");
        assert_eq!(at_once(full_at, 100 * SECOND, limits, 20).0, 5, "never more than the burst");
    }

    #[test]
    fn changed_limits_hold_at_once_in_both_directions() {
        let (_, emptied_slowly) = at_once(0, SECOND, EdgeLimits::new(1, 1000), 1000);
        let fast = EdgeLimits::new(10, 5);
        assert_eq!(at_once(emptied_slowly, SECOND + SECOND / 10, fast, 20).0, 0);
        assert_eq!(take(emptied_slowly, SECOND, fast), None);
        let (_, barely_used) = at_once(0, SECOND, EdgeLimits::new(10, 100), 1);
        assert_eq!(
            at_once(barely_used, SECOND, EdgeLimits::new(10, 5), 100).0,
            4,
            "a lowered burst is the burst"
        );
    }

    #[test]
    fn extreme_limits_and_times_do_not_overflow() {
        for limits in [EdgeLimits::new(1, u64::MAX), EdgeLimits::new(u64::MAX, 0), EdgeLimits::new(0, 0)] {
            for full_at in [0, SECOND, u64::MAX] {
                let _level = take(full_at, SECOND, limits);
            }
        }
        assert_eq!(EdgeLimits::new(0, 7).interval_ns, 0);
        assert_eq!(EdgeLimits::new(3, 7).rate, 3);
    }

    #[test]
    fn only_a_syn_without_ack_is_limited_and_a_denied_source_gets_nothing() {
        const NONE: u32 = 0;
        for flags in 0..=u8::MAX {
            assert_eq!(by_rule(RULE_DENY, flags), Some(Verdict::Denied));
            let opens = flags & 0x12 == 0x02;
            assert_eq!(by_rule(NONE, flags), (!opens).then_some(Verdict::Established));
            let trusted = if opens { Verdict::Trusted } else { Verdict::Established };
            assert_eq!(by_rule(RULE_ALLOW | RULE_CONFIGURED, flags), Some(trusted));
        }
    }

    #[test]
    fn an_ipv6_host_has_one_bucket_and_an_ipv4_address_its_own() {
        let v6 = |last| key_v6([0x20, 1, 0xd, 0xb8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, last]);
        assert_eq!(bucket_of(v6(1)), bucket_of(v6(2)));
        assert_ne!(bucket_of(key_v4([10, 0, 0, 1])), bucket_of(key_v4([10, 0, 0, 2])));
        assert_ne!(key_v4([0; 4]), key_v6([0; 16]));
    }

    #[test]
    fn verdicts_are_their_own_index() {
        for (at, verdict) in Verdict::ALL.iter().enumerate() {
            assert_eq!(*verdict as usize, at);
        }
    }
}
