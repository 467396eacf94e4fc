//! `unlatch serve`: a router until SIGTERM or SIGINT, then a drain within the deadline. SIGHUP reads the configuration
//! again.

use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

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
    // Looked at before it is read, so that no change is missed.
    let watch = args.dynamic.as_ref().map(|file| {
        let mut watch = FileWatch::new(file.path.clone(), BYTES_MAX);
        let _read_below = runtime.block_on(watch.changed());
        watch
    });
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
    let deadline = config.shutdown_deadline;
    // Before the router listens: a signal that comes early must drain too.
    let taken = runtime.block_on(async { Ok::<_, std::io::Error>((Signals::new()?, Reloads::new()?)) });
    let (mut signals, mut reloads) = match taken {
        Ok(taken) => taken,
        Err(error) => return fail(&error, EXIT_INTERNAL),
    };
    let router = match Router::start_from(config, Some(Box::new(move || args.resolve()))) {
        Ok(router) => router,
        Err(error) => return fail(&error, error.exit_code()),
    };
    runtime.block_on(serve(router, &mut signals, &mut reloads, watch, deadline))
}

async fn serve(
    router: RunningRouter,
    signals: &mut Signals,
    reloads: &mut Reloads,
    watch: Option<FileWatch>,
    deadline: Duration,
) -> ExitCode {
    let mut follow = pin!(follow(watch, Arc::clone(router.reloader())));
    loop {
        tokio::select! {
            // A signal first: a failed worker is cut by the drain all the same.
            biased;
            () = signals.next() => break,
            () = reloads.next() => {
                let reload = Arc::clone(router.reloader());
                // What came of it is in the log.
                let _logged = tokio::task::spawn_blocking(move || reload.reload()).await;
            }
            () = &mut follow => {}
            () = failed(&router) => {
                tracing::error!("a worker ended by itself");
                return ExitCode::from(EXIT_INTERNAL);
            }
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

/// Reads the configuration again each time a file of it changed; without one waits for ever.
async fn follow(watch: Option<FileWatch>, reload: Arc<Reload>) {
    let Some(mut watch) = watch else { return std::future::pending().await };
    loop {
        let _read_again = watch.changed().await;
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
