//! When which session starts: a trace at a wanted rate, by superposing copies of it and scaling time.
//!
//! Copy j starts `frac(j × 0.618)` of the duration into the trace and goes round, so copies do not beat together.
//! Invariant: the same trace, rate and seed give the same arrivals.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use router_policy::Nanos;

use super::trace::Trace;

/// Shift between copies, as a share of the duration.
const GOLDEN: f64 = 0.618;
/// Copies at most.
const COPIES_MAX: f64 = 10_000.0;

/// One session of one copy of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// When its first gap begins.
    pub(super) at: Nanos,
    /// Index into the trace.
    pub(super) session: u32,
    /// Which copy.
    pub(super) copy: u32,
}

/// Sessions by time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    /// In order of time.
    pub(super) arrivals: Vec<Arrival>,
    /// Copies superposed.
    pub(super) copies: u32,
    /// Seconds that the starts span.
    pub(super) duration_seconds: f64,
    /// Calls per second, if sessions never waited.
    pub(super) rate: f64,
}

impl Workload {
    /// The first `n` sessions, as if nothing came after.
    pub(super) fn first(mut self, n: usize) -> Self {
        if let Some(next) = self.arrivals.get(n) {
            self.duration_seconds = next.at.seconds_since(Nanos(0));
            self.arrivals.truncate(n);
        }
        self
    }
}

/// The trace at `rate` calls a second; `None`: as recorded.
///
/// # Errors
/// A rate that would take more than 10,000 copies.
pub(super) fn at_rate(trace: &Trace, rate: Option<f64>, seed: u64) -> anyhow::Result<Workload> {
    let rate = rate.unwrap_or_else(|| trace.rate());
    let wanted = rate / trace.rate();
    anyhow::ensure!(
        wanted.is_finite() && wanted > 0.0 && wanted <= COPIES_MAX,
        "{rate:.3} requests a second are out of reach for a trace of {:.3}",
        trace.rate()
    );
    // Times are stretched, never squeezed by much: arrivals stay as bursty as they were recorded.
    let copies = ((wanted - 1e-9).ceil() as u32).max(1);
    Ok(superposed(trace, copies, f64::from(copies) / wanted, seed))
}

/// So many copies, with time passing `stretch` times as slowly.
pub(super) fn superposed(trace: &Trace, copies: u32, stretch: f64, seed: u64) -> Workload {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let duration = trace.duration_seconds;
    let mut arrivals = Vec::with_capacity(trace.sessions.len() * copies as usize);
    for copy in 0..copies {
        let shift = (f64::from(copy) * GOLDEN).fract() * duration;
        for (session, recorded) in (0..).zip(&trace.sessions) {
            let chance: f64 = rng.random();
            let start = match recorded.start_seconds {
                Some(start) => start + chance * trace.tick_seconds,
                None => chance * duration,
            };
            // A copy that starts in the middle of the trace gives first what comes from there on.
            let turned = if start < shift { start - shift + duration } else { start - shift };
            arrivals.push(Arrival { at: Nanos::from_secs_f64(turned * stretch), session, copy });
        }
    }
    arrivals.sort_by_key(|a| (a.at, a.copy, a.session));
    let duration_seconds = duration * stretch;
    let rate = trace.rate() * f64::from(copies) / stretch;
    Workload { arrivals, copies, duration_seconds, rate }
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Call, Session};
    use super::*;

    fn trace(starts: &[Option<f64>]) -> Trace {
        let call = |id| Call {
            ids: [id].into(),
            unit_tokens: 512,
            prompt_tokens: 512,
            output_tokens: 1,
            gap_seconds: 0.0,
        };
        let session = |(id, start): (u64, &Option<f64>)| Session {
            start_seconds: *start,
            calls: vec![call(id)],
            is_one_client: true,
        };
        Trace::new((0..).zip(starts).map(session).collect())
    }

    #[test]
    fn one_copy_at_its_own_rate_keeps_the_times_within_their_tick() {
        let trace = trace(&[Some(0.0), Some(0.0), Some(3.0), Some(6.0), Some(9.0)]);
        let workload = at_rate(&trace, None, 1).unwrap();
        assert_eq!((workload.copies, workload.duration_seconds), (1, 12.0));
        for (arrival, tick) in workload.arrivals.iter().zip([0.0, 0.0, 3.0, 6.0, 9.0]) {
            let seconds = arrival.at.seconds_since(Nanos(0));
            assert!((tick..tick + 3.0).contains(&seconds), "{seconds} of {tick}");
        }
    }

    #[test]
    fn the_last_of_exact_times_stays_the_last() {
        let workload = at_rate(&trace(&[Some(0.0), Some(1.0), Some(2.001), Some(9.999)]), None, 1).unwrap();
        assert_eq!(workload.arrivals.iter().map(|a| a.session).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn copies_are_shifted_by_the_golden_ratio_and_go_round() {
        let trace = trace(&[Some(0.5), Some(1.0), Some(2.001), Some(9.999)]);
        let workload = superposed(&trace, 2, 1.0, 1);
        let of_copy_1: Vec<_> = workload.arrivals.iter().filter(|a| a.copy == 1).collect();
        assert_eq!(of_copy_1.iter().map(|a| a.session).collect::<Vec<_>>(), [3, 0, 1, 2]);
        let shift = 0.618 * trace.duration_seconds;
        let first = of_copy_1[0].at.seconds_since(Nanos(0));
        assert!((first - (9.999 - shift)).abs() < 1e-6, "{first}");
        assert!(workload.arrivals.is_sorted_by_key(|a| a.at));
    }

    #[test]
    fn a_rate_between_copies_stretches_time() {
        let trace = trace(&[Some(0.0), Some(1.0), Some(2.001), Some(9.999)]);
        let workload = at_rate(&trace, Some(1.5 * trace.rate()), 1).unwrap();
        assert_eq!((workload.copies, workload.arrivals.len()), (2, 8));
        assert!((workload.duration_seconds - trace.duration_seconds * 2.0 / 1.5).abs() < 1e-9);
        assert!((workload.rate - 1.5 * trace.rate()).abs() < 1e-9);
        assert!(at_rate(&trace, Some(f64::INFINITY), 1).is_err());
        assert!(at_rate(&trace, Some(1e9), 1).is_err());
    }

    #[test]
    fn the_first_sessions_end_where_the_next_would_start() {
        let all = at_rate(&trace(&[Some(0.5), Some(1.0), Some(2.001), Some(9.999)]), None, 1).unwrap();
        let first = all.clone().first(3);
        assert_eq!(first.arrivals, all.arrivals[..3]);
        assert!((first.duration_seconds - 9.999).abs() < 1e-9);
        assert_eq!((first.rate, all.clone().first(4)), (all.rate, all));
    }

    #[test]
    fn the_seed_decides_what_the_trace_leaves_open() {
        let trace = trace(&[None, None, None]);
        assert_eq!(at_rate(&trace, None, 4).unwrap(), at_rate(&trace, None, 4).unwrap());
        assert_ne!(at_rate(&trace, None, 4).unwrap(), at_rate(&trace, None, 5).unwrap());
    }
}
