//! One engine of the fleet, as a source of backends says it: what is configured, and where it is.

use std::net::SocketAddr;

use crate::config::BackendConfig;

/// One engine at one address. Sources (configuration, files, DNS) say which there are; the address is its identity.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// What is configured of it; `spec.url` is its name for people and labels.
    pub config: BackendConfig,
    /// Where it is.
    pub addr: SocketAddr,
}
