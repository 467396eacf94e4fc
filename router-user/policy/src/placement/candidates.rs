//! From standings to candidates: the filter, and what the pickers need of each backend it leaves.

use router_common::BackendId;

use super::Placement;
use super::pools::{learned, members};
use crate::config::{OwnCounts, PolicyConfig, PolicyName};
use crate::cost::{Load, PoolMeans};
use crate::decision::PickError;
use crate::filter::{Gate, Verdict, judge, refusal};
use crate::load::InFlight;
use crate::pick::{Candidate, Habits};
use crate::prefix::Walk;
use crate::request::RequestShape;
use crate::task::Task;
use crate::time::Nanos;

/// What one pick looks at, beside the backends.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) now: Nanos,
    pub(super) request: &'a RequestShape,
    pub(super) tried: &'a [BackendId],
    pub(super) walk: &'a Walk,
    /// Number of the model's pool.
    pub(super) pool: usize,
    pub(super) means: &'a PoolMeans,
}

/// What a comparison fills, one of each a candidate.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) candidates: Vec<Candidate>,
    pub(super) habits: Vec<Habits>,
    /// What was compared, where loads were.
    pub(super) values: Vec<f64>,
}

impl Scene<'_> {
    /// T.
    pub(super) fn prompt_tokens(&self) -> u64 {
        self.request.prompt_tokens(self.means.chars_per_token)
    }

    fn matched(&self, id: BackendId) -> Matched {
        let blocks = self.walk.leading_blocks(id);
        Matched { blocks, tokens: self.request.matched_tokens(blocks, self.means.chars_per_token) }
    }
}

/// What a backend holds of the prompt.
#[derive(Clone, Copy, Default)]
struct Matched {
    blocks: u32,
    tokens: u64,
}

impl Placement {
    /// Lets time pass (predicted prefills end, long waits teach seats); returns the model's pool and what its engines have
    /// taught, ready or not. O(1) while nothing is due and little changed, else O(backends).
    pub(super) fn survey(&mut self, now: Nanos, request: &RequestShape) -> (usize, PoolMeans) {
        if self.next_due <= now {
            self.next_due = Nanos(u64::MAX);
            for at in 0..self.order.len() {
                self.settle(now, self.order[at]);
            }
        }
        let pool = self.pools.find(request.model.as_deref(), request.task, &self.order, &self.entries);
        (pool, self.pools.means(pool, self.changes, &self.standings, &self.config.tuning))
    }

    fn settle(&mut self, now: Nanos, id: BackendId) {
        let due = self.standings[id.index()].due;
        if due > now {
            self.next_due = self.next_due.min(due);
            return;
        }
        let tuning = self.config.tuning;
        let Some(entry) = self.entry_mut(id) else { return };
        let rate = entry.prefill_rate(&tuning);
        entry.load.expire_predicted(now);
        entry.load.learn_from_waiting(now, rate, &tuning);
        self.changed(id);
    }

    /// The means of a model's pool as they are now, for those who only look.
    pub(super) fn pool_means(&self, model: Option<&str>) -> PoolMeans {
        let learned = learned(&self.standings, members(model, Task::Any, &self.order, &self.entries));
        PoolMeans::new(&learned, &self.config.tuning)
    }

    /// Fills `found` with the candidates in list order, and `habits` where the choice looks at these. O(pool).
    ///
    /// # Errors
    /// Nobody is left; the nearest miss says why.
    #[inline(never)]
    pub(super) fn find_candidates(
        &self,
        scene: &Scene<'_>,
        found: &mut Vec<Candidate>,
        habits: &mut Vec<Habits>,
    ) -> Result<(), PickError> {
        habits.clear();
        self.collect(scene, Verdict::Candidate, found);
        if found.is_empty() {
            self.find_worse(scene, found)?;
        }
        if self.wants_habits() {
            habits.extend(found.iter().map(|c| self.habits(scene.now, c.id)));
        }
        Ok(())
    }

    /// Those that are suspected, or else failed, where nobody is better.
    #[cold]
    fn find_worse(&self, scene: &Scene<'_>, found: &mut Vec<Candidate>) -> Result<(), PickError> {
        let members = self.pools.members(scene.pool);
        let verdicts = members.iter().map(|&id| self.judge(scene, id, self.table.others(id)));
        let furthest = verdicts.max().or_else(|| self.nobody(scene.request));
        if let Some(worse @ (Verdict::Suspect | Verdict::LastResort)) = furthest {
            self.collect(scene, worse, found);
        }
        if found.is_empty() { Err(refusal(furthest)) } else { Ok(()) }
    }

    /// The verdict where the request's pool is empty.
    #[cold]
    fn nobody(&self, request: &RequestShape) -> Option<Verdict> {
        let has_model =
            members(request.model.as_deref(), Task::Any, &self.order, &self.entries).next().is_some();
        let verdict = if has_model { Verdict::OtherTask } else { Verdict::OtherModel };
        (!self.order.is_empty()).then_some(verdict)
    }

