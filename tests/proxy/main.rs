//! Tier 2: the real router on loopback, between raw clients and scripted engines. One file a theme.

mod forwarding;
mod in_flight;
mod limits;
mod malformed;
mod own;
mod retry;
mod shutdown;
mod stream;
