//! What the program that started an engine can do with it, without HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::app::{App, SetFaultsError};
use super::door::Door;
use crate::faults::{Faults, Given};
use crate::model::Stats;

/// A running engine. Dropping it stops the engine and closes its connections soon after.
#[derive(Debug)]
pub struct Handle {
    pub(super) app: Arc<App>,
    pub(super) stop: oneshot::Sender<()>,
    pub(super) task: JoinHandle<()>,
}

impl Handle {
    /// Where it listens; the port is a real one even if 0 was asked for, and stays the same for good.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.app.door.addr()
    }

    /// The second port, if there is one.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.app.admin_door.as_ref().map(Door::addr)
    }

    /// The base URL, without a trailing slash.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Gauges, peaks and counters of this moment, whether the engine sleeps or not.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.app.runner.stats()
    }

    /// Starts the peaks again from what runs and waits now.
    pub fn reset_peaks(&self) {
        self.app.runner.reset_peaks();
    }

    /// What is wrong with the engine, to be seen and changed.
    #[must_use]
    pub fn faults(&self) -> FaultControl<'_> {
        FaultControl { app: &self.app }
    }

    /// Puts the engine to sleep, as `POST /sleep` with level 1.
    pub fn sleep(&self) {
        self.app.runner.sleep(1);
    }

    /// Wakes it, as `POST /wake_up`.
    pub fn wake_up(&self) {
        self.app.runner.wake();
    }

    /// Restarts the engine, as `POST /admin/restart`: cache and counters are empty when this returns, and every
    /// connection is cut soon after.
    pub fn restart(&self) {
        self.app.restart();
    }

    /// Stops at once, as a crash would: running streams are cut. Returns when every socket is closed.
    pub async fn stop(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "engine task failed");
        }
    }
}

/// The faults of one engine. What is set holds for every request that arrives from then on.
#[derive(Clone, Copy, Debug)]
pub struct FaultControl<'a> {
    app: &'a App,
}

impl FaultControl<'_> {
    /// Puts these faults in force in place of those before, as `POST /admin/faults`.
    ///
    /// # Errors
    /// They are out of bounds, or the closed port cannot be opened again; nothing has changed then.
    pub fn set(&self, faults: Faults) -> Result<(), SetFaultsError> {
        self.app.set_faults(faults)
    }

    /// No faults any more, as `DELETE /admin/faults`.
    ///
    /// # Errors
    /// The closed port cannot be opened again.
    pub fn clear(&self) -> Result<(), SetFaultsError> {
        self.set(Faults::default())
    }

    /// The faults in force; `next` of a rule is what is left of it.
    #[must_use]
    pub fn get(&self) -> Faults {
        self.app.faults()
    }

    /// How often each was given since the engine was started.
    #[must_use]
    pub fn given(&self) -> Given {
        self.app.given()
    }
}
