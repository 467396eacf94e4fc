//! From configuration to the edge guard. Whatever fails is a line in the log: traffic goes on unguarded.

use prometheus_client::registry::Registry;
use router_common::edge::EdgeLimits;

use crate::config::Config;
use crate::edge::{Edge, EdgeError, EdgeOptions, Mode};

/// Guards the port, if that is asked for and possible.
pub(super) fn start(config: &Config, port: u16, series: &mut Registry) -> Option<Edge> {
    let wanted = &config.edge;
    let device = wanted.device.clone()?;
    let options = EdgeOptions {
        pin_dir: config.kernel.pin_dir.clone(),
        device: device.clone(),
        port,
        deny: wanted.deny.clone(),
        allow: wanted.allow.clone(),
        limits: EdgeLimits::new(wanted.syn_rate, wanted.syn_burst),
    };
    match guard(&options, series) {
        Ok(edge) => {
            match (edge.mode(), edge.not_native()) {
                (Mode::Generic, Some(reason)) => {
                    tracing::warn!(
                        device,
                        port,
                        reason,
                        "the edge guard runs in generic mode, not in native mode"
                    );
                }
                (mode, _) => tracing::info!(device, port, mode = mode.as_str(), "the edge guard is attached"),
            }
            Some(edge)
        }
        Err(error) => {
            tracing::warn!(device, port, %error, "no edge guard: every packet passes");
            None
        }
    }
}

fn guard(options: &EdgeOptions, series: &mut Registry) -> Result<Edge, EdgeError> {
    let edge = Edge::start(options)?;
    series.register_collector(Box::new(edge.packets()?));
    Ok(edge)
}
