//! What the guard reads of a packet: the way to the TCP header, and from it the port and the flags.
//!
//! Options of IPv4 are stepped over: else a denied source would only have to set one. What this cannot follow is
//! named by a verdict that passes.
#![expect(unsafe_code, reason = "reads packets")]

use aya_ebpf::programs::XdpContext;
use router_common::edge::{SourceKey, Verdict, key_v4, key_v6};

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TCP: u8 = 6;

/// A TCP packet, as far as it matters here.
pub(crate) struct Segment {
    pub(crate) source: SourceKey,
    /// Destination, host byte order.
    pub(crate) port: u16,
    pub(crate) flags: u8,
}

/// The TCP packet, or the verdict on what is none or cannot be read.
#[inline(always)]
pub(crate) fn segment(ctx: &XdpContext) -> Result<Segment, Verdict> {
    const IPV4: u16 = 0x0800;
    const IPV6: u16 = 0x86dd;
    const VLAN: u16 = 0x8100;
    const SERVICE_VLAN: u16 = 0x88a8;
    let ethernet: [u8; ETHERNET_BYTES] = bytes(ctx, 0)?;
    match u16::from_be_bytes([ethernet[12], ethernet[13]]) {
        IPV4 => over_ipv4(ctx),
        IPV6 => over_ipv6(ctx),
        VLAN | SERVICE_VLAN => Err(Verdict::Vlan),
        _ => Err(Verdict::Other),
    }
}

#[inline(always)]
fn over_ipv4(ctx: &XdpContext) -> Result<Segment, Verdict> {
    /// More fragments follow, or this is a later one.
    const FRAGMENT: u16 = 0x3fff;
    let ip: [u8; IPV4_BYTES] = bytes(ctx, ETHERNET_BYTES)?;
    if ip[9] != TCP {
        return Err(Verdict::Other);
    }
    if u16::from_be_bytes([ip[6], ip[7]]) & FRAGMENT != 0 {
        return Err(Verdict::Fragment);
    }
    let header = usize::from(ip[0] & 0xf) * 4;
    if header < IPV4_BYTES {
        return Err(Verdict::Other);
    }
    tcp(ctx, ETHERNET_BYTES + header, key_v4([ip[12], ip[13], ip[14], ip[15]]))
}

#[inline(always)]
fn over_ipv6(ctx: &XdpContext) -> Result<Segment, Verdict> {
    const FRAGMENT: u8 = 44;
    let ip: [u8; IPV6_BYTES] = bytes(ctx, ETHERNET_BYTES)?;
    match ip[6] {
        TCP => {}
        FRAGMENT => return Err(Verdict::Fragment),
        // Hop-by-hop options, routing, ESP, authentication, destination options, mobility, HIP, shim6.
        0 | 43 | 50 | 51 | 60 | 135 | 139 | 140 => return Err(Verdict::Extension),
        _ => return Err(Verdict::Other),
    }
    let [_, _, _, _, _, _, _, _, source @ ..] = ip;
    let mut address = [0; 16];
    address.copy_from_slice(source.first_chunk::<16>().ok_or(Verdict::Other)?);
    tcp(ctx, ETHERNET_BYTES + IPV6_BYTES, key_v6(address))
}

#[inline(always)]
fn tcp(ctx: &XdpContext, at: usize, source: SourceKey) -> Result<Segment, Verdict> {
    let tcp: [u8; 14] = bytes(ctx, at)?;
    Ok(Segment { source, port: u16::from_be_bytes([tcp[2], tcp[3]]), flags: tcp[13] })
}

/// A copy of bytes of the packet. What is too short for its own headers is left to the kernel.
#[inline(always)]
fn bytes<const N: usize>(ctx: &XdpContext, at: usize) -> Result<[u8; N], Verdict> {
    let from = ctx.data() + at;
    if from + N > ctx.data_end() {
        return Err(Verdict::Other);
    }
    // SAFETY: the N bytes lie within the packet, as was just checked; arrays of bytes are never misaligned.
    Ok(unsafe { *(from as *const [u8; N]) })
}
