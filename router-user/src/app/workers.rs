//! The worker threads: each with a runtime of its own, which nothing leaves. What a worker makes (connections on both
//! sides, their tasks) dies with its runtime.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{RunningRouter, StartError};
use crate::accept::limit::Connections;
use crate::accept::{self, AcceptLimits};
use crate::clock;
use crate::proxy::Proxy;
use crate::shutdown::{Ending, Phase};

/// How often idle upstream connections are looked through.
const REAP_INTERVAL: Duration = Duration::from_millis(200);

/// One worker thread.
#[derive(Debug)]
pub(super) struct Worker {
    thread: JoinHandle<()>,
    // Closed when the thread ends, whichever way.
    ended: Receiver<()>,
}

/// Starts a worker.
pub(super) fn start(
    router: &RunningRouter,
    proxy: Proxy,
    listener: TcpListener,
    limits: AcceptLimits,
) -> Result<Worker, StartError> {
    let (alive, ended) = sync_channel(0);
    let connections = Arc::clone(&router.connections);
    let ending = router.data_plane.listen();
    let name = format!("unlatch-{}", router.workers.len());
    let body = move || run(proxy, listener, limits, connections, ending, alive);
    let thread = std::thread::Builder::new().name(name).spawn(body).map_err(StartError::Internal)?;
    Ok(Worker { thread, ended })
}

impl Worker {
    /// Waits for its end, or until `until`.
    pub(super) fn wait(&self, until: Instant) {
        // Nothing is ever sent: the channel closes or time is up.
        let _ended: Result<(), RecvTimeoutError> =
            self.ended.recv_timeout(until.saturating_duration_since(Instant::now()));
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    pub(super) fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("a worker panicked");
        }
    }
}

/// The life of a worker.
fn run(
    proxy: Proxy,
    listener: TcpListener,
    limits: AcceptLimits,
    connections: Arc<Connections>,
    mut ending: Ending,
    _alive: SyncSender<()>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "cannot start a worker's runtime"),
    };
    let proxy = Arc::new(proxy);
    runtime.block_on(async {
        let serving =
            accept::serve(listener, Arc::clone(&proxy), limits, Arc::clone(&connections), ending.clone());
        tokio::select! {
            // Serving first: the reaper can wait.
            biased;
            served = serving => {
                if let Err(error) = served {
                    return tracing::error!(%error, "a worker cannot accept connections");
                }
            }
            () = reap(&proxy) => {}
        }
        tokio::select! {
            biased;
            () = connections.drained() => {}
            () = ending.reached(Phase::Stopping) => {}
        }
    });
    // Dropping the runtime drops its tasks, and with them the guards of what is still in flight.
}

/// Closes upstream connections that nobody takes, those nobody will be answered on, and those whose drain is over.
async fn reap(proxy: &Proxy) {
    let mut ticks = tokio::time::interval(REAP_INTERVAL);
    loop {
        ticks.tick().await;
        proxy.upstream().pool().reap(clock::now());
        proxy.end_gone();
        proxy.end_drained();
    }
}
