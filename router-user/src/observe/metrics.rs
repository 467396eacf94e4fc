//! The exposition of the registry. What is measured lies beside what measures it and registers itself.

use std::sync::Arc;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use super::collector::StatusCollector;
use super::status::StatusSource;

/// Content type of the exposition.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Adds the gauges that are read from the state at each scrape.
pub fn register_status(registry: &mut Registry, source: Arc<dyn StatusSource>) {
    registry.register_collector(Box::new(StatusCollector(source)));
}

/// The exposition, as OpenMetrics text.
#[must_use]
pub fn encode(registry: &Registry) -> String {
    let mut out = String::new();
    text::encode(&mut out, registry).expect("invariant: writing to a string does not fail");
    out
}
