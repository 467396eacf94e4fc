//! One list of backends: where it comes from, what it says, what was published of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::members::members;
use super::names::Names;
use crate::backends::Member;
use crate::config::{BackendConfig, BackendsFile};

/// A source, for as long as it is planned; no other gets the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceId(u32);

impl SourceId {
    fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Where a list comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Origin {
    /// Flags, environment and the configuration file.
    Configuration,
    /// A file of its own.
    File(BackendsFile),
}

/// One list.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) id: SourceId,
    pub(super) origin: Origin,
    /// What it says; `None` = nothing yet.
    pub(super) entries: Option<Vec<BackendConfig>>,
    /// Who follows it.
    pub(super) task: Option<AbortHandle>,
    said: Option<Vec<Member>>,
    /// Until when it is held back.
    held_until: Option<Instant>,
}

impl Source {
    pub(super) fn new(origin: Origin) -> Self {
        Self { id: SourceId::next(), origin, entries: None, task: None, said: None, held_until: None }
    }

    /// Its name.
    pub(super) fn name(&self) -> String {
        match &self.origin {
            Origin::Configuration => "configuration".to_owned(),
            Origin::File(file) => format!("file:{}", file.path.display()),
        }
    }

    /// Whether it spoke, and each name in it was answered or failed once.
    pub(super) fn is_settled(&self, names: &Names) -> bool {
        self.entries.as_ref().is_some_and(|all| all.iter().all(|entry| names.is_settled(entry)))
    }

    /// Until when it is held back, if it is.
    pub(super) const fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    /// Its members, if they are others than it said last. While it is not settled it is held back, for `hold` at most.
    pub(super) fn change(&mut self, names: &Names, now: Instant, hold: Duration) -> Option<Vec<Member>> {
        let entries = self.entries.as_ref()?;
        if self.is_settled(names) {
            self.held_until = None;
        } else if now < *self.held_until.get_or_insert(now + hold) {
            return None;
        }
        let (now, cut) = members(entries, names);
        if self.said.as_ref() == Some(&now) {
            return None;
        }
        if cut > 0 {
            tracing::warn!(source = self.name(), cut, "more backends are named than there may be");
        }
        self.said = Some(now.clone());
        Some(now)
    }
}
