//! What is logged, and how.

/// What is logged, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogConfig {
    /// From which level on.
    pub level: LogLevel,
    /// How a line looks.
    pub format: LogFormat,
}

/// From which level on is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// Someone must act.
    Error,
    /// Degraded.
    Warn,
    /// The life of the process.
    #[default]
    Info,
    /// Each request.
    Debug,
    /// Each decision.
    Trace,
}

impl LogLevel {
    /// All levels.
    pub const ALL: [Self; 6] = [Self::Off, Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The level as flags and configuration write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
