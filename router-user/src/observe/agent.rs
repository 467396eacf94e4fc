//! What an agent shows: `/metrics`, `/status` and `/healthz`, read from the rows at each request.
//!
//! Labels are ports of the configuration. Requests that cannot be told (TLS, HTTP/2) are in no gauge of requests; how
//! many connections are like that is a gauge of its own.

use std::fmt;
use std::sync::Arc;

use hyper::{Method, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::{Registry, Unit};
use router_common::BackendLoad;
use serde_json::json;
use tokio::net::TcpListener;

use super::admin::answer::{Answer, answer as reply, error, not_allowed, text};
use super::admin::{Listener, serve_with};
use super::encode::{counters, gauges};
use super::metrics;
use crate::account::local::LocalRow;
use crate::account::mean_ttfb_seconds;

/// What is shown; each call reads the maps.
pub trait Rows: Send + Sync + 'static {
    /// A row a port.
    fn rows(&self) -> Vec<LocalRow>;
}

impl<F: Fn() -> Vec<LocalRow> + Send + Sync + 'static> Rows for F {
    fn rows(&self) -> Vec<LocalRow> {
        self()
    }
}

/// Serves for ever. Dropping the future closes the listener and all connections.
///
/// # Errors
/// The listener cannot be registered with this runtime.
pub async fn serve(listener: TcpListener, source: impl Rows) -> std::io::Result<()> {
    let source: Arc<dyn Rows> = Arc::new(source);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(RowCollector(Arc::clone(&source))));
    let registry = Arc::new(registry);
    serve_with(Listener::Tcp(listener.into_std()?), move |request, _via| {
        let answer = answer(request.method(), request.uri().path(), &registry, &*source);
        async move { answer }
    })
    .await
}

fn answer(method: &Method, path: &str, registry: &Registry, source: &dyn Rows) -> Answer {
    let paths = ["/metrics", "/status", "/healthz"];
    if !paths.contains(&path) {
        let message = format!("no such path; there are {}", paths.join(", "));
        return error(StatusCode::NOT_FOUND, "no_such_path", &message);
    }
    if ![Method::GET, Method::HEAD].contains(method) {
        return not_allowed("GET, HEAD");
    }
    match path {
        "/metrics" => reply(StatusCode::OK, metrics::CONTENT_TYPE, metrics::encode(registry)),
        "/status" => reply(StatusCode::OK, "application/json", status(&source.rows()).to_string()),
        _ => text(StatusCode::OK, "ok\n"),
    }
}

fn status(rows: &[LocalRow]) -> serde_json::Value {
    let engine = |row: &LocalRow| {
        let load = &row.load;
        json!({
            "port": row.port,
            "in_flight": row.in_flight(),
            "awaiting": load.awaiting,
            "streaming": load.streaming,
            "unknown": load.unknown,
            "conns": load.conns,
            "opened": load.opened,
            "closed": load.closed,
            "resets": load.resets,
            "request_bytes": load.tx_bytes,
            "response_bytes": load.rx_bytes,
            "ttfb_seconds": mean_ttfb_seconds(load),
        })
    };
    json!({ "engines": rows.iter().map(engine).collect::<Vec<_>>() })
}

struct RowCollector(Arc<dyn Rows>);

impl fmt::Debug for RowCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowCollector")
    }
}

/// The label of a row.
fn port(row: &LocalRow) -> [(&'static str, String); 1] {
    [("port", row.port.to_string())]
}

type Gauge = (&'static str, &'static str, fn(&LocalRow) -> u64);
const GAUGES: [Gauge; 5] = [
    ("unlatch_local_in_flight", "Requests of all clients in flight at the engine", LocalRow::in_flight),
    ("unlatch_local_awaiting", "Of these, those without a byte of an answer", |row| row.load.awaiting),
    ("unlatch_local_streaming", "Of these, those being answered", |row| row.load.streaming),
    ("unlatch_local_connections", "Connections to the engine", |row| row.load.conns),
    ("unlatch_local_unknown", "Of these, those whose requests cannot be told", |row| row.load.unknown),
];

type Counter = (&'static str, &'static str, fn(&BackendLoad) -> u64);
const COUNTERS: [Counter; 6] = [
    ("unlatch_local_connections_opened", "Connections that clients opened", |load| load.opened),
    ("unlatch_local_connections_closed", "Connections that ended", |load| load.closed),
    ("unlatch_local_resets", "Connections that a client broke", |load| load.resets),
    ("unlatch_local_answers", "Answers that began", |load| load.ttfb_count),
    ("unlatch_local_request_bytes", "Bytes of requests", |load| load.tx_bytes),
    ("unlatch_local_response_bytes", "Bytes of answers", |load| load.rx_bytes),
];

impl Collector for RowCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let rows = self.0.rows();
        for (name, help, value) in GAUGES {
            let samples = rows.iter().map(|row| (port(row), value(row) as f64));
            gauges(&mut encoder, name, help, samples)?;
        }
        for (name, help, value) in COUNTERS {
            counters(&mut encoder, name, help, None, rows.iter().map(|row| (port(row), value(&row.load))))?;
        }
        let ttfb = rows.iter().map(|row| (port(row), row.load.ttfb_ns as f64 / 1e9));
        let help = "Sum of the times from request to first byte";
        counters(&mut encoder, "unlatch_local_ttfb", help, Some(&Unit::Seconds), ttfb)
    }
}

#[cfg(test)]
mod tests {
    use super::{RowCollector, Rows, answer, metrics, status};
    use crate::account::local::LocalRow;
    use hyper::Method;
    use prometheus_client::registry::Registry;
    use router_common::BackendLoad;
    use std::sync::Arc;

    fn rows() -> Vec<LocalRow> {
        let load = BackendLoad {
            awaiting: 2,
            streaming: 3,
            conns: 9,
            ttfb_ns: 3_000_000_000,
            ttfb_count: 2,
            ..BackendLoad::ZERO
        };
        vec![LocalRow { port: 8000, load }, LocalRow { port: 8001, load: BackendLoad::ZERO }]
    }

    #[test]
    fn every_port_is_shown_and_no_answer_is_no_time() {
        let shown = status(&rows());
        assert_eq!(shown["engines"][0]["in_flight"], 5);
        assert_eq!(shown["engines"][0]["ttfb_seconds"], 1.5);
        assert_eq!(shown["engines"][1]["ttfb_seconds"], serde_json::Value::Null);
    }

    #[test]
    fn metrics_carry_the_port_and_other_methods_are_refused() {
        let source: Arc<dyn Rows> = Arc::new(rows);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(RowCollector(Arc::clone(&source))));
        let text = metrics::encode(&registry);
        for line in [
            "unlatch_local_in_flight{port=\"8000\"} 5",
            "unlatch_local_connections{port=\"8000\"} 9",
            "unlatch_local_answers_total{port=\"8000\"} 2",
            "unlatch_local_ttfb_seconds_total{port=\"8000\"} 3.0",
        ] {
            assert!(text.lines().any(|l| l.starts_with(line)), "{line} in\n{text}");
        }
        let code = |method, path| answer(&method, path, &registry, &*source).status().as_u16();
        assert_eq!((code(Method::GET, "/status"), code(Method::POST, "/status")), (200, 405));
        assert_eq!((code(Method::GET, "/healthz"), code(Method::GET, "/")), (200, 404));
    }
}
