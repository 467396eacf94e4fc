//! From a configured host to addresses, each its own backend.
//!
//! Of a name with addresses of both families those of IPv4 are taken: they are two ways to one engine, and an
//! engine under two rows would be counted by halves. It is asked once, of the system's resolver: names of the
//! configuration are [`crate::discovery`]'s to follow.

use std::io;
use std::net::{IpAddr, SocketAddr};

use hyper::header::HeaderValue;
use router_common::limits::MAX_BACKENDS;
use router_policy::BackendId;

use super::{Member, MetricsAt, Target};
use crate::config::BackendConfig;

/// The addresses of a backend's host, sorted, without repetition, of one family, at most [`MAX_BACKENDS`]. An
/// address in the configuration is taken as it is.
///
/// # Errors
/// If the name cannot be resolved, or has no address.
pub async fn resolve(backend: &BackendConfig) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = backend.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, backend.port)]);
    }
    let found = tokio::net::lookup_host((backend.host.as_str(), backend.port)).await?;
    let addrs = one_family(found.collect());
    if addrs.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addrs)
}

fn one_family(mut addrs: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if addrs.iter().any(SocketAddr::is_ipv4) {
        addrs.retain(SocketAddr::is_ipv4);
    }
    addrs.sort_unstable();
    addrs.dedup();
    addrs.truncate(MAX_BACKENDS);
    addrs
}

/// The backends that a configured one becomes. Where a name has several addresses, each backend's URL holds its address
/// instead of the name.
#[must_use]
pub fn expand(backend: &BackendConfig, addrs: &[SocketAddr]) -> Vec<Member> {
    let at = |addr: &SocketAddr| {
        let mut config = backend.clone();
        if addrs.len() > 1 {
            config.spec.url = format!("http://{addr}{}", backend.base_path);
        }
        Member { config, addr: *addr }
    };
    addrs.iter().map(at).collect()
}

/// The target of one expanded backend at row `id`.
///
/// # Errors
/// If host or key cannot stand in a header; the configuration's parser lets none such through.
pub fn target(id: BackendId, member: &Member) -> Result<Target, hyper::header::InvalidHeaderValue> {
    let (Member { config: backend, addr }, spec) = (member, &member.config.spec);
    // The name, not the address: what a server in front of the engine goes by.
    let host = if backend.host.contains(':') { format!("[{}]", backend.host) } else { backend.host.clone() };
    let authority = authority_at(&host, backend.port)?;
    let bearer = |key: &crate::config::Secret| {
        let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal()))?;
        value.set_sensitive(true);
        Ok(value)
    };
    let authorization = backend.api_key.as_ref().map(bearer).transpose()?;
    let metrics = MetricsAt {
        engine: backend.metrics.engine,
        path: backend.metrics.path.clone(),
        port_of_its_own: match backend.metrics.port.filter(|port| *port != backend.port) {
            Some(port) => Some((SocketAddr::new(addr.ip(), port), authority_at(&host, port)?)),
            None => None,
        },
        authorization: match (&backend.metrics.key, backend.metrics.port) {
            (Some(key), _) => Some(bearer(key)?),
            // Another port may be another's.
            (None, Some(port)) if port != backend.port => None,
            (None, _) => authorization.clone(),
        },
    };
    let base_path = backend.base_path.clone();
    let is_configured = spec.model.is_some();
    let target = Target::new(id, spec.url.clone(), *addr, authority, base_path, authorization, is_configured);
    Ok(target.with_metrics(metrics).with_type(backend.types.first().copied()))
}

fn authority_at(host: &str, port: u16) -> Result<HeaderValue, hyper::header::InvalidHeaderValue> {
    if port == 80 { HeaderValue::try_from(host) } else { HeaderValue::try_from(format!("{host}:{port}")) }
}

#[cfg(test)]
mod tests {
    use super::{Member, expand, one_family, resolve, target};
    use crate::config::{BackendConfig, backend};
    use router_policy::BackendId;
    use std::net::SocketAddr;

    fn configured(text: &str) -> BackendConfig {
        backend::parse(text, &|_| Ok("k".to_owned())).unwrap()
    }

    fn addrs(all: &[&str]) -> Vec<SocketAddr> {
        all.iter().map(|a| a.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn an_address_needs_no_lookup() {
        assert_eq!(resolve(&configured("http://10.1.2.3:8000")).await.unwrap(), addrs(&["10.1.2.3:8000"]));
        assert_eq!(resolve(&configured("http://[::1]:8000")).await.unwrap(), addrs(&["[::1]:8000"]));
    }

    #[tokio::test]
    async fn a_local_name_is_one_backend() {
        assert_eq!(resolve(&configured("http://localhost:8000")).await.unwrap().len(), 1);
    }

    #[test]
    fn both_families_of_a_name_are_one_way_each() {
        let mixed = addrs(&["[fd00::1]:80", "10.0.0.2:80", "10.0.0.1:80", "10.0.0.2:80"]);
        assert_eq!(one_family(mixed), addrs(&["10.0.0.1:80", "10.0.0.2:80"]));
        assert_eq!(one_family(addrs(&["[fd00::1]:80"])), addrs(&["[fd00::1]:80"]));
    }

    #[test]
    fn each_address_becomes_a_backend_with_an_url_of_its_own() {
        let b = configured("http://engines:8000/base,model=m");
        let one = expand(&b, &addrs(&["10.0.0.1:8000"]));
        assert_eq!(one[0].config.spec.url, "http://engines:8000/base");
        let two = expand(&b, &addrs(&["10.0.0.1:8000", "10.0.0.2:8000"]));
        let urls: Vec<_> = two.iter().map(|m| m.config.spec.url.as_str()).collect();
        assert_eq!(urls, ["http://10.0.0.1:8000/base", "http://10.0.0.2:8000/base"]);
    }

    #[test]
    fn a_target_carries_host_and_key() {
        let b = configured("http://[fd00::1]:8000,api-key-file=k,model=m");
        let t = target(
            BackendId::new(3).unwrap(),
            &Member { config: b, addr: "[fd00::1]:8000".parse().unwrap() },
        )
        .unwrap();
        assert_eq!(t.authority, "[fd00::1]:8000");
        assert_eq!(t.authorization.as_ref().unwrap(), "Bearer k");
        assert!(t.has_configured_model && !format!("{t:?}").contains("Bearer"));
    }

    #[test]
    fn a_key_goes_to_the_port_it_is_for() {
        let id = BackendId::new(3).unwrap();
        let key = |more: &str| {
            let b = configured(&format!("http://h:8000,api-key-file=k{more}"));
            let t = target(id, &Member { config: b, addr: "10.0.0.1:8000".parse().unwrap() }).unwrap();
            let port = t.metrics.port_of_its_own.as_ref().map(|(addr, host)| {
                assert_eq!(host, "h:8002");
                addr.port()
            });
            (port, t.metrics.authorization.is_some_and(|key| key == "Bearer k"))
        };
        assert_eq!(key(""), (None, true));
        assert_eq!(key(",metrics-port=8000"), (None, true));
        assert_eq!(key(",metrics-port=8002"), (Some(8002), false));
        assert_eq!(key(",metrics-port=8002,metrics-key-file=k"), (Some(8002), true));
    }
}
