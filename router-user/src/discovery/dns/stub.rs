//! The resolver of this process: what the system's does, with TTLs and SRV records, and no thread that waits.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::task::spawn_blocking;

use super::system::{Resolv, System};
use super::wire::Kind;
use super::{Answer, Asked, Failure, Found, Lookup, Query, exchange};
use crate::config;

/// What `/etc/hosts` says holds for this long: it is a file, and may change.
const HOSTS_TTL: Duration = Duration::from_secs(5);

/// Asks `/etc/hosts`, then servers; both files are read anew each time.
#[derive(Clone, Debug)]
pub(in super::super) struct Stub {
    /// Whom to ask instead of the system's servers, if anybody.
    servers: Vec<SocketAddr>,
}

impl Stub {
    pub(in super::super) const fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers }
    }

    async fn answer(self, query: Query) -> Result<Answer, Failure> {
        let system = spawn_blocking(System::read).await.unwrap_or_default();
        let Query { kind, name } = query;
        if kind == config::Lookup::Address {
            let known = one_family(system.addresses(&name));
            if !known.is_empty() {
                return Ok(Answer { found: Found::Addresses(known), ttl: HOSTS_TTL });
            }
        }
        let resolv = if self.servers.is_empty() {
            system.resolv
        } else {
            // The system's search list and times are for the system's servers.
            Resolv { servers: self.servers, ..Resolv::default() }
        };
        let names = resolv.candidates(&name);
        let mut failure = Failure::NoName;
        for name in names {
            let asked = match kind {
                config::Lookup::Address => addresses(&name, &resolv).await,
                config::Lookup::Service => exchange::ask(&name, Kind::Srv, &resolv).await,
            };
            match asked {
                Err(Failure::NoName) => {}
                Err(Failure::NoRecord) => failure = Failure::NoRecord,
                // After any other failure the next name could be another's, whom this one's servers would have hidden.
                done => return done,
            }
        }
        Err(failure)
    }
}

impl Lookup for Stub {
    fn ask(&self, query: &Query) -> Asked {
        Box::pin(self.clone().answer(query.clone()))
    }
}

/// Of a name with addresses of both families those of IPv4: they are two ways to one engine.
async fn addresses(name: &str, resolv: &Resolv) -> Result<Answer, Failure> {
    match exchange::ask(name, Kind::A, resolv).await {
        Err(Failure::NoRecord) => exchange::ask(name, Kind::Aaaa, resolv).await,
        done => done,
    }
}

fn one_family(mut addrs: Vec<IpAddr>) -> Vec<IpAddr> {
    if addrs.iter().any(IpAddr::is_ipv4) {
        addrs.retain(IpAddr::is_ipv4);
    }
    addrs
}
