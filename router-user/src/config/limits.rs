//! Bounds of the data plane.

use std::time::Duration;

/// Bounds of the data plane.
#[derive(Clone, Debug)]
pub struct Limits {
    /// One request body; beyond it 413.
    pub body_bytes_max: u64,
    /// All request bodies held at once; beyond it 503.
    pub bodies_total_bytes_max: u64,
    /// Request line and headers; beyond it 431.
    pub head_bytes_max: usize,
    /// Time for a request's head to arrive.
    pub head_timeout: Duration,
    /// Client connections at once; beyond it new ones wait in the accept queue.
    pub client_conns_max: usize,
    /// Connecting to a backend.
    pub connect_timeout: Duration,
    /// Statuses of an engine after which another is asked.
    pub retry_statuses: Vec<u16>,
    /// Such retries per request, over time.
    pub retry_budget: f64,
    /// Times that a request is placed anew after a backend could not be reached or refused it.
    pub reroutes_max: u8,
    /// Longest silence within an answer, if there is a limit.
    pub stream_idle_timeout: Option<Duration>,
    /// Silence within a stream of events after which a comment is sent, if one is.
    pub sse_keepalive: Option<Duration>,
    /// Idle connections kept per backend and worker.
    pub idle_conns_max: usize,
    /// An idle connection is not reused after this long (uvicorn and llama.cpp close at 5 s).
    pub idle_conn_age_max: Duration,
    /// First back-off of a backend that refuses connections; doubles to the maximum.
    pub backoff_min: Duration,
    /// Longest back-off.
    pub backoff_max: Duration,
    /// Longest silence of an answer whose backend refuses connections, if there is a limit.
    pub gone_stream_timeout: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 64 << 20,
            bodies_total_bytes_max: 1 << 30,
            head_bytes_max: 64 << 10,
            head_timeout: Duration::from_secs(30),
            client_conns_max: 16_384,
            connect_timeout: Duration::from_secs(5),
            retry_statuses: vec![429, 503],
            retry_budget: 0.2,
            reroutes_max: u8::MAX,
            stream_idle_timeout: Some(Duration::from_secs(600)),
            sse_keepalive: None,
            idle_conns_max: 256,
            idle_conn_age_max: Duration::from_secs(4),
            backoff_min: Duration::from_millis(250),
            backoff_max: Duration::from_secs(10),
            gone_stream_timeout: Some(Duration::from_secs(5)),
        }
    }
}
