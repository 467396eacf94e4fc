//! The log: lines on stderr, for people or as JSON, from a level on.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::TryInitError;

use crate::config::{LogConfig, LogFormat, LogLevel};

/// Starts the log of the process.
///
/// # Errors
/// If it was started before.
pub fn init(config: &LogConfig) -> Result<(), TryInitError> {
    use tracing_subscriber::util::SubscriberInitExt;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter(config.level)))
        .with_writer(std::io::stderr)
        // It would say on stderr that stderr cannot be written to, and panic over it.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    match config.format {
        LogFormat::Text => builder.finish().try_init(),
        LogFormat::Json => builder.json().finish().try_init(),
    }
}

/// Everything from the level on, but of the HTTP library's own workings no more than info.
fn filter(level: LogLevel) -> String {
    match level {
        LogLevel::Debug | LogLevel::Trace => {
            format!("{},hyper=info,hyper_util=info,mio=info", level.as_str())
        }
        _ => level.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::filter;
    use crate::config::LogLevel;
    use tracing_subscriber::EnvFilter;

    #[test]
    fn every_level_is_a_filter() {
        for level in LogLevel::ALL {
            assert!(EnvFilter::try_new(filter(level)).is_ok(), "{level:?}");
        }
    }
}
