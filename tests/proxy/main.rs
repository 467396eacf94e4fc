//! Tier 2: the real router on loopback, between raw clients and scripted engines. One file a theme.
#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

mod admin;
mod affinity;
mod compat;
mod counting;
mod descriptors;
mod eligible;
mod elsewhere;
mod expect;
mod faults;
mod fleet;
mod forwarding;
mod framing;
mod gossip;
mod idle_conns;
mod in_flight;
mod large_bodies;
mod limits;
mod malformed;
mod memory;
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
mod storm;
mod stream;
mod tunnel;
mod upload;
mod versions;
mod warm;
