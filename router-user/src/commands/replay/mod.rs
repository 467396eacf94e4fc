//! `unlatch replay`: recorded traffic over simulated engines in virtual time, to compare policies; and with
//! `--decisions` what a router decided on real traffic, explained from its record (`decisions`).
//!
//! Reading order: `args`, `trace` (what was recorded), `workload` (when what arrives), `keys` (what engine and
//! router see of a prompt), `fleet` (the engines), `driver` (time), `chooser` with `facade` (the code the proxy
//! calls) and `gossip`, `oracle`, `calibrate` (what a load means), `http` (the same over HTTP in real time), `stats`, `claim`,
//! `report`, `plot`.
//!
//! Latencies are those of the model in `engine-sim`, not of GPUs. Invariant: flags and traces alone decide what is
//! printed, to the byte; only `http` is measured.

mod args;
mod calibrate;
mod chooser;
mod claim;
mod decisions;
mod driver;
mod facade;
mod fleet;
mod gossip;
mod http;
mod keys;
mod oracle;
mod packed;
mod plot;
mod record;
mod report;
mod stats;
#[cfg(test)]
mod tests;
mod trace;
mod workload;

use std::process::ExitCode;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

pub use args::ReplayArgs;

use args::ORACLE;
use chooser::Chooser;
use driver::{Driver, Flow};
use facade::Facade;
use oracle::Oracle;
use record::Run;
use stats::Summary;
use trace::Trace;
use workload::Workload;

use super::output;
use crate::cli::EXIT_USAGE;

/// Exit code when a claim does not hold.
const EXIT_CLAIM: u8 = 1;
/// Load for sessions that were recorded without times.
const LOAD_UNTIMED: f64 = 0.9;

/// One policy's run.
struct Compared {
    summary: Summary,
    run: Run,
}

/// Replays, prints, and checks the claims; or tells what a router decided.
///
/// Exit code 1 if a claim does not hold, 64 if flags do not go together, a file cannot be read, or it holds no
/// decision of the ID asked for.
///
/// # Errors
/// The plot or standard output cannot be written.
pub fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.decisions {
        return match decisions::answer(path, args.explain.as_deref(), args.json) {
            Ok(text) => output::answer(&text).map(|()| ExitCode::SUCCESS),
            Err(error) => Ok(wrong_usage(&error)),
        };
    }
    let bars = MultiProgress::new();
    let (trace, workload) = match prepare(args, &bars) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(wrong_usage(&error)),
    };
    let mut results = compare(args, &trace, &workload, &bars)?;
    if !args.url.is_empty() {
        results.push(over_http(args, &trace, &workload, &bars)?);
    }
    let summaries: Vec<Summary> = results.iter().map(|r| r.summary.clone()).collect();
    let text = if args.json {
        report::json(&summaries)?
    } else {
        report::table(args, &trace, &workload, &summaries)
    };
    output::answer(&text)?;
    if let Some(path) = &args.plot {
        let measured_from = stats::measured_from(workload.duration_seconds);
        let drawn =
            results.iter().map(|r| plot::Drawn { name: &r.summary.policy, run: &r.run, measured_from });
        plot::write(path, &drawn.collect::<Vec<_>>())?;
    }
    let mut all_hold = true;
    for claim in &args.claims {
        let (holds, line) = claim.check(&summaries);
        all_hold &= holds;
        output::tell(line);
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CLAIM) })
}

/// Says what is wrong.
fn wrong_usage(error: &anyhow::Error) -> ExitCode {
    output::tell(format_args!("unlatch replay: {error:#}"));
    ExitCode::from(EXIT_USAGE)
}

/// The trace, and its arrivals; what goes wrong up to here is wrong usage.
fn prepare(args: &ReplayArgs, bars: &MultiProgress) -> anyhow::Result<(Trace, Workload)> {
    args.check().map_err(anyhow::Error::msg)?;
    let trace = trace::load(&args.trace)?;
    let workload = workload(args, &trace, bars)?;
    Ok((trace, workload))
}

