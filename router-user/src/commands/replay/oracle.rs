//! The oracle: uses knowledge no router has. Exact cache contents and exact remaining work of every engine; takes
//! the least own TTFT + 0.2 × own prefill time per request in flight there. Greedy, hence no proven bound.
//!
//! The TTFT is looked ahead by [`engine_sim::Engine::forecast_first_token`]; engines that cannot beat the best so
//! far even if nothing but known prefill lay before are not looked at.

use engine_sim::{Engine, Prompt};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use router_policy::Nanos;

use super::chooser::{Asked, Chooser, End, Placed};
use super::fleet::Fleet;

/// What a prefill costs each request in flight beside it, as a share of its time.
const DISTURBANCE: f64 = 0.2;

/// Places by what will happen.
pub(super) struct Oracle {
    rng: Xoshiro256PlusPlus,
    /// By engine: least possible cost, cost of disturbing others; reused.
    bounds: Vec<Bound>,
}

#[derive(Clone, Copy)]
struct Bound {
    row: usize,
    least_ms: f64,
    disturbance_ms: f64,
}

impl Oracle {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Xoshiro256PlusPlus::seed_from_u64(seed), bounds: Vec::new() }
    }

    fn best(&mut self, now: Nanos, fleet: &Fleet, prompt: &Prompt) -> usize {
        let now = engine_sim::Nanos(now.0);
        let engines = fleet.engines();
        self.bounds.clear();
        self.bounds.extend(
            (0..)
                .zip(engines)
                .zip(fleet.in_flight())
                .map(|((row, engine), in_flight)| bound(row, engine, *in_flight, now, prompt)),
        );
        self.bounds.sort_by(|a, b| a.least_ms.total_cmp(&b.least_ms));
        let (mut best, mut least_ms, mut equals) = (0, f64::INFINITY, 0_u32);
        for bound in &self.bounds {
            if bound.least_ms > least_ms {
                break;
            }
            let first_token = engines[bound.row].forecast_first_token(now, prompt);
            let cost_ms = first_token.since(now).as_ms_f64() + bound.disturbance_ms;
            if cost_ms < least_ms {
                (best, least_ms, equals) = (bound.row, cost_ms, 1);
            } else if cost_ms <= least_ms {
                equals += 1;
                if self.rng.random_range(0..equals) == 0 {
                    best = bound.row;
                }
            }
        }
        best
    }
}

fn bound(row: usize, engine: &Engine, in_flight: u32, now: engine_sim::Nanos, prompt: &Prompt) -> Bound {
    let profile = &engine.config().profile;
    let uncached = engine.uncached_tokens(prompt);
    let (new, prior) = (f64::from(uncached), f64::from(prompt.tokens() - uncached));
    let own_ms = profile.c_ms * new + profile.alpha_ms * new * (prior + new / 2.0);
    let disturbance_ms = DISTURBANCE * own_ms * f64::from(in_flight);
    let (backlog, stats) = (engine.prefill_backlog(), engine.stats());
    let ahead_ms = engine.next_step_begins(now).since(now).as_ms_f64() + profile.c_ms * backlog as f64;
    // A prefix that is still to be computed there may come to be shared; else all own work is to be done.
    let is_settled = backlog == 0 && stats.waiting + stats.arriving == 0;
    let least_ms = ahead_ms + disturbance_ms + if is_settled { own_ms } else { 0.0 };
    Bound { row, least_ms, disturbance_ms }
}

impl Chooser for Oracle {
    fn pick(&mut self, now: Nanos, fleet: &Fleet, asked: &Asked<'_>) -> Option<Placed> {
        Some(Placed { engine: self.best(now, fleet, asked.prompt), router: 0, ticket: None })
    }

    fn first_byte(&mut self, _now: Nanos, _placed: &mut Placed) {}

    fn finished(&mut self, _now: Nanos, _placed: Placed, _end: End) {}

    fn scrape(&mut self, _now: Nanos, _fleet: &Fleet) {}

    fn restarted(&mut self, _engine: usize) {}
}
