//! One list of backends: where it comes from, what it says, what was published of it.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::task::AbortHandle;

use super::Publish;
use super::members::members;
use super::names::Names;
use crate::backends::Member;
use crate::config::{BackendConfig, BackendsFile};

/// A source, for as long as it is planned; no other gets the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(u32);

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
    published: Option<Vec<Member>>,
}

impl Source {
    pub(super) fn new(origin: Origin) -> Self {
        Self { id: SourceId::next(), origin, entries: None, task: None, published: None }
    }

    /// Its name for people.
    pub(super) fn label(&self) -> String {
        match &self.origin {
            Origin::Configuration => "configuration".to_owned(),
            Origin::File(file) => format!("file:{}", file.path.display()),
        }
    }

    pub(super) const fn is_published(&self) -> bool {
        self.published.is_some()
    }

    /// Publishes its members if they are others than before; if it `waits`, not before all its names are settled.
    pub(super) fn publish(&mut self, names: &Names, waits: bool, publish: &Publish) {
        let Some(entries) = &self.entries else { return };
        if waits && !entries.iter().all(|entry| names.is_settled(entry)) {
            return;
        }
        let (now, cut) = members(entries, names);
        if self.published.as_ref() == Some(&now) {
            return;
        }
        if cut > 0 {
            tracing::warn!(source = self.label(), cut, "more backends are named than there may be");
        }
        self.published = Some(now.clone());
        publish(self.id, now);
    }

    /// It is no longer planned.
    pub(super) fn end(&self, publish: &Publish) {
        if let Some(task) = &self.task {
            task.abort();
        }
        if self.published.as_ref().is_some_and(|members| !members.is_empty()) {
            publish(self.id, Vec::new());
        }
    }
}
