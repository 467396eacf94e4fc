//! A thin HTTP/1.1 server that lets one model run in real (or scaled) time.
//!
//! Reading order: [`config`], `clock`, `progress` (what a response waits for), `runner` (model, clock and waiting
//! responses under one lock, and the one task that drives them), `openai` (bodies to prompts), `words`, `answer`
//! (tokens to bodies), `error`, `metrics`, `routes`, and the accept loop here.
//!
//! Not here: anything that decides when a token comes. Nothing is logged but start, stop and accept errors.
//! Invariant: all tasks belong to the [`Handle`]; stopping or dropping it ends them.

mod answer;
mod clock;
pub mod config;
mod error;
mod metrics;
mod openai;
mod progress;
mod routes;
mod runner;
mod words;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

pub use config::{Config, StartError};

use crate::model::Stats;
use routes::App;

/// Client connections at once; further ones are closed at once and counted.
const MAX_CONNECTIONS: usize = 16_384;
/// Pause after a failed accept, for the usual reason is that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Starts engines.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Binds and serves on the caller's runtime until the handle is stopped or dropped.
    ///
    /// # Errors
    /// The address cannot be bound, or the settings cannot work.
    pub async fn start(config: Config) -> Result<Handle, StartError> {
        let app = Arc::new(App::new(&config)?);
        let bind = |source| StartError::Bind { addr: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(bind)?;
        let addr = listener.local_addr().map_err(bind)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(Arc::clone(&app), listener, stopped));
        tracing::info!(%addr, name = config.name, profile = config.engine.profile.name, "engine started");
        Ok(Handle { addr, app, stop, task })
    }
}

/// A running engine. Dropping it stops the engine and closes its connections soon after.
#[derive(Debug)]
pub struct Handle {
    addr: SocketAddr,
    app: Arc<App>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Handle {
    /// Where it listens; the port is a real one even if 0 was asked for.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The base URL, without a trailing slash.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Gauges, peaks and counters of this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.app.runner.stats()
    }

    /// Starts the peaks again from what runs and waits now.
    pub fn reset_peaks(&self) {
        self.app.runner.reset_peaks();
    }

    /// Stops at once, as a crash would: running streams are cut. Returns when every socket is closed.
    pub async fn stop(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "engine task failed");
        }
    }
}

/// Runs driver and accept loop until `stopped` says so or its sender is gone, then closes every connection.
async fn serve(app: Arc<App>, listener: TcpListener, stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    // Any order will do: the first arm ends the others, which never end by themselves.
    tokio::select! {
        _ = stopped => {}
        () = app.runner.drive() => {}
        () = accept(&app, &listener, &mut connections) => {}
    }
    drop(listener);
    connections.shutdown().await;
    tracing::info!(name = app.name, "engine stopped");
}

async fn accept(app: &Arc<App>, listener: &TcpListener, connections: &mut JoinSet<()>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if connections.len() >= MAX_CONNECTIONS {
            app.refused_connections.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        connections.spawn(connection(Arc::clone(app), stream));
    }
}

/// Serves one client. hyper drops the handler or the response body as soon as the client leaves, and with it the
/// generation, which gives its seat back.
async fn connection(app: Arc<App>, stream: TcpStream) {
    // Without it each token would wait for the acknowledgement of the one before.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let service = service_fn(|request| routes::handle(Arc::clone(&app), request));
    let served =
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}
