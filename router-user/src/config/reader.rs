//! Single settings as values of their types.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::settings::{ConfigError, Key, Settings, Source};
use super::values;

/// Reads single settings and names them in errors.
pub(super) struct Reader<'a> {
    pub(super) settings: &'a Settings,
}

impl Reader<'_> {
    /// What was given for a key that may be absent.
    pub(super) fn optional<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(given) = self.settings.all(name).last() else { return Ok(None) };
        parse(&given.text).map(Some).map_err(|message| ConfigError::at(&given.source, message))
    }

    /// What was given for a key, or its default.
    pub(super) fn read<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        if let Some(value) = self.optional(name, &parse)? {
            return Ok(value);
        }
        let default = Key::find(name).map_or("", |key| key.default);
        parse(default).map_err(|message| ConfigError::at(&Source::Default(name), message))
    }

    pub(super) fn integer(
        &self,
        name: &'static str,
        bounds: RangeInclusive<u64>,
    ) -> Result<u64, ConfigError> {
        self.read(name, |t| values::integer(t, bounds.clone()))
    }

    pub(super) fn size(&self, name: &'static str, bounds: RangeInclusive<u64>) -> Result<usize, ConfigError> {
        self.integer(name, bounds).map(super::resolve::to_usize)
    }

    pub(super) fn decimal(
        &self,
        name: &'static str,
        bounds: RangeInclusive<f64>,
    ) -> Result<f64, ConfigError> {
        self.read(name, |t| values::decimal(t, bounds.clone()))
    }

    pub(super) fn switch(&self, name: &'static str) -> Result<bool, ConfigError> {
        self.read(name, |t| values::choice(t, &[("true", true), ("false", false)]))
    }

    pub(super) fn bytes(&self, name: &'static str, bounds: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        self.read(name, |t| values::bytes(t, bounds.clone()))
    }

    pub(super) fn duration(
        &self,
        name: &'static str,
        bounds: RangeInclusive<Duration>,
    ) -> Result<Duration, ConfigError> {
        self.read(name, |t| values::duration(t, bounds.clone()))
    }

    /// As [`Self::duration`]; 0 is none.
    pub(super) fn optional_duration(
        &self,
        name: &'static str,
        bounds: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>, ConfigError> {
        self.read(name, |t| if t == "0" { Ok(None) } else { values::duration(t, bounds.clone()).map(Some) })
    }

    pub(super) fn address(&self, name: &'static str) -> Result<std::net::SocketAddr, ConfigError> {
        self.read(name, |t| {
            t.parse().map_err(|_| format!("`{t}` is no address like 127.0.0.1:8001 or [::]:8001"))
        })
    }
}
