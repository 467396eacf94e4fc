//! How a socket's remote address finds its row.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Key of the `BACKENDS` map: an address and port in one form for IPv4, IPv6 and dual-stack sockets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackendAddr {
    /// The IPv6 address as four words **in network byte order as they lie in memory**; IPv4 as `::ffff:a.b.c.d`.
    pub ip: [u32; 4],
    /// The port in host byte order.
    pub port: u32,
}

/// Third word of a v4-mapped address, as it lies in memory.
const V4_MAPPED: u32 = 0xffff_u32.to_be();

impl BackendAddr {
    /// The key of an IPv4 address given as the word that lies in memory (network order).
    #[must_use]
    pub const fn v4(ip_be: u32, port: u16) -> Self {
        Self { ip: [0, 0, V4_MAPPED, ip_be], port: port as u32 }
    }

    /// The key of an IPv6 address given as its four words in memory (network order).
    #[must_use]
    pub const fn v6(ip_be: [u32; 4], port: u16) -> Self {
        Self { ip: ip_be, port: port as u32 }
    }

    /// The key of an address given as its 16 octets.
    #[must_use]
    pub const fn from_octets(o: [u8; 16], port: u16) -> Self {
        Self {
            ip: [
                u32::from_ne_bytes([o[0], o[1], o[2], o[3]]),
                u32::from_ne_bytes([o[4], o[5], o[6], o[7]]),
                u32::from_ne_bytes([o[8], o[9], o[10], o[11]]),
                u32::from_ne_bytes([o[12], o[13], o[14], o[15]]),
            ],
            port: port as u32,
        }
    }

    /// The key of a socket address. Scope and flow label of IPv6 do not take part.
    #[must_use]
    pub const fn from_socket_addr(addr: SocketAddr) -> Self {
        let octets = match addr.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        Self::from_octets(octets, addr.port())
    }

    /// The address, IPv4 where it is one; `None` when the port is no port (the value came from a map).
    #[must_use]
    pub const fn to_socket_addr(&self) -> Option<SocketAddr> {
        if self.port > u16::MAX as u32 {
            return None;
        }
        Some(SocketAddr::new(Ipv6Addr::from_octets(self.octets()).to_canonical(), self.port as u16))
    }

    /// Whether the address is an IPv4 one.
    #[inline(always)]
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        self.ip[0] == 0 && self.ip[1] == 0 && self.ip[2] == V4_MAPPED
    }

    /// The 16 octets of the address.
    #[inline(always)]
    #[must_use]
    pub const fn octets(&self) -> [u8; 16] {
        let (a, b) = (self.ip[0].to_ne_bytes(), self.ip[1].to_ne_bytes());
        let (c, d) = (self.ip[2].to_ne_bytes(), self.ip[3].to_ne_bytes());
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]]
    }
}

const _: () = assert!(size_of::<BackendAddr>() == 20);

#[cfg(feature = "user")]
#[expect(unsafe_code, reason = "aya's Pod is an unsafe marker trait")]
// SAFETY: repr(C), u32 only, no padding (asserted above), every bit pattern valid.
unsafe impl aya::Pod for BackendAddr {}

#[cfg(test)]
mod tests {
    use super::BackendAddr;

    #[test]
    fn socket_addresses_come_back_as_they_went_in() {
        for text in ["127.0.0.1:8000", "[::1]:8001", "[2001:db8::7]:65535"] {
            let addr: core::net::SocketAddr = text.parse().unwrap();
            assert_eq!(BackendAddr::from_socket_addr(addr).to_socket_addr(), Some(addr));
        }
        let mapped: core::net::SocketAddr = "[::ffff:127.0.0.1]:8000".parse().unwrap();
        let plain: core::net::SocketAddr = "127.0.0.1:8000".parse().unwrap();
        assert_eq!(BackendAddr::from_socket_addr(mapped), BackendAddr::from_socket_addr(plain));
        assert_eq!(BackendAddr { ip: [0; 4], port: 70_000 }.to_socket_addr(), None);
    }

    #[test]
    fn ipv4_and_its_mapped_form_are_one_key() {
        let v4 = BackendAddr::v4(u32::from_ne_bytes([127, 0, 0, 1]), 8000);
        let mapped = BackendAddr::from_octets([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1], 8000);
        assert_eq!(v4, mapped);
        assert_eq!(v4.octets()[12..], [127, 0, 0, 1]);
    }
}
