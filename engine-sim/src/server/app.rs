//! What the handlers of one engine share, and what can be done to the engine as a whole.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::header::HeaderValue;
use parking_lot::Mutex;

use super::config::{Config, StartError};
use super::door::Door;
use super::life::Life;
use super::metrics::{self, Extra, Frozen, View};
use super::runner::Runner;
use crate::faults::{Asked, Dialect, Fate, Faults, FaultsError, Given, Injector, MetricsFaults};

/// One engine with its door.
#[derive(Debug)]
pub(super) struct App {
    pub(super) runner: Arc<Runner>,
    pub(super) door: Door,
    pub(super) admin_door: Option<Door>,
    pub(super) life: Life,
    pub(super) name: String,
    pub(super) name_header: HeaderValue,
    pub(super) model: String,
    pub(super) authorization: Option<String>,
    pub(super) seed: u64,
    pub(super) refused_connections: AtomicU64,
    dialect: Dialect,
    faults: Mutex<Faulty>,
}

#[derive(Debug, Default)]
struct Faulty {
    injector: Injector,
    frozen: Arc<Frozen>,
}

/// Why faults were not set; those of before stay in force.
#[derive(Debug, thiserror::Error)]
pub enum SetFaultsError {
    /// They are out of bounds.
    #[error(transparent)]
    Faults(#[from] FaultsError),
    /// The port that was closed cannot be opened again.
    #[error("cannot listen again")]
    Reopen(#[source] io::Error),
}

impl App {
    /// Takes its port; needs a runtime.
    pub(super) fn new(config: &Config) -> Result<Self, StartError> {
        if !(0.001..=1000.0).contains(&config.time_scale) {
            return Err(StartError::TimeScale(config.time_scale));
        }
        let name_header =
            HeaderValue::from_str(&config.name).map_err(|_| StartError::Name(config.name.clone()))?;
        config.faults.check()?;
        let runner = Arc::new(Runner::new(config.engine, config.time_scale)?);
        let bind = |addr| move |source| StartError::Bind { addr, source };
        let app = Self {
            runner,
            door: Door::new(config.listen).map_err(bind(config.listen))?,
            admin_door: config.admin_listen.map(|addr| Door::new(addr).map_err(bind(addr))).transpose()?,
            life: Life::begin(config.start_delay),
            name: config.name.clone(),
            name_header,
            model: config.model.clone(),
            authorization: config.api_key.as_ref().map(|key| format!("Bearer {key}")),
            seed: config.seed,
            refused_connections: AtomicU64::new(0),
            dialect: config.dialect,
            faults: Mutex::default(),
        };
        match app.set_faults(config.faults.clone()) {
            Ok(()) => Ok(app),
            Err(SetFaultsError::Faults(error)) => Err(error.into()),
            Err(SetFaultsError::Reopen(source)) => Err(bind(config.listen)(source)),
        }
    }

    /// Puts faults in force in place of those before.
    pub(super) fn set_faults(&self, faults: Faults) -> Result<(), SetFaultsError> {
        faults.check()?;
        let mut faulty = self.faults.lock();
        if faults.refuse_connections {
            self.door.close();
        } else {
            self.door.open().map_err(SetFaultsError::Reopen)?;
        }
        self.be_slow(&faults);
        let dialect = faults.metrics.dialect.unwrap_or(self.dialect);
        faulty.frozen = Arc::new(self.with_view(|view| Frozen::take(dialect, view)));
        faulty.injector.set(faults);
        Ok(())
    }

    /// The faults in force; `next` is what is left of it.
    pub(super) fn faults(&self) -> Faults {
        self.faults.lock().injector.faults().clone()
    }

    pub(super) fn given(&self) -> Given {
        self.faults.lock().injector.given()
    }

    pub(super) fn decide(&self, asked: Asked) -> Fate {
        self.faults.lock().injector.decide(asked)
    }

    /// Time that a new connection waits.
    pub(super) fn connect_delay(&self) -> Duration {
        Duration::from_millis(self.faults.lock().injector.connect_delay_ms())
    }

    /// Loses all that a process loses when it ends, and begins anew; connections end, faults stay.
    pub(super) fn restart(&self) {
        self.life.begin_anew();
        self.runner.restart();
        self.be_slow(&self.faults());
    }

    fn be_slow(&self, faults: &Faults) {
        let slow = faults.slow_start.map(|slow| (slow.factor, Duration::from_millis(slow.for_ms)));
        self.runner.set_slow(slow);
    }

    /// Whose names `/metrics` has now.
    pub(super) fn dialect(&self) -> Dialect {
        self.faults.lock().injector.faults().metrics.dialect.unwrap_or(self.dialect)
    }

    /// What is wrong with one answer of `/metrics`, which is counted.
    pub(super) fn metrics_faults(&self) -> (MetricsFaults, Arc<Frozen>) {
        let mut faulty = self.faults.lock();
        let faults = faulty.injector.faults().metrics.clone();
        if faults != (MetricsFaults { dialect: faults.dialect, ..MetricsFaults::default() }) {
            faulty.injector.count_metrics();
        }
        (faults, Arc::clone(&faulty.frozen))
    }

    /// Shows the engine as it is now.
    pub(super) fn with_view<T>(&self, show: impl FnOnce(&View<'_>) -> T) -> T {
        show(&View {
            name: &self.name,
            model: &self.model,
            config: &self.runner.config(),
            stats: &self.runner.stats(),
            sleep_level: self.runner.sleep_level(),
            started_at_s: self.life.started_at_s(),
        })
    }

    pub(super) fn stats_json(&self) -> String {
        let extra = Extra {
            admin_addr: self.admin_door.as_ref().map(Door::addr),
            refused_connections: self.refused_connections.load(Ordering::Relaxed),
            restarts: self.life.restarts(),
            faults: self.given(),
        };
        self.with_view(|view| metrics::stats_json(view, &extra)).to_string()
    }
}
