//! A TCP packet as a device sees it, behind an Ethernet header: whose it is, what it carries, and its socket.
//!
//! A device pads short packets, so the IP header tells where one ends. Packets with a VLAN tag, fragments, and IP
//! options or extension headers, which do not occur on paths to engines, are not looked at; but for the kernel's own length of a large segment.
#![expect(unsafe_code, reason = "reads the context, and gives a socket back")]

use core::ffi::c_void;
use core::ptr::read_volatile;

use aya_ebpf::bindings::{BPF_F_CURRENT_NETNS, bpf_sock, bpf_sock_tuple};
use aya_ebpf::helpers::bpf_sk_lookup_tcp;
use aya_ebpf::programs::SkBuffContext;
use router_common::BackendAddr;

use crate::segment::{
    ETH_P_IP, ETH_P_IPV6, HOP_BY_HOP, IPV4_BYTES, IPV6_BYTES, JUMBO_BYTES, Segment, TCP, TCP_BYTES,
};

/// Whoever attaches the programs chooses devices that have it.
const ETHERNET_BYTES: usize = 14;

/// More than a first fragment: an offset, or that others follow.
const FRAGMENT: u16 = 0x3fff;

const FIN: u8 = 1;
const RST: u8 = 4;

/// A packet.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    /// Who sent it.
    pub(crate) from: BackendAddr,
    /// To whom.
    pub(crate) to: BackendAddr,
    /// Sequence number of its first byte.
    pub(crate) seq: u32,
    flags: u8,
    is_v6: bool,
    segment: Option<Segment>,
}

impl Packet {
    /// The packet, if it is one of TCP.
    #[inline(always)]
    pub(crate) fn of(ctx: &SkBuffContext) -> Option<Self> {
        // SAFETY: the kernel gives a valid context, whose fields may be read one by one.
        let (protocol, bytes) = unsafe {
            (read_volatile(&raw const (*ctx.skb.skb).protocol), read_volatile(&raw const (*ctx.skb.skb).len))
        };
        match u32::from(u16::from_be(protocol as u16)) {
            ETH_P_IP => {
                let h: [u8; IPV4_BYTES + TCP_BYTES] = ctx.load(ETHERNET_BYTES).ok()?;
                if h[0] != 0x45 || h[9] != TCP || be16(h[6], h[7]) & FRAGMENT != 0 {
                    return None;
                }
                let (ip, tcp) = h.split_at(IPV4_BYTES);
                let addr = |at: usize| u32::from_ne_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
                let ports = [be16(tcp[0], tcp[1]), be16(tcp[2], tcp[3])];
                let ends = [BackendAddr::v4(addr(12), ports[0]), BackendAddr::v4(addr(16), ports[1])];
                let ip_bytes = u32::from(be16(ip[2], ip[3]));
                Some(Self::behind(IPV4_BYTES, tcp.try_into().ok()?, ends, ip_bytes, bytes))
            }
            ETH_P_IPV6 => {
                let h: [u8; IPV6_BYTES + TCP_BYTES] = ctx.load(ETHERNET_BYTES).ok()?;
                let (ip, next) = h.split_at(IPV6_BYTES);
                let (start, tcp): (usize, [u8; TCP_BYTES]) = match (ip[6], next[0], next[1]) {
                    (TCP, ..) => (IPV6_BYTES, next.try_into().ok()?),
                    (HOP_BY_HOP, TCP, 0) => {
                        let start = IPV6_BYTES + JUMBO_BYTES;
                        (start, ctx.load(ETHERNET_BYTES + start).ok()?)
                    }
                    _ => return None,
                };
                let word = |at: usize| u32::from_ne_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
                let addr = |at: usize| [word(at), word(at + 4), word(at + 8), word(at + 12)];
                let ports = [be16(tcp[0], tcp[1]), be16(tcp[2], tcp[3])];
                let ends = [BackendAddr::v6(addr(8), ports[0]), BackendAddr::v6(addr(24), ports[1])];
                let payload = u32::from(be16(ip[4], ip[5]));
                let ip_bytes = if payload == 0 { 0 } else { payload + IPV6_BYTES as u32 };
                let packet = Self::behind(start, &tcp, ends, ip_bytes, bytes);
                Some(Self { is_v6: true, ..packet })
            }
            _ => None,
        }
    }

    /// `ip_bytes` is what the IP header says; 0 = more than it can say, then it is all of the buffer.
    #[inline(always)]
    fn behind(
        ip: usize,
        tcp: &[u8; TCP_BYTES],
        [from, to]: [BackendAddr; 2],
        ip_bytes: u32,
        buffer: u32,
    ) -> Self {
        let told = ETHERNET_BYTES as u32 + ip_bytes;
        let end = if ip_bytes == 0 || told > buffer { buffer } else { told };
        let segment = Segment::behind(ETHERNET_BYTES + ip, tcp, end);
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        Self { from, to, seq, flags: tcp[13], is_v6: false, segment }
    }

    /// What it carries.
    #[inline(always)]
    pub(crate) const fn payload(&self) -> Option<Segment> {
        match self.segment {
            Some(segment) if segment.len != 0 => Some(segment),
            _ => None,
        }
    }

    /// Whether its sender takes nothing more for now.
    #[inline(always)]
    pub(crate) const fn is_window_shut(&self) -> bool {
        matches!(self.segment, Some(Segment { is_window_shut: true, .. }))
    }

    /// Whether its sender says no more after it.
    #[inline(always)]
    pub(crate) const fn is_last_word(&self) -> bool {
        self.flags & (FIN | RST) != 0
    }

    /// Whether it breaks the connection off.
    #[inline(always)]
    pub(crate) const fn is_reset(&self) -> bool {
        self.flags & RST != 0
    }

    /// The socket that an arriving packet is for, to be given back with `bpf_sk_release` on every way on.
    #[inline(always)]
    pub(crate) fn receiver(&self, ctx: &SkBuffContext) -> Option<*mut bpf_sock> {
        let here = i64::from(BPF_F_CURRENT_NETNS) as u64;
        let buffer = ctx.skb.skb.cast::<c_void>();
        let ports = [(self.from.port as u16).to_be(), (self.to.port as u16).to_be()];
        let sk = if self.is_v6 {
            let mut tuple = Tuple { saddr: self.from.ip, daddr: self.to.ip, ports };
            let bytes = size_of::<Tuple<[u32; 4]>>() as u32;
            // SAFETY: the tuple lives through the call and is as long as said.
            unsafe { bpf_sk_lookup_tcp(buffer, (&raw mut tuple).cast::<bpf_sock_tuple>(), bytes, here, 0) }
        } else {
            let mut tuple = Tuple { saddr: self.from.ip[3], daddr: self.to.ip[3], ports };
            let bytes = size_of::<Tuple<u32>>() as u32;
            // SAFETY: as above.
            unsafe { bpf_sk_lookup_tcp(buffer, (&raw mut tuple).cast::<bpf_sock_tuple>(), bytes, here, 0) }
        };
        if sk.is_null() { None } else { Some(sk) }
    }
}

/// `bpf_sock_tuple` of one family.
#[repr(C)]
struct Tuple<A> {
    saddr: A,
    daddr: A,
    ports: [u16; 2],
}

#[inline(always)]
const fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}