/// Arrivals at the load asked for.
fn workload(args: &ReplayArgs, trace: &Trace, bars: &MultiProgress) -> anyhow::Result<Workload> {
    let load = args.load.or_else(|| (!trace.is_timed()).then_some(LOAD_UNTIMED));
    let rate = match load {
        Some(load) => {
            let bar = bar(bars, "saturation", None);
            let found = calibrate::saturation(&args.setup(), trace, &|n| bar.inc(n))?;
            bar.finish_and_clear();
            Some(load * found)
        }
        None => None,
    };
    let all = workload::at_rate(trace, rate, args.seed)?;
    Ok(match args.arrivals {
        Some(n) => all.first(n as usize),
        None => all,
    })
}

/// Every policy over the same arrivals, as many at a time as there are cores.
fn compare(
    args: &ReplayArgs,
    trace: &Trace,
    workload: &Workload,
    bars: &MultiProgress,
) -> anyhow::Result<Vec<Compared>> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let calls = calls(trace, workload);
    let mut results = Vec::new();
    for names in args.policy.chunks(cores) {
        let ran: Vec<_> = std::thread::scope(|scope| {
            let spawn = |name: &String| {
                let name = name.clone();
                let bar = bar(bars, &name, Some(calls));
                scope.spawn(move || replay(args, trace, workload, &name, &bar))
            };
            let threads: Vec<_> = names.iter().map(spawn).collect();
            threads.into_iter().map(|t| t.join().expect("invariant: a run does not panic")).collect()
        });
        for result in ran {
            results.push(result?);
        }
    }
    Ok(results)
}

/// The same arrivals, sent to a router in real time: alone, so that nothing simulated delays them.
fn over_http(
    args: &ReplayArgs,
    trace: &Trace,
    workload: &Workload,
    bars: &MultiProgress,
) -> anyhow::Result<Compared> {
    let bar = bar(bars, http::NAME, Some(calls(trace, workload)));
    let sent = http::run(&args.url, args.time_scale, trace, &workload.arrivals, &|n| bar.inc(n))?;
    bar.finish_and_clear();
    if let Some(why) = &sent.complaint {
        output::tell(format_args!("{}: a request failed: {why}", http::NAME));
    }
    let late_p99_s = Some(stats::p99(sent.late_seconds));
    let summary = stats::summary(http::NAME, false, &sent.run, workload.duration_seconds);
    Ok(Compared { summary: Summary { late_p99_s, ..summary }, run: sent.run })
}

fn calls(trace: &Trace, workload: &Workload) -> u64 {
    workload.arrivals.iter().map(|a| trace.sessions[a.session as usize].calls.len() as u64).sum()
}

fn replay(
    args: &ReplayArgs,
    trace: &Trace,
    workload: &Workload,
    name: &str,
    bar: &ProgressBar,
) -> anyhow::Result<Compared> {
    let setup = args.setup();
    let mut chooser: Box<dyn Chooser> = match args.policy_config(name) {
        Some(config) => Box::new(Facade::new(&config, setup.engines, args.group(), args.seed)),
        None => Box::new(Oracle::new(args.seed)),
    };
    let driver = Driver::new(&setup, trace, &workload.arrivals, Flow::Open, chooser.as_mut())?;
    let run = driver.run(&|n| bar.inc(n));
    bar.finish_and_clear();
    let summary = stats::summary(name, name == ORACLE, &run, workload.duration_seconds);
    Ok(Compared { summary, run })
}

/// A bar on standard error, or nothing where that is no terminal.
fn bar(bars: &MultiProgress, name: &str, calls: Option<u64>) -> ProgressBar {
    let (bar, template) = match calls {
        Some(calls) => (ProgressBar::new(calls), "{msg:16} {bar:40} {human_pos}/{human_len} {eta}"),
        None => (ProgressBar::new_spinner(), "{msg:16} {spinner} {human_pos}"),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bars.add(bar.with_style(style).with_message(name.to_owned()))
}
