//! How engines are probed and judged.

use std::time::Duration;

use crate::backends::health::Rules;

/// Where an engine tells how it does, as far as that is not as for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthConfig {
    /// The path, below the backend's.
    pub path: Option<String>,
    /// Statuses that are good.
    pub statuses: Option<Vec<u16>>,
}

/// How all engines are probed and judged.
#[derive(Clone, Debug)]
pub struct ProbeConfig {
    /// Path below each backend's; `None` = only models are asked.
    pub path: Option<String>,
    /// Statuses of it that are good.
    pub statuses: Vec<u16>,
    /// For an answer.
    pub timeout: Duration,
    /// From inference to inference of our own; `None` = there is none.
    pub inference: Option<Duration>,
    /// For its answer.
    pub inference_timeout: Duration,
    /// When engines are suspected, ejected and taken back.
    pub rules: Rules,
}

/// The usual path, which an engine may lack.
pub const HEALTH_PATH: &str = "/health";

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            path: Some(HEALTH_PATH.to_owned()),
            statuses: vec![200],
            timeout: Duration::from_secs(2),
            inference: None,
            inference_timeout: Duration::from_secs(30),
            rules: Rules::default(),
        }
    }
}
