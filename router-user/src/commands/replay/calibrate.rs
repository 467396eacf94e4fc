//! What the engines can do at most: the closed-loop throughput of the oracle with 16 requests in flight an engine.
//! A load is a share of it.

use super::driver::{Driver, Flow, Setup};
use super::oracle::Oracle;
use super::record::Run;
use super::trace::Trace;
use super::workload::{Arrival, superposed};

/// Requests in flight per engine that saturate it.
const IN_FLIGHT: usize = 16;
/// Calls per engine that the measurement takes at most.
const CALLS_PER_ENGINE: usize = 1500;
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
    let mut copies = 1;
    let mut found = 0.0;
    for _ in 0..ROUNDS {
        let workload = superposed(trace, copies, 1.0, setup.seed);
        let arrivals = leading(trace, &workload.arrivals, CALLS_PER_ENGINE * setup.engines);
        let mut oracle = Oracle::new(setup.seed);
        let flow = Flow::Closed(IN_FLIGHT * setup.engines);
        let run = Driver::new(setup, trace, arrivals, flow, &mut oracle)?.run(progress);
        found = throughput(&run);
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

/// Ends per second between the first quarter of the time and the moment when there was nothing left to send.
fn throughput(run: &Run) -> f64 {
    let last_sent = run.records.iter().map(|r| r.sent).max().unwrap_or_default();
    let begin = last_sent.0 / 4;
    let ends = run.records.iter().filter(|r| (begin..=last_sent.0).contains(&r.ended.0)).count();
    ends as f64 * 1e9 / (last_sent.0 - begin).max(1) as f64
}

#[cfg(test)]
mod tests {
    use router_policy::Nanos;

    use super::super::record::Record;
    use super::*;

    #[test]
    fn throughput_leaves_out_warm_up_and_the_end() {
        let second = 1_000_000_000;
        let record = |sent: u64, ended: u64| Record {
            sent: Nanos(sent * second),
            ended: Nanos(ended * second),
            ..Record::default()
        };
        let records = (0..=100).map(|s| record(s, s + 10)).collect();
        let found = throughput(&Run { records, ..Run::default() });
        assert!((found - 76.0 / 75.0).abs() < 1e-9, "ends from 25 s to 100 s: {found}");
    }
}
