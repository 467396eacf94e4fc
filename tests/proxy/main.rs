//! Tier 2: the real router on loopback, between raw clients and scripted engines. One file a theme.
#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

mod affinity;
mod counting;
mod eligible;
mod elsewhere;
mod faults;
mod forwarding;
mod framing;
mod gossip;
mod idle_conns;
mod in_flight;
mod large_bodies;
mod limits;
mod malformed;
mod own;
mod records;
mod reports;
mod reports_large;
mod retry;
mod shapes;
mod shutdown;
mod silence;
mod slow_clients;
mod spread;
mod stream;
mod tunnel;
mod upload;
mod versions;
