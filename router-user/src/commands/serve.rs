//! `unlatch serve`: a router until SIGTERM or SIGINT, then a drain within the deadline. SIGHUP, and a watched file that
//! changed, read the configuration again.

use std::convert::Infallible;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::app::{Reload, Router, RunningRouter};
use crate::cli::{EXIT_INTERNAL, EXIT_USAGE, ServeArgs};
use crate::config::production_stack::dynamic::BYTES_MAX;
use crate::discovery::file_watch::FileWatch;
use crate::observe;
use crate::shutdown::{Reloads, Signals};

/// How often it is looked whether a worker died.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Serves until a signal. Exit codes: 0 after a drain, complete or not; 64 wrong configuration; 69 could not bind or
/// start; 70 internal.
#[must_use]
pub fn run(args: ServeArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, EXIT_INTERNAL),
    };
    // Looked at before they are read, so that no change is missed.
    let look = |path: &PathBuf| {
        let mut watch = FileWatch::new(path.clone(), BYTES_MAX);
        let _read_below = runtime.block_on(watch.changed());
        watch
    };
    let dynamic = args.dynamic.as_ref().map(|file| look(&file.path));
    let file = args.config.as_ref().map(look);
    let (config, notices) = match args.resolve_with_notices() {
        Ok(resolved) => resolved,
        Err(error) => return fail(&error, EXIT_USAGE),
    };
    if let Err(error) = observe::tracing::init(&config.log) {
        return fail(&error, EXIT_INTERNAL);
    }
    for notice in notices {
        tracing::info!("{notice}");
    }
    let watches = dynamic.into_iter().chain(file.filter(|_| config.watch_config)).collect();
    let deadline = config.shutdown_deadline;
    // Before the router listens: a signal that comes early must drain too.
    let taken = runtime.block_on(async { Ok::<_, std::io::Error>((Signals::new()?, Reloads::new()?)) });
    let (mut signals, reloads) = match taken {
        Ok(taken) => taken,
        Err(error) => return fail(&error, EXIT_INTERNAL),
    };
    let router = match Router::start_from(config, Some(Box::new(move || args.resolve()))) {
        Ok(router) => router,
        Err(error) => return fail(&error, error.exit_code()),
    };
    let follow = follow(reloads, watches, Arc::clone(router.reloader()));
    runtime.block_on(serve(router, &mut signals, follow, deadline))
}

async fn serve(
    router: RunningRouter,
    signals: &mut Signals,
    follow: impl Future<Output = Infallible>,
    deadline: Duration,
) -> ExitCode {
    tokio::select! {
        // A signal first: a failed worker is cut by the drain all the same.
        biased;
        () = signals.next() => {}
        never = follow => match never {},
        () = failed(&router) => {
            tracing::error!("a worker ended by itself");
            return ExitCode::from(EXIT_INTERNAL);
        }
    }
    tracing::info!(in_flight = router.in_flight(), deadline_s = deadline.as_secs_f64(), "draining");
    let drain = tokio::task::spawn_blocking(move || router.shutdown(deadline));
    tokio::select! {
        // A drain that is over beats a late signal.
        biased;
        ended = drain => match ended {
            Ok(ended) if ended.cut == 0 => tracing::info!("all requests ended"),
            Ok(ended) => tracing::warn!(cut = ended.cut, "the deadline cut requests"),
            Err(error) => tracing::error!(%error, "the drain failed"),
        },
        () = signals.next() => {
            tracing::warn!("second signal: not waiting");
            std::process::exit(0);
        }
    }
    ExitCode::SUCCESS
}

/// Reads the configuration again at each SIGHUP, and each time a watched file of it changed.
async fn follow(mut reloads: Reloads, watches: Vec<FileWatch>, reload: Arc<Reload>) -> Infallible {
    let changed = Arc::new(Notify::new());
    let mut watching = JoinSet::new();
    for mut watch in watches {
        let changed = Arc::clone(&changed);
        watching.spawn(async move {
            loop {
                let _read_again = watch.changed().await;
                changed.notify_one();
            }
        });
    }
    loop {
        // No order is needed: each means the same, and none is lost.
        tokio::select! {
            () = reloads.next() => {}
            () = changed.notified() => {}
        }
        let reload = Arc::clone(&reload);
        // What came of it is in the log.
        let _logged = tokio::task::spawn_blocking(move || reload.reload()).await;
    }
}

/// Ends when a worker did.
async fn failed(router: &RunningRouter) {
    let mut ticks = tokio::time::interval(WATCH_INTERVAL);
    while !router.has_failed() {
        ticks.tick().await;
    }
}

/// The error and its causes on one line of stderr.
fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    let line = crate::error::chain(error);
    // Nothing is left to do if stderr is closed.
    let _ = writeln!(std::io::stderr(), "unlatch: {line}");
    ExitCode::from(code)
}
