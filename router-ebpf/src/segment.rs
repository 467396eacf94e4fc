//! A TCP segment in a socket buffer: where its payload is, and what its header says.
//!
//! At the hooks of a cgroup a buffer begins with the IP header. One copy brings both headers; a packet with IP
//! options or extension headers, which do not occur on paths to engines, is not looked at. The payload itself may be
//! anywhere, so it is copied too, never pointed at.
#![expect(unsafe_code, reason = "reads the context, and copies into plain memory")]

use core::ptr::read_volatile;

use aya_ebpf::helpers::bpf_skb_load_bytes;
use aya_ebpf::programs::SkBuffContext;
use router_common::http::{HEAD_BYTES, HEAD_PAD, HeadBuffer};

pub(crate) const ETH_P_IP: u32 = 0x0800;
pub(crate) const ETH_P_IPV6: u32 = 0x86dd;
pub(crate) const TCP: u8 = 6;
pub(crate) const IPV4_BYTES: usize = 20;
pub(crate) const IPV6_BYTES: usize = 40;
pub(crate) const TCP_BYTES: usize = 20;
/// The option that holds the length of a segment of more than 64 KiB. No such segment is on any wire: the kernel hands
/// it to a device that cuts it, or to the loopback, which does not.
pub(crate) const JUMBO_BYTES: usize = 8;
pub(crate) const HOP_BY_HOP: u8 = 0;

/// A segment.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    /// Sequence number of its first byte.
    pub(crate) seq: u32,
    /// What its sender has received.
    pub(crate) ack: u32,
    /// Where the payload begins.
    at: u32,
    /// Bytes of payload; at least 1 but from [`Segment::any`] and [`Segment::behind`].
    pub(crate) len: u32,
    /// Its sender takes nothing more for now.
    pub(crate) is_window_shut: bool,
}

impl Segment {
    /// The segment, if it carries something.
    #[inline(always)]
    pub(crate) fn of(ctx: &SkBuffContext) -> Option<Self> {
        let segment = Self::any(ctx)?;
        if segment.len == 0 { None } else { Some(segment) }
    }

