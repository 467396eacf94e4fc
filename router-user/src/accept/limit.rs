//! The cap on client connections, over all workers, and what is counted of connections.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Client connections of the process. Clones share one cap.
#[derive(Debug)]
pub struct Connections {
    permits: Arc<Semaphore>,
    conns_max: u32,
    counters: Arc<Counters>,
}

/// What is counted of client connections; clients cannot add to the set.
#[derive(Debug, Default)]
pub struct Counters {
    /// Accepting failed.
    pub accept_errors: Counter,
    /// A worker found the cap reached and left connections in the accept queue.
    pub at_cap: Counter,
    /// Heads over twice the limit, answered 431 without a body.
    pub heads_too_large: Counter,
    /// Not HTTP/1, answered 400.
    pub malformed: Counter,
    /// A head that did not arrive in time; the connection was closed.
    pub head_timeouts: Counter,
    /// Ended in the middle of a request, by the client or by an engine's broken answer.
    pub broken_off: Counter,
}

impl Counters {
    /// Registers all counters.
    pub fn register(&self, registry: &mut Registry) {
        let mut add =
            |name: &str, help: &str, counter: &Counter| registry.register(name, help, counter.clone());
        add("accept_errors", "Accepting a client connection failed", &self.accept_errors);
        add("client_connections_at_cap", "A worker waited for the connection cap", &self.at_cap);
        add("client_heads_too_large", "Heads over twice the limit", &self.heads_too_large);
        add("client_malformed", "Client connections that did not speak HTTP/1", &self.malformed);
        add("client_head_timeouts", "Heads that did not arrive in time", &self.head_timeouts);
        add("client_broken_off", "Client connections that ended within a request", &self.broken_off);
    }
}

impl Connections {
    /// At most `conns_max` connections at once, at least 1.
    #[must_use]
    pub fn new(conns_max: usize) -> Self {
        let conns_max = u32::try_from(conns_max.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let permits = Arc::new(Semaphore::new(conns_max as usize));
        Self { permits, conns_max, counters: Arc::default() }
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Room for one connection, when there is.
    pub(super) async fn permit(&self) -> OwnedSemaphorePermit {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return permit;
        }
        self.counters.at_cap.inc();
        Arc::clone(&self.permits).acquire_owned().await.expect("invariant: the semaphore is never closed")
    }

    /// Waits until no connection is left (and no worker accepts). Dropping the future stops the waiting only.
    pub async fn drained(&self) {
        let all = self.permits.acquire_many(self.conns_max).await;
        drop(all.expect("invariant: the semaphore is never closed"));
    }
}
