//! What the system says of names: `/etc/resolv.conf` and `/etc/hosts`. Pure, but for [`System::read`].
//!
//! Other sources of names that the system may have (`nsswitch.conf`) are not asked.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::config::read_text;

/// Bytes of each file that are read at most; a larger one counts as absent.
const BYTES_MAX: u64 = 1 << 20;
/// Servers at most, as everywhere.
const SERVERS_MAX: usize = 3;
/// Domains to search at most.
const SEARCH_MAX: usize = 16;

/// Both files.
#[derive(Clone, Debug, Default)]
pub(super) struct System {
    /// How servers are asked.
    pub(super) resolv: Resolv,
    hosts: String,
}

impl System {
    /// Reads them; what cannot be read is as if it were empty.
    pub(super) fn read() -> Self {
        let text = |path: &str| read_text(Path::new(path), BYTES_MAX).unwrap_or_default();
        Self { resolv: Resolv::parse(&text("/etc/resolv.conf")), hosts: text("/etc/hosts") }
    }

    /// The addresses of a name that this system knows by itself.
    pub(super) fn addresses(&self, name: &str) -> Vec<IpAddr> {
        let name = name.trim_end_matches('.');
        let found = in_hosts(&self.hosts, name);
        let is_local = name == "localhost" || name.ends_with(".localhost");
        if found.is_empty() && is_local { vec![IpAddr::V4(Ipv4Addr::LOCALHOST)] } else { found }
    }
}

fn in_hosts(hosts: &str, name: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for line in hosts.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(Ok(addr)) = words.next().map(str::parse) else { continue };
        if words.any(|word| word.trim_end_matches('.').eq_ignore_ascii_case(name)) {
            found.push(addr);
        }
    }
    found
}

/// How servers are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resolv {
    /// Whom, in this order.
    pub(super) servers: Vec<SocketAddr>,
    /// Domains that a name may be in.
    pub(super) search: Vec<String>,
    /// A name with so many dots is tried as it is first.
    pub(super) ndots: usize,
    /// Time for one answer.
    pub(super) timeout: Duration,
    /// How often each server is asked.
    pub(super) attempts: usize,
}

impl Default for Resolv {
    fn default() -> Self {
        Self {
            servers: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 53))],
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
        }
    }
}

impl Resolv {
    /// Reads the file; lines and options it does not know are passed over, as the C library does.
    pub(super) fn parse(text: &str) -> Self {
        let (mut all, mut servers) = (Self::default(), Vec::new());
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") if servers.len() < SERVERS_MAX => {
                    let ip = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    servers.extend(ip.map(|ip| SocketAddr::new(ip, 53)));
                }
                Some("search" | "domain") => {
                    let domains = words.map(|word| word.trim_matches('.').to_ascii_lowercase());
                    all.search = domains.filter(|domain| !domain.is_empty()).take(SEARCH_MAX).collect();
                }
                Some("options") => words.for_each(|word| all.option(word)),
                _ => {}
            }
        }
        if !servers.is_empty() {
            all.servers = servers;
        }
        all
    }

    fn option(&mut self, word: &str) {
        let Some((name, Ok(n))) = word.split_once(':').map(|(name, n)| (name, n.parse::<usize>())) else {
            return;
        };
        match name {
            "ndots" => self.ndots = n.min(15),
            "timeout" => self.timeout = Duration::from_secs(n.clamp(1, 10) as u64),
            "attempts" => self.attempts = n.clamp(1, 5),
            _ => {}
        }
    }

    /// The complete names that a name may mean, in the order in which they are asked for.
    pub(super) fn candidates(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let itself = format!("{name}.");
        let searched = self.search.iter().map(|domain| format!("{name}.{domain}."));
        let dots = name.bytes().filter(|&b| b == b'.').count();
        if dots >= self.ndots {
            std::iter::once(itself).chain(searched).collect()
        } else {
            searched.chain([itself]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Resolv, System};
    use std::net::IpAddr;
    use std::time::Duration;

    #[test]
    fn a_pods_file_is_read() {
        let text = "# made by the kubelet\nsearch a.svc.cluster.local svc.cluster.local cluster.local.\n\
                    nameserver 10.96.0.10\nnameserver fe80::1%eth0\nnameserver ::1\noptions ndots:5 timeout:1 edns0 x:y\nsortlist z\n";
        let r = Resolv::parse(text);
        assert_eq!(r.servers, ["10.96.0.10:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
        assert_eq!((r.ndots, r.timeout, r.attempts), (5, Duration::from_secs(1), 2));
        assert_eq!(
            r.candidates("engines.b"),
            [
                "engines.b.a.svc.cluster.local.",
                "engines.b.svc.cluster.local.",
                "engines.b.cluster.local.",
                "engines.b."
            ]
        );
        assert_eq!(r.candidates("a.b.c.d.e.f")[0], "a.b.c.d.e.f.");
        assert_eq!(r.candidates("engines."), ["engines."]);
    }

    #[test]
    fn without_a_file_this_host_is_asked() {
        assert_eq!(Resolv::parse(""), Resolv::default());
        assert_eq!(
            Resolv::parse("options timeout:900 attempts:0 ndots:99\n").timeout,
            Duration::from_secs(10)
        );
        assert_eq!(Resolv::default().candidates("a"), ["a."]);
    }

    #[test]
    fn hosts_come_before_servers() {
        let hosts = "127.0.0.1 localhost # b\n10.0.0.1\ta A.example.\n::1 x a\nnonsense a\n10.0.0.2 b a\n";
        let system = System { hosts: hosts.to_owned(), ..System::default() };
        let ips = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(system.addresses("a"), ips(&["10.0.0.1", "::1", "10.0.0.2"]));
        assert_eq!(system.addresses("a.example"), ips(&["10.0.0.1"]));
        assert_eq!(system.addresses("c"), ips(&[]));
        assert_eq!(System::default().addresses("localhost"), ips(&["127.0.0.1"]));
        assert_eq!(System::default().addresses("e.localhost."), ips(&["127.0.0.1"]));
    }
}
