//! From the lists of backends to the fleet: what is discovered joins and leaves, from the start on and at each reload.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Runtime;

use super::StartError;
use super::fleet::{Change, Fleet};
use crate::discovery::{self, First, Handle, Plan, Publish};

/// So long the start, or a reload, waits for names; what is not known by then joins when it is.
const WAIT: Duration = Duration::from_secs(2);

/// What is to be discovered, and what a change of that did.
#[derive(Clone)]
pub(super) struct Sources {
    handle: Handle,
    /// What happened to the fleet, while somebody wants to know.
    journal: Arc<Mutex<Option<Change>>>,
}

/// Discovers what there is at the start. In a thread of its own: the caller's may belong to a runtime, where waiting is
/// forbidden.
///
/// # Errors
/// The thread panicked.
pub(super) fn first(plan: Plan, runtime: &Runtime) -> Result<First, StartError> {
    let discover = || runtime.block_on(discovery::start(plan, WAIT));
    let first = std::thread::scope(|scope| scope.spawn(discover).join());
    first.map_err(|_panic| StartError::Internal(std::io::Error::other("the discovery of backends panicked")))
}

impl Sources {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, journal: Arc::default() }
    }

    /// What a running router is told with.
    pub(super) fn publish(&self, fleet: Arc<Fleet>) -> Publish {
        let journal = Arc::clone(&self.journal);
        Arc::new(move |source, members| {
            let change = fleet.set(source, members);
            if let Some(so_far) = &mut *journal.lock() {
                so_far.add(change);
            }
        })
    }

    /// Goes by another plan; what that did to the fleet by the time it is in force. One call at a time.
    pub(super) fn replace(&self, plan: Plan) -> Change {
        *self.journal.lock() = Some(Change::default());
        self.handle.replace(plan, WAIT);
        self.journal.lock().take().unwrap_or_default()
    }

    pub(super) const fn handle(&self) -> &Handle {
        &self.handle
    }
}
