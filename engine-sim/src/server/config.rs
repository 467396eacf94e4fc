//! The settings of a server, and why it may not start.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::faults::{Dialect, Faults, FaultsError};
use crate::model::{ConfigError, EngineConfig, Profile};

/// How one engine is served.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// A second port that answers the same, which no fault closes, delays or cuts; so faults can be changed from
    /// outside while `listen` refuses connections.
    pub admin_listen: Option<SocketAddr>,
    /// Sent in the header `x-engine-name` of every response.
    pub name: String,
    /// The one model served.
    pub model: String,
    /// If set, `/v1/*` wants `Authorization: Bearer` with this key.
    pub api_key: Option<String>,
    /// Virtual seconds that pass in a real second, from 0.001 to 1000.
    pub time_scale: f64,
    /// Chooses the words of the answers; timing does not depend on it.
    pub seed: u64,
    /// The model's own settings.
    pub engine: EngineConfig,
    /// Real time from start, and from each restart, until it is ready; 503 till then.
    pub start_delay: Duration,
    /// Whose names `/metrics` has.
    pub dialect: Dialect,
    /// What is wrong with it from the beginning.
    pub faults: Faults,
}

impl Default for Config {
    /// An 8B model on an H100 in real time, on any free loopback port.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            admin_listen: None,
            name: "engine".to_owned(),
            model: "sim".to_owned(),
            api_key: None,
            time_scale: 1.0,
            seed: 0,
            engine: EngineConfig::of(Profile::H100_8B),
            start_delay: Duration::ZERO,
            dialect: Dialect::default(),
            faults: Faults::default(),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port is in use, or the address is not ours.
    #[error("cannot listen on {addr}")]
    Bind {
        /// What was asked for.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The model cannot work so.
    #[error(transparent)]
    Engine(#[from] ConfigError),
    /// Outside its range, or not a number.
    #[error("the time scale must be from 0.001 to 1000, not {0}")]
    TimeScale(f64),
    /// It could not be sent in a header.
    #[error("the name must be visible ASCII, not '{0}'")]
    Name(String),
    /// Faults out of bounds.
    #[error(transparent)]
    Faults(#[from] FaultsError),
}
