//! From configuration to warm restarts: what was saved goes to the engines that are there, and what they hold and teach
//! is saved. Whatever fails is one line in the log: the router then starts cold, or is not saved.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry as Series;
use router_policy::BackendId;
use router_policy::prefix::{Copying, HashKey};

use super::fleet::Fleet;
use crate::account::Ledger;
use crate::backends::{Registry, Target};
use crate::config::StateConfig;
use crate::state::pieces::Pieces;
use crate::state::saver::Saving;
use crate::state::{self, Engine, KEY_BYTES, Metrics, Place, Saver, State, Warm};

/// Loading takes no longer at the start, and for one that joins later; what is left then is dropped.
pub(super) const LOAD_MAX: Duration = Duration::from_secs(5);

/// A place in the directory, and what lay there.
#[derive(Debug)]
pub(super) struct Opened {
    place: Place,
    state: Option<State>,
    bytes_max: u64,
    began: Instant,
    metrics: Metrics,
}

/// Takes a place, if one is asked for, and reads what lies there.
pub(super) fn open(config: &StateConfig, index_blocks_max: usize, series: &mut Series) -> Option<Opened> {
    let dir = config.dir.as_deref()?;
    let (metrics, began) = (Metrics::new(series), Instant::now());
    let place = match Place::take(dir) {
        Ok(place) => place,
        Err(error) => {
            metrics.failed(state::Failure::of(&error));
            tracing::warn!(dir = %dir.display(), %error, "no warm restarts: the state is neither read nor saved");
            return None;
        }
    };
    let bytes_max = state::bytes_max(index_blocks_max);
    let state = match read(&place, bytes_max) {
        Ok(state) => state,
        Err(error) => {
            say_cold(&place.path(), &error.to_string());
            None
        }
    };
    Some(Opened { place, state, bytes_max, began, metrics })
}

fn read(place: &Place, bytes_max: u64) -> io::Result<Option<State>> {
    place.read(bytes_max)?.map(|bytes| state::read(bytes).map_err(io::Error::other)).transpose()
}

fn say_cold(path: &Path, why: &str) {
    tracing::warn!(path = %path.display(), why, "what was saved is not used");
}

impl Opened {
    /// The secret of the saved hashes.
    pub(super) fn key(&self) -> Option<[u8; KEY_BYTES]> {
        self.state.as_ref().map(|state| state.key.0)
    }

    /// Gives what was saved to the engines that are there; what is not of the same key is of no use.
    pub(super) fn warm(mut self, config: &StateConfig, key: &HashKey, fleet: &Fleet) -> Kept {
        if let Some(state) = &mut self.state
            && state.key.0 != *key.reveal()
        {
            say_cold(&self.place.path(), "the host's routers share another secret of the hashes");
            state.engines.iter_mut().for_each(state::Saved::forget);
        }
        let saved = self.state.as_ref().map(|state| state.engines.len());
        let warm = Arc::new(Warm::new(self.state.take(), config.max_age));
        let (until, (_, ledger, registry)) = (self.began + LOAD_MAX, fleet.parts());
        let targets = registry.all();
        let prompts: usize = targets.iter().map(|target| warm_up(&warm, &ledger, target, until)).sum();
        fleet.warm_who_joins(Arc::clone(&warm));
        self.metrics.loaded_prompts.inc_by(prompts as u64);
        let seconds = self.began.elapsed().as_secs_f64();
        self.metrics.load_seconds.set(seconds);
        if let Some(engines) = saved {
            tracing::info!(engines, waiting = warm.waiting().len(), prompts, seconds, "warm start");
        }
        Kept { opened: self, warm }
    }
}

/// Gives an engine that is there what was saved of it: before its first request, best. Returns how many prompts it
/// holds. The ledger's lock is held for one prompt at a time.
pub(super) fn warm_up(warm: &Warm, ledger: &Ledger, target: &Target, until: Instant) -> usize {
    let Some(saved) = warm.take(target.addr) else { return 0 };
    if let Some(start) = saved.engine.process_start {
        // Another start is a restart: then the watch has what it held forgotten.
        let _unknown = target.set_process_start(start);
    }
    ledger.teach(target.id, &saved.engine.taught);
    let (mut prompts, mut in_time) = (0, true);
    let left_out = saved.recall().prompts(|blocks, answer| {
        ledger.remember(target.id, blocks, answer);
        prompts += 1;
        in_time = Instant::now() < until;
        in_time
    });
    if !in_time {
        tracing::warn!(
            backend = target.url,
            prompts,
            "what it held was not loaded in time; the newest is missing"
        );
    }
    tracing::debug!(backend = target.url, prompts, left_out, "warm");
    prompts
}

/// What was read, given out as far as its engines are there.
#[derive(Debug)]
pub(super) struct Kept {
    opened: Opened,
    warm: Arc<Warm>,
}

/// Warm restarts of a running router. Dropping it saves.
#[derive(Debug)]
pub(super) struct Warming {
    _saver: Saver,
}

impl Kept {
    /// Saves from now on.
    pub(super) fn start(
        self,
        config: &StateConfig,
        key: &HashKey,
        ledger: &Arc<Ledger>,
        registry: &Arc<Registry>,
    ) -> io::Result<Warming> {
        let source = Source { key: key.clone(), ledger: Arc::clone(ledger), registry: Arc::clone(registry) };
        let Opened { place, bytes_max, metrics, .. } = self.opened;
        let saving = Saving {
            place,
            source: Box::new(source),
            warm: self.warm,
            interval: config.interval,
            bytes_max,
            metrics,
        };
        Ok(Warming { _saver: Saver::start(saving)? })
    }
}

/// What is saved.
struct Source {
    key: HashKey,
    ledger: Arc<Ledger>,
    registry: Arc<Registry>,
}

impl state::Source for Source {
    fn key(&self) -> &HashKey {
        &self.key
    }

    fn engines(&self) -> Vec<(BackendId, Engine)> {
        let seen_at = state::now();
        let engine = |target: &Arc<Target>| {
            let taught = self.ledger.taught(target.id)?;
            let (addr, url, process_start) = (target.addr, target.url.clone(), target.process_start());
            Some((target.id, Engine { addr, url, seen_at, process_start, taught }))
        };
        self.registry.all().iter().filter_map(engine).collect()
    }

    fn begin_copy(&self, id: BackendId) -> Copying {
        self.ledger.begin_copy(id)
    }

    fn copy(&self, copying: &Copying, pieces: usize, to: &mut Pieces) -> Option<bool> {
        self.ledger.copy(copying, pieces, |held| to.push(held))
    }
}
