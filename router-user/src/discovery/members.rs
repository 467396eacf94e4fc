//! From a list of backends and what is known of its names to members. Pure.

use std::net::{IpAddr, SocketAddr};

use router_common::limits::MAX_BACKENDS;

use super::dns::{Found, Service};
use super::names::{Names, address_of, query_of};
use crate::backends::Member;
use crate::backends::resolve::expand;
use crate::config::{BackendConfig, Lookup};

/// Bounds of a weight, as `--backend` has them.
const WEIGHT_BOUNDS: (f64, f64) = (0.01, 100.0);

/// The members of a list, in its order, and how many there would be beyond the most there may be. Of one address given
/// twice the first stays.
pub(super) fn members(entries: &[BackendConfig], names: &Names) -> (Vec<Member>, usize) {
    let mut all: Vec<Member> = Vec::new();
    let mut cut = 0;
    for member in entries.iter().flat_map(|entry| of_entry(entry, names)) {
        if all.iter().any(|other| other.addr == member.addr) {
            continue;
        }
        if all.len() < MAX_BACKENDS { all.push(member) } else { cut += 1 }
    }
    (all, cut)
}

fn of_entry(entry: &BackendConfig, names: &Names) -> Vec<Member> {
    let Some(query) = query_of(entry) else {
        let ip = entry.host.parse().ok();
        let addr = ip.map(|ip: IpAddr| SocketAddr::new(ip, entry.port));
        return addr.map(|addr| Member { config: entry.clone(), addr }).into_iter().collect();
    };
    let Some(name) = names.get(&query) else { return Vec::new() };
    match &name.found {
        Some(Found::Addresses(ips)) => at_each(entry, ips),
        Some(Found::Services(services)) => {
            let mean = services.iter().map(|s| f64::from(s.weight)).sum::<f64>() / services.len() as f64;
            services.iter().flat_map(|service| of_service(entry, service, mean, names)).collect()
        }
        None => Vec::new(),
    }
}

fn of_service(entry: &BackendConfig, service: &Service, mean: f64, names: &Names) -> Vec<Member> {
    let found = names.get(&address_of(&service.host)).and_then(|name| name.found.as_ref());
    let Some(Found::Addresses(ips)) = found else { return Vec::new() };
    let mut config = entry.clone();
    config.lookup = Lookup::Address;
    (config.host, config.port) = (service.host.clone(), service.port);
    config.spec.url = format!("http://{}:{}{}", service.host, service.port, entry.base_path);
    if mean > 0.0 {
        let weight = entry.spec.weight.unwrap_or(1.0) * f64::from(service.weight) / mean;
        config.spec.weight = Some(weight.clamp(WEIGHT_BOUNDS.0, WEIGHT_BOUNDS.1));
    }
    at_each(&config, ips)
}

/// A named backend at each of its addresses. Its URL is its name for people and labels: with several addresses each goes
/// by itself. That one which is there keeps its URL, and no two have the same, is the fleet's to see to.
fn at_each(named: &BackendConfig, ips: &[IpAddr]) -> Vec<Member> {
    let addrs: Vec<_> = ips.iter().map(|ip| SocketAddr::new(*ip, named.port)).collect();
    expand(named, &addrs)
}

#[cfg(test)]
mod tests {
    use super::members;
    use crate::config::{BackendConfig, DnsConfig, backend};
    use crate::discovery::dns::{Answer, Found, Service};
    use crate::discovery::names::{Names, Pace};
    use std::time::Duration;
    use tokio::time::Instant;

    fn list(urls: &[&str]) -> Vec<BackendConfig> {
        urls.iter().map(|url| backend::parse(url, &|_| Ok(String::new())).unwrap()).collect()
    }

    /// Answers what is asked for by `known`, until nothing new is asked for.
    fn answer(names: &mut Names, entries: &[BackendConfig], known: &dyn Fn(&str) -> Found) {
        let (now, pace) = (Instant::now(), Pace::from(&DnsConfig::default()));
        names.keep(entries.iter(), now);
        loop {
            let due = names.take_due(now + Duration::from_secs(3600), 99);
            if due.is_empty() {
                break;
            }
            for query in due {
                let answer = Answer { found: known(&query.to_string()), ttl: Duration::from_secs(1_000_000) };
                names.get_mut(&query).unwrap().answered(answer, pace, now + Duration::from_secs(7200));
            }
            names.keep(entries.iter(), now);
        }
    }

    fn ips(all: &[&str]) -> Found {
        Found::Addresses(all.iter().map(|ip| ip.parse().unwrap()).collect())
    }

    fn urls(entries: &[BackendConfig], names: &Names) -> Vec<String> {
        members(entries, names).0.into_iter().map(|m| format!("{} {}", m.config.spec.url, m.addr)).collect()
    }

    #[test]
    fn a_list_keeps_its_order_and_each_address_once() {
        let entries = list(&["http://a:1/base", "http://10.0.0.9:1", "http://10.0.0.2:1", "http://[::1]:1"]);
        let mut names = Names::default();
        answer(&mut names, &entries, &|_| ips(&["10.0.0.1", "10.0.0.2"]));
        let wanted = [
            "http://10.0.0.1:1/base 10.0.0.1:1",
            "http://10.0.0.2:1/base 10.0.0.2:1",
            "http://10.0.0.9:1 10.0.0.9:1",
            "http://[::1]:1 [::1]:1",
        ];
        assert_eq!(urls(&entries, &names), wanted);
        assert_eq!(urls(&entries, &Names::default()).len(), 3, "a name that is not known has no members");
    }

    #[test]
    fn one_address_goes_by_the_name() {
        let entries = list(&["http://a:1/base"]);
        let mut names = Names::default();
        answer(&mut names, &entries, &|_| ips(&["10.0.0.1"]));
        assert_eq!(urls(&entries, &names), ["http://a:1/base 10.0.0.1:1"]);
    }

    #[test]
    fn a_service_says_hosts_ports_and_weights() {
        let entries = list(&["srv+http://s.example/base,weight=2,model=m"]);
        let service = |host: &str, port, weight| Service { host: host.to_owned(), port, weight };
        let known = |query: &str| match query {
            "srv:s.example" => Found::Services(vec![service("x", 8000, 3), service("y", 8001, 1)]),
            "dns:x." => ips(&["10.0.0.1"]),
            _ => ips(&["10.0.0.2", "10.0.0.3"]),
        };
        let mut names = Names::default();
        answer(&mut names, &entries, &known);
        let (all, cut) = members(&entries, &names);
        assert_eq!(
            urls(&entries, &names),
            [
                "http://x:8000/base 10.0.0.1:8000",
                "http://10.0.0.2:8001/base 10.0.0.2:8001",
                "http://10.0.0.3:8001/base 10.0.0.3:8001"
            ]
        );
        assert_eq!(
            all.iter().map(|m| m.config.spec.weight).collect::<Vec<_>>(),
            [Some(3.0), Some(1.0), Some(1.0)]
        );
        assert_eq!(all[2].config.host, "y", "the Host header is the name");
        assert_eq!((all[0].config.spec.model.as_deref(), cut), (Some("m"), 0));
    }

    #[test]
    fn rows_beyond_the_last_are_cut() {
        let texts: Vec<_> = (1..=200).map(|port| format!("http://a:{port}")).collect();
        let entries = list(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let mut names = Names::default();
        answer(&mut names, &entries, &|_| ips(&["10.0.0.1", "10.0.0.2"]));
        let (all, cut) = members(&entries, &names);
        assert_eq!((all.len(), cut), (256, 144));
    }
}
