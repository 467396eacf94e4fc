//! Who serves which model: asked anew only when a backend, its models or its configuration change.

use router_common::BackendId;

use super::entry::Entry;
use super::standing::Standing;
use crate::cost::PoolMeans;
use crate::filter::serves;
use crate::load::PoolLearned;
use crate::task::Task;
use crate::tuning::Tuning;

/// Models remembered at once. Clients may ask for any name, so there is a bound; beyond it the oldest is forgotten,
/// which costs a pass over the names of all backends.
const MODELS_MAX: usize = 32;

/// The backends that do a kind of work with a model, ready or not, in list order.
#[derive(Debug)]
struct Pool {
    model: Option<Box<str>>,
    task: Task,
    members: Vec<BackendId>,
    /// What its engines had taught when so many changes had been.
    means: Option<(u64, PoolMeans)>,
}

/// Means are taken anew after one change for each so many members: one engine's sample moves a mean over hundreds of
/// them by nothing that matters, and adding all up costs as much as pricing all.
const MEMBERS_PER_CHANGE: u64 = 32;

/// Pools by the model asked for.
#[derive(Debug, Default)]
pub(super) struct Pools {
    known: Vec<Pool>,
    oldest: usize,
}

impl Pools {
    /// To be called when anything changed that decides who serves what.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.oldest = 0;
    }

    /// The number of the model's pool, good until the next call. O(models remembered) when it is known.
    pub(super) fn find(
        &mut self,
        model: Option<&str>,
        task: Task,
        order: &[BackendId],
        entries: &[Option<Entry>],
    ) -> usize {
        match self.known.iter().position(|p| p.task == task && p.model.as_deref() == model) {
            Some(at) => at,
            None => self.remember(Pool {
                model: model.map(Box::from),
                task,
                members: members(model, task, order, entries).collect(),
                means: None,
            }),
        }
    }

    /// The members of a pool found just now.
    pub(super) fn members(&self, pool: usize) -> &[BackendId] {
        self.known.get(pool).map_or(&[], |pool| &pool.members)
    }

    /// The means of a pool found just now, after so many `changes` of any standing.
    pub(super) fn means(
        &mut self,
        pool: usize,
        changes: u64,
        standings: &[Standing],
        tuning: &Tuning,
    ) -> PoolMeans {
        let Some(pool) = self.known.get_mut(pool) else {
            return PoolMeans::new(&PoolLearned::default(), tuning);
        };
        match pool.means {
            Some((then, means)) if changes - then <= pool.members.len() as u64 / MEMBERS_PER_CHANGE => means,
            _ => {
                let means = PoolMeans::new(&learned(standings, pool.members.iter().copied()), tuning);
                pool.means = Some((changes, means));
                means
            }
        }
    }

    fn remember(&mut self, pool: Pool) -> usize {
        if self.known.len() < MODELS_MAX {
            self.known.push(pool);
            return self.known.len() - 1;
        }
        let at = self.oldest;
        self.oldest = (at + 1) % MODELS_MAX;
        self.known[at] = pool;
        at
    }
}

/// The backends that do a kind of work with a model, looked up one by one.
pub(super) fn members<'a>(
    model: Option<&'a str>,
    task: Task,
    order: &'a [BackendId],
    entries: &'a [Option<Entry>],
) -> impl Iterator<Item = BackendId> + 'a {
    let is_in = move |id: &BackendId| {
        entries[id.index()]
            .as_ref()
            .is_some_and(|e| e.spec.tasks.has(task) && serves(&e.spec, &e.models, model))
    };
    order.iter().copied().filter(is_in)
}

/// What engines have taught together.
pub(super) fn learned(standings: &[Standing], members: impl Iterator<Item = BackendId>) -> PoolLearned {
    let mut learned = PoolLearned::default();
    for id in members {
        learned.add(&standings[id.index()].learned);
    }
    learned
}
