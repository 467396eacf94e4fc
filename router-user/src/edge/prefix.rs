//! Prefixes of source addresses as people write them, and as keys of the rules.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use aya::maps::lpm_trie::Key;
use router_common::edge::{FAMILY_BITS, SourceKey, key_v4, key_v6};

/// An address prefix without bits beyond its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no prefix like 203.0.113.0/24 or 2001:db8::/32");
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let max = if addr.is_ipv4() { 32 } else { 128 };
        let len = match len {
            None => max,
            Some(len) if len.bytes().all(|b| b.is_ascii_digit()) => {
                len.parse().ok().filter(|len| *len <= max).ok_or_else(wrong)?
            }
            Some(_) => return Err(wrong()),
        };
        let prefix = Self { addr: masked(addr, len), len };
        if prefix.addr == addr {
            return Ok(prefix);
        }
        Err(format!("`{text}` has bits beyond its length; {prefix} has none"))
    }
}

fn masked(addr: IpAddr, len: u8) -> IpAddr {
    match addr {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

impl Prefix {
    /// Its address as a key, and its length in bits.
    #[must_use]
    pub fn parts(self) -> (SourceKey, u32) {
        let source = match self.addr {
            IpAddr::V4(v4) => key_v4(v4.octets()),
            IpAddr::V6(v6) => key_v6(v6.octets()),
        };
        (source, u32::from(self.len))
    }

    /// Its key in the rules.
    pub(super) fn key(self) -> Key<SourceKey> {
        let (source, bits) = self.parts();
        Key::new(FAMILY_BITS + bits, source)
    }

    /// The prefix of a key; `None` for what no prefix has (it came from a map).
    pub(super) fn of_key(key: &Key<SourceKey>) -> Option<Self> {
        let source = key.data();
        let (addr, max) = match source[0] {
            4 => (IpAddr::from(*source[4..].first_chunk::<4>()?), 32),
            6 => (IpAddr::from(*source[4..].first_chunk::<16>()?), 128),
            _ => return None,
        };
        let len = u8::try_from(key.prefix_len().checked_sub(FAMILY_BITS)?).ok()?;
        (len <= max).then_some(Self { addr, len })
    }
}

#[cfg(test)]
mod tests {
    use super::Prefix;

    #[test]
    fn prefixes_come_back_from_their_keys_as_they_were_written() {
        for text in ["0.0.0.0/0", "10.0.0.0/8", "192.0.2.7/32", "::/0", "2001:db8::/32", "::1/128"] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(prefix.to_string(), text);
            assert_eq!(Prefix::of_key(&prefix.key()), Some(prefix));
        }
        assert_eq!("192.0.2.7".parse::<Prefix>().unwrap().to_string(), "192.0.2.7/32");
    }

    #[test]
    fn what_is_no_prefix_is_refused_and_stray_bits_are_shown() {
        for text in
            ["", "/", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0.0/+8", "10.0.0/8", "x", "1.2.3.4/8/8"]
        {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
        let refused = "10.1.2.3/8".parse::<Prefix>().unwrap_err();
        assert!(refused.contains("10.0.0.0/8 has none"), "{refused}");
    }
}
