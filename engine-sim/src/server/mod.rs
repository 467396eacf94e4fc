//! A thin HTTP/1.1 server that lets one model run in real (or scaled) time.
//!
//! Reading order: [`config`], `clock`, `progress` (what a response waits for), `runner` (model, clock and waiting
//! responses under one lock, and the one task that drives them), `openai` (bodies to prompts), `words`, `answer`
//! (tokens to events), `body` (how faults spoil them), `error`, `metrics`, `life` (restarts), `door` (the port),
//! `socket`, `app` (all of these), `generate`, `pages`, `routes`, [`handle`], and the accept loop here.
//!
//! Not here: anything that decides when a token comes, or which request gets which fault. Nothing is logged but start, stop and accept errors.
//! Invariant: all tasks belong to the [`Handle`]; stopping or dropping it ends them.

mod answer;
mod app;
mod body;
mod clock;
pub mod config;
mod door;
mod error;
mod generate;
pub mod handle;
mod life;
mod metrics;
mod openai;
mod pages;
mod progress;
mod routes;
mod runner;
mod socket;
mod words;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

pub use app::SetFaultsError;
pub use config::{Config, StartError};
pub use handle::{FaultControl, Handle};

use app::App;
use door::Door;
use socket::{Link, Socket};

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
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(Arc::clone(&app), stopped));
        tracing::info!(addr = %app.door.addr(), name = config.name, profile = config.engine.profile.name, "engine started");
        Ok(Handle { app, stop, task })
    }
}

/// Runs driver and accept loop until `stopped` says so or its sender is gone, then closes every connection.
async fn serve(app: Arc<App>, stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    // Any order will do: the first arm ends the others, which never end by themselves.
    tokio::select! {
        _ = stopped => {}
        () = app.runner.drive() => {}
        () = accept(&app, &mut connections) => {}
    }
    app.door.close();
    app.admin_door.iter().for_each(Door::close);
    connections.shutdown().await;
    tracing::info!(name = app.name, "engine stopped");
}

async fn accept(app: &Arc<App>, connections: &mut JoinSet<()>) {
    loop {
        // Any order will do: neither loses a connection when the other has one.
        let accepted = tokio::select! {
            accepted = app.door.accept() => accepted.map(|stream| (stream, Link::default())),
            accepted = Door::accept_at(app.admin_door.as_ref()) => accepted.map(|stream| (stream, Link::admin())),
        };
        let (stream, link) = match accepted {
            Ok(accepted) => accepted,
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
        connections.spawn(connection(Arc::clone(app), stream, link, app.life.watch()));
    }
}

/// Serves one client, for as long as this life of the engine lasts. hyper drops the handler or the response body as
/// soon as the client leaves, and with it the generation, which gives its seat back.
async fn connection(app: Arc<App>, stream: TcpStream, link: Link, mut life: watch::Receiver<u64>) {
    // Without it each token would wait for the acknowledgement of the one before.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let link = Arc::new(link);
    let socket = Socket::new(stream, Arc::clone(&link));
    let serve = async {
        let service = service_fn(|request| routes::handle(Arc::clone(&app), Arc::clone(&link), request));
        if !link.is_admin() {
            tokio::time::sleep(app.connect_delay()).await;
        }
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(socket), service).await
    };
    let cut = async { while life.changed().await.is_ok() && link.survives() {} };
    // Any order will do: what is cut has no last word.
    tokio::select! {
        served = serve => {
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = cut => tracing::debug!("connection cut by a restart"),
    }
}
