//! What the engines can do: the closed-loop throughput of the oracle with 16 requests in flight an engine, from
//! empty caches to the last answer. A load is a share of it.
//!
//! Cold caches and the last long answers are part of it on purpose: that is what the published tables' loads refer
//! to, and it makes a load mean the same with few engines and with many.

use super::driver::{Driver, Flow, Setup};
use super::oracle::Oracle;
use super::record::Run;
use super::trace::Trace;
use super::workload::{Arrival, superposed};

/// Requests in flight per engine that saturate it.
const IN_FLIGHT: usize = 16;
/// Calls per engine in one measurement, and calls at least.
const CALLS_PER_ENGINE: usize = 200;
const CALLS_MIN: usize = 1600;
/// Measurements, each from another place of the trace, whose mean is taken.
const PLACES: usize = 4;
/// The number of copies depends on the result, so it is measured again with the number found.
const ROUNDS: usize = 3;

/// Calls per second at saturation, for a trace of as many copies as `load` times that takes.
///
/// # Errors
/// Engine settings under which nothing could run, or under which nothing was served.
pub(super) fn saturation(
    setup: &Setup,
    trace: &Trace,
    load: f64,
    progress: &dyn Fn(u64),
) -> anyhow::Result<f64> {
    let calls = (CALLS_PER_ENGINE * setup.engines).max(CALLS_MIN);
    let (mut copies, mut found) = (1, 0.0);
    for _ in 0..ROUNDS {
        let workload = superposed(trace, copies, 1.0, setup.seed);
        let mut sum = 0.0;
        for place in 0..PLACES {
            let arrivals = &workload.arrivals[place * workload.arrivals.len() / PLACES..];
            let arrivals = leading(trace, arrivals, calls);
            let mut oracle = Oracle::new(setup.seed);
            let flow = Flow::Closed(IN_FLIGHT * setup.engines);
            let run = Driver::new(setup, trace, arrivals, flow, &mut oracle)?.run(progress);
            sum += throughput(&run);
            eprint!("{:.3} ", throughput(&run));
        }
        found = sum / PLACES as f64;
        eprintln!("{copies} {found:.3}");
        anyhow::ensure!(found > 0.0, "the engines served nothing of the trace: their KV pool is too small");
        let needed = (found * load / trace.rate()).ceil().max(1.0) as u32;
        if needed == copies {
            break;
        }
        copies = needed;
    }
    Ok(found)
}

/// So many sessions that their calls are `calls`, or all.
fn leading<'a>(trace: &Trace, arrivals: &'a [Arrival], calls: usize) -> &'a [Arrival] {
    let mut sum = 0;
    let enough = arrivals.iter().position(|arrival| {
        sum += trace.sessions[arrival.session as usize].calls.len();
        sum >= calls
    });
    &arrivals[..enough.map_or(arrivals.len(), |last| last + 1)]
}

/// Answers per second until the last.
fn throughput(run: &Run) -> f64 {
    run.records.len() as f64 * 1e9 / run.makespan.0.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Call, Session};
    use super::*;

    fn session(calls: usize) -> Session {
        let call = Call {
            ids: [1].into(),
            unit_tokens: 512,
            prompt_tokens: 512,
            output_tokens: 1,
            gap_seconds: 0.0,
        };
        Session { start_seconds: None, calls: vec![call; calls] }
    }

    #[test]
    fn whole_sessions_are_taken_until_there_are_calls_enough() {
        let trace = Trace::new(vec![session(3); 4]);
        let arrivals = superposed(&trace, 1, 1.0, 0).arrivals;
        for (calls, sessions) in [(1, 1), (3, 1), (4, 2), (12, 4), (99, 4)] {
            assert_eq!(leading(&trace, &arrivals, calls).len(), sessions, "{calls} calls");
        }
    }
}
