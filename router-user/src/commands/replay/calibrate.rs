//! What the engines can do: the closed-loop throughput of the oracle with 16 requests in flight an engine. A load
//! is a share of it.
//!
//! Measured over the first calls of the trace, from empty caches to the last answer. Cold caches and the last long
//! answers lower it, on purpose: the loads of the published tables are shares of such a figure. The number of calls
//! is the one at which this simulator meets those tables at 2, 8 and 64 engines.

use super::driver::{Driver, Flow, Setup};
use super::oracle::Oracle;
use super::record::Run;
use super::trace::Trace;
use super::workload::{Arrival, superposed};

/// Requests in flight per engine that saturate it.
const IN_FLIGHT: usize = 16;
/// Calls of the measurement, at least, and per engine.
const CALLS_MIN: usize = 2000;
const CALLS_PER_ENGINE: usize = 140;
/// Sessions for each that runs at a time, at least: else the end, when few are left, is most of the time.
const SESSIONS_EACH: usize = 4;

/// Calls per second at saturation.
///
/// # Errors
/// Engine settings under which nothing could run, or under which nothing was served.
pub(super) fn saturation(setup: &Setup, trace: &Trace, progress: &dyn Fn(u64)) -> anyhow::Result<f64> {
    // A load means the same whether caches get lost or not.
    let setup = &Setup { restart_every: None, ..*setup };
    let slots = IN_FLIGHT * setup.engines;
    let calls = (CALLS_PER_ENGINE * setup.engines).max(CALLS_MIN);
    let sessions = SESSIONS_EACH * slots;
    let copies = calls.div_ceil(trace.calls()).max(sessions.div_ceil(trace.sessions.len()));
    let workload = superposed(trace, u32::try_from(copies)?, 1.0, setup.seed);
    let arrivals = leading(trace, &workload.arrivals, sessions, calls);
    let mut oracle = Oracle::new(setup.seed);
    let run = Driver::new(setup, trace, arrivals, Flow::Closed(slots), &mut oracle)?.run(progress);
    let found = throughput(&run);
    anyhow::ensure!(found > 0.0, "the engines served nothing of the trace: their KV pool is too small");
    Ok(found)
}

/// So many sessions at least, and so many that their calls are `calls`; or all.
fn leading<'a>(trace: &Trace, arrivals: &'a [Arrival], sessions: usize, calls: usize) -> &'a [Arrival] {
    let mut sum = 0;
    let enough = arrivals.iter().position(|arrival| {
        sum += trace.sessions[arrival.session as usize].calls.len();
        sum >= calls
    });
    let enough = enough.map_or(arrivals.len(), |last| last + 1);
    &arrivals[..enough.max(sessions).min(arrivals.len())]
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
        Session { start_seconds: None, calls: vec![call; calls], is_one_client: true }
    }

    #[test]
    fn whole_sessions_are_taken_until_there_are_enough() {
        let trace = Trace::new(vec![session(3); 4]);
        let arrivals = superposed(&trace, 1, 1.0, 0).arrivals;
        for (sessions, calls, want) in [(1, 1, 1), (1, 3, 1), (1, 4, 2), (3, 4, 3), (1, 12, 4), (9, 99, 4)] {
            let found = leading(&trace, &arrivals, sessions, calls).len();
            assert_eq!(found, want, "{sessions} sessions, {calls} calls");
        }
    }
}
