//! Saving and loading in numbers.

use std::io;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Why a state was not saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The disk, or this user's share of it, is full.
    NoSpace,
    /// The directory is read only, somebody else's, or all its numbers are taken.
    NotAllowed,
    /// More than an index can hold.
    TooLarge,
    /// Anything else.
    Io,
}

impl Failure {
    const ALL: [Self; 4] = [Self::NoSpace, Self::NotAllowed, Self::TooLarge, Self::Io];

    const fn as_str(self) -> &'static str {
        match self {
            Self::NoSpace => "no_space",
            Self::NotAllowed => "not_allowed",
            Self::TooLarge => "too_large",
            Self::Io => "io",
        }
    }

    /// What kind an error is.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::NotAllowed,
            io::ErrorKind::FileTooLarge => Self::TooLarge,
            _ => Self::Io,
        }
    }
}

type Seconds = Gauge<f64, AtomicU64>;

/// Of one process.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// How long the last save took.
    pub save_seconds: Seconds,
    /// How large it was.
    pub bytes: Gauge,
    /// Saves that came to their end.
    pub saves: Counter,
    /// How long loading took at the start.
    pub load_seconds: Seconds,
    /// Prompts that were loaded.
    pub loaded_prompts: Counter,
    failures: [Counter; Failure::ALL.len()],
}

impl Metrics {
    /// Registers all of them.
    #[must_use]
    pub fn new(series: &mut Registry) -> Self {
        let failures = Family::<[(&'static str, &'static str); 1], Counter>::default();
        let metrics = Self {
            save_seconds: Seconds::default(),
            bytes: Gauge::default(),
            saves: Counter::default(),
            load_seconds: Seconds::default(),
            loaded_prompts: Counter::default(),
            failures: Failure::ALL.map(|why| failures.get_or_create_owned(&[("reason", why.as_str())])),
        };
        let help = "How long the last save of the state took";
        series.register("unlatch_state_save_seconds", help, metrics.save_seconds.clone());
        series.register("unlatch_state_bytes", "How large it was", metrics.bytes.clone());
        series.register("unlatch_state_saves", "States saved", metrics.saves.clone());
        series.register("unlatch_state_save_failures", "States that could not be saved", failures);
        let help = "How long loading the state took at the start";
        series.register("unlatch_state_load_seconds", help, metrics.load_seconds.clone());
        let help = "Prompts that engines hold, as the state said";
        series.register("unlatch_state_loaded_prompts", help, metrics.loaded_prompts.clone());
        metrics
    }

    /// A state was not saved.
    pub fn failed(&self, why: Failure) {
        self.failures[why as usize].inc();
    }
}