    /// The segment, also one that carries nothing: of that only the header may be looked at.
    #[inline(always)]
    pub(crate) fn any(ctx: &SkBuffContext) -> Option<Self> {
        // SAFETY: the kernel gives a valid context, whose fields may be read one by one.
        let (protocol, bytes) = unsafe {
            (read_volatile(&raw const (*ctx.skb.skb).protocol), read_volatile(&raw const (*ctx.skb.skb).len))
        };
        match u32::from(u16::from_be(protocol as u16)) {
            ETH_P_IP => {
                let headers: [u8; IPV4_BYTES + TCP_BYTES] = ctx.load(0).ok()?;
                if headers[0] != 0x45 || headers[9] != TCP {
                    return None;
                }
                let (_, tcp) = headers.split_at(IPV4_BYTES);
                Self::behind(IPV4_BYTES, tcp.try_into().ok()?, bytes)
            }
            ETH_P_IPV6 => {
                let headers: [u8; IPV6_BYTES + TCP_BYTES] = ctx.load(0).ok()?;
                let (ip, tcp) = headers.split_at(IPV6_BYTES);
                match (ip[6], tcp[0], tcp[1]) {
                    (TCP, ..) => Self::behind(IPV6_BYTES, tcp.try_into().ok()?, bytes),
                    (HOP_BY_HOP, TCP, 0) => {
                        let tcp: [u8; TCP_BYTES] = ctx.load(IPV6_BYTES + JUMBO_BYTES).ok()?;
                        Self::behind(IPV6_BYTES + JUMBO_BYTES, &tcp, bytes)
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The segment whose TCP header begins at `start` of the buffer, and whose payload ends at `bytes`.
    #[inline(always)]
    pub(crate) fn behind(start: usize, tcp: &[u8; TCP_BYTES], bytes: u32) -> Option<Self> {
        const SYN_RST: u8 = 0x06;
        let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let at = start as u32 + u32::from(tcp[12] >> 4) * 4;
        if bytes < at {
            return None;
        }
        // The window of a SYN is another number, and that of a RST none.
        let is_window_shut = tcp[14] | tcp[15] | (tcp[13] & SYN_RST) == 0;
        Some(Self { seq: number(4), ack: number(8), at, len: bytes - at, is_window_shut })
    }

    /// Sequence number after its last byte.
    #[inline(always)]
    pub(crate) const fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len)
    }

    /// The rest of it after so many bytes, if there is one.
    #[inline(always)]
    pub(crate) const fn without(&self, bytes: u32) -> Option<Self> {
        if bytes >= self.len {
            return None;
        }
        Some(Self { seq: self.seq.wrapping_add(bytes), at: self.at + bytes, len: self.len - bytes, ..*self })
    }

    /// The first eight bytes as one number; a shorter segment has zeros at the end.
    #[inline(always)]
    pub(crate) fn first(&self, ctx: &SkBuffContext) -> Option<u64> {
        if self.len < 8 { self.short(ctx) } else { self.word(ctx, self.at) }
    }

    /// The last eight bytes up to the end of this segment, given those up to its beginning.
    #[inline(always)]
    pub(crate) fn tail(&self, ctx: &SkBuffContext, before: u64) -> Option<u64> {
        if self.len < 8 {
            return Some(router_common::http::push_tail(before, self.short(ctx)?, self.len));
        }
        self.word(ctx, self.at + self.len - 8)
    }

    /// Copies the start of the payload; returns how much.
    #[inline(always)]
    pub(crate) fn start(&self, ctx: &SkBuffContext, buffer: *mut HeadBuffer) -> Option<usize> {
        const { assert!((HEAD_BYTES + 1).is_power_of_two(), "the mask of `copy`") };
        const { assert!(HeadBuffer::ZERO.bytes.len() > HEAD_PAD + HEAD_BYTES, "the room that the mask allows") };
        let len = if self.len > HEAD_BYTES as u32 { HEAD_BYTES as u32 } else { self.len };
        // SAFETY: the buffer has room for more than HEAD_BYTES after its pad, and a segment has a byte.
        unsafe {
            copy(ctx, self.at, (&raw mut (*buffer).bytes).cast::<u8>().add(HEAD_PAD), len, HEAD_BYTES as u32)
        }
    }

    /// A payload of less than eight bytes.
    #[inline(always)]
    fn short(&self, ctx: &SkBuffContext) -> Option<u64> {
        let mut bytes = [0_u8; 8];
        // SAFETY: the array has room for eight, and a segment has a byte.
        unsafe { copy(ctx, self.at, bytes.as_mut_ptr(), self.len, 7)? };
        Some(u64::from_be_bytes(bytes))
    }

    #[inline(always)]
    fn word(&self, ctx: &SkBuffContext, at: u32) -> Option<u64> {
        ctx.load(at as usize).ok().map(u64::from_be_bytes)
    }
}

/// Copies `len` bytes of the packet, at least 1; returns how many.
///
/// # Safety
/// `to` has room for `mask + 1` bytes, and `len` is not more than that.
#[inline(always)]
unsafe fn copy(ctx: &SkBuffContext, at: u32, to: *mut u8, len: u32, mask: u32) -> Option<usize> {
    // The verifier must see both bounds at the very register that the helper gets. The compiler, which knows them
    // already, would drop the mask or test another register; so it is kept from knowing. And one is added rather than
    // zero left out: the verifier of Linux 6.1 does not learn from a test for zero that the rest is positive.
    // SAFETY: reads a local variable.
    let len = (unsafe { read_volatile(&raw const len) }.wrapping_sub(1) & mask) + 1;
    // SAFETY: the caller's promise.
    let failed = unsafe { bpf_skb_load_bytes(ctx.skb.skb.cast(), at, to.cast(), len) };
    if failed == 0 { Some(len as usize) } else { None }
}