    /// Fills `found` with those of this verdict.
    fn collect(&self, scene: &Scene<'_>, wanted: Verdict, found: &mut Vec<Candidate>) {
        found.clear();
        let members = self.pools.members(scene.pool);
        found.reserve(members.len());
        let is_shared = self.table.is_shared();
        // Most hold the same, the common head of the prompts; so tokens are reckoned where that changes.
        let mut matched = Matched::default();
        let mut silent = 0;
        let mut is_any_rising = false;
        for &id in members {
            let others = if is_shared { self.table.others(id) } else { InFlight::default() };
            if self.judge(scene, id, others) != wanted {
                continue;
            }
            if matched.blocks != scene.walk.leading_blocks(id) {
                matched = scene.matched(id);
            }
            let candidate = self.candidate_with(scene, id, others, matched);
            silent += usize::from(candidate.foreign.is_nan());
            is_any_rising |= self.standings[id.index()].share < 1.0;
            found.push(candidate);
        }
        // Mostly all tell, or none does.
        if silent > 0 && silent < found.len() {
            assume_foreign(scene.means, found);
        }
        if is_any_rising {
            self.hold_back(found);
        }
    }

    /// Leaves out those that came back lately and have their share already. Where nobody else is, nobody is left out.
    #[cold]
    fn hold_back(&self, found: &mut Vec<Candidate>) {
        let share = |c: &Candidate| f64::from(self.standings[c.id.index()].share);
        let others = || found.iter().filter(|c| share(c) >= 1.0).map(|c| c.load.requests);
        let count = others().count();
        if count > 0 {
            let mean = others().sum::<f64>() / count as f64;
            found.retain(|c| share(c) >= 1.0 || c.load.requests < 1.0 + share(c) * mean);
        }
    }

    #[inline]
    fn judge(&self, scene: &Scene<'_>, id: BackendId, others: InFlight) -> Verdict {
        let standing = &self.standings[id.index()];
        judge(Gate {
            tier: standing.tier,
            was_tried: scene.tried.contains(&id),
            requests: standing.requests.saturating_add(others.requests),
            max_in_flight: standing.max_in_flight,
        })
    }

    /// One backend as the pickers see it, whether the filter leaves it or not.
    pub(super) fn candidate(&self, scene: &Scene<'_>, id: BackendId) -> Candidate {
        self.candidate_with(scene, id, self.table.others(id), scene.matched(id))
    }

    #[inline]
    fn candidate_with(
        &self,
        scene: &Scene<'_>,
        id: BackendId,
        others: InFlight,
        matched: Matched,
    ) -> Candidate {
        let standing = &self.standings[id.index()];
        let mut load = Load {
            requests: f64::from(standing.requests),
            q_tokens: standing.q_tokens,
            c_tokens: standing.c_tokens,
            kv_tokens: standing.kv_tokens,
            seats: standing.seats_in_pool(scene.means.proven_seats),
            prefill_rate: standing.prefill_rate,
        };
        load.add(f64::from(others.requests), others.q_tokens as f64, others.c_tokens as f64);
        let told = self.table.told(id);
        let foreign = standing.foreign.or_fresher(scene.now, told).now(scene.now, self.fade);
        let foreign = foreign.value().unwrap_or(f64::NAN);
        if foreign > 0.0 {
            charge(&mut load, foreign, scene.means);
        }
        let mut candidate = Candidate {
            id,
            load,
            others: others.requests,
            is_counted: true,
            is_stale: foreign > 0.0,
            foreign: foreign as f32,
            told,
            matched_blocks: matched.blocks,
            matched_tokens: matched.tokens,
        };
        if self.config.own_counts != OwnCounts::Exact {
            let reported = self.reported(scene.now, id);
            candidate.load.requests = reported.unwrap_or(0.0);
            (candidate.is_counted, candidate.is_stale) = (reported.is_some(), true);
            candidate.foreign = 0.0;
        }
        candidate
    }

    #[cold]
    fn reported(&self, now: Nanos, id: BackendId) -> Option<f64> {
        self.entry(id)?.reported_requests(now, self.fade)
    }

    /// Whether the choice may look beyond load and prefix. Those who do not ask are spared the look at the entry.
    fn wants_habits(&self) -> bool {
        let PolicyConfig { policy, own_counts, .. } = &self.config;
        let by_load = matches!(policy, PolicyName::PrefixCost | PolicyName::LeastInFlight);
        !by_load || *own_counts != OwnCounts::Exact
    }

    fn habits(&self, now: Nanos, id: BackendId) -> Habits {
        self.entry(id).map_or_else(Habits::default, |entry| Habits {
            arrivals: entry.arrivals.in_window(now),
            last_turn: entry.last_turn,
            ring_seed: entry.ring_seed,
        })
    }
}

/// Foreign requests count as so many of the pool's mean request.
fn charge(load: &mut Load, foreign: f64, means: &PoolMeans) {
    load.add(foreign, foreign * means.uncached, foreign * means.prompt);
}

/// Where nobody tells of foreign requests there are taken to be as many as where somebody does, in the mean: none
/// would make the silent one look idle beside the others. Where nobody tells of any candidate there are none.
#[cold]
fn assume_foreign(means: &PoolMeans, found: &mut [Candidate]) {
    let told = || found.iter().map(|c| c.foreign).filter(|foreign| !foreign.is_nan());
    let mean = told().sum::<f32>() / told().count().max(1) as f32;
    if mean > 0.0 {
        for c in found.iter_mut().filter(|c| c.foreign.is_nan()) {
            charge(&mut c.load, mean.into(), means);
            (c.foreign, c.is_stale) = (mean, true);
        }
    }
}
