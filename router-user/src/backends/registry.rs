//! The engines by row, and who of them wants a rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use router_policy::{BackendId, Nanos};

use super::target::Target;

/// All targets, by row. Readers never lock.
#[derive(Debug, Default)]
pub struct Registry {
    targets: ArcSwap<Vec<Arc<Target>>>,
    /// The latest end of any rest, so that nobody looks for one while there is none.
    rest_until: AtomicU64,
}

impl Registry {
    /// The target at a row.
    #[must_use]
    pub fn get(&self, id: BackendId) -> Option<Arc<Target>> {
        self.targets.load().iter().find(|t| t.id == id).cloned()
    }

    /// An engine asked to be left alone until then.
    pub fn rest(&self, target: &Target, until: Nanos) {
        target.rest(until);
        self.rest_until.fetch_max(until.0, Ordering::Relaxed);
    }

    /// Whom nobody should ask now if there are others.
    #[must_use]
    pub fn resting(&self, now: Nanos) -> Vec<BackendId> {
        if now.0 >= self.rest_until.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let targets = self.targets.load();
        targets.iter().filter(|t| now < t.rests_until()).map(|t| t.id).collect()
    }

    /// All targets, in the order of the configuration.
    #[must_use]
    pub fn all(&self) -> Arc<Vec<Arc<Target>>> {
        self.targets.load_full()
    }

    /// Replaces all targets.
    pub fn set(&self, targets: Vec<Arc<Target>>) {
        self.targets.store(Arc::new(targets));
    }
}
