//! The configuration read again while the router serves: checked whole before any of it applies.
//!
//! The backends, the policy and its constants, and the admin token change at once; other keys need a restart, and it is
//! said which of those changed. Invariant: a configuration that cannot be used changes nothing.

use std::sync::Arc;

use parking_lot::Mutex;
use router_policy::PolicyName;

use super::discover::Sources;
use super::fleet::{Change, Fleet};
use crate::config::{Config, ConfigError, Settings};
use crate::error::chain;
use crate::observe::admin::{AdminToken, TokenError};
use crate::parse::{Aliases, Names};
use crate::proxy::{Reading, Shared};

/// Reads the configuration as it is now.
pub type Reread = dyn Fn() -> Result<Config, ConfigError> + Send + Sync;

/// Keys that apply at once, beside the constants of the policy, which are all that the help lists from
/// `hash-load-factor` to `report-fade-intervals`.
const AT_ONCE: [&str; 12] = [
    "backend",
    "backends-file",
    "dns-server",
    "dns-ttl-min",
    "dns-ttl-max",
    "model-alias",
    "policy",
    "prefix-min-match",
    "fallback",
    "hash-blocks",
    "session-key",
    "drain-deadline",
];

/// Reads the configuration again.
pub struct Reload {
    fleet: Arc<Fleet>,
    sources: Sources,
    proxy: Arc<Shared>,
    token: Arc<AdminToken>,
    reread: Option<Box<Reread>>,
    /// What the configuration in force was read from.
    settings: Mutex<Settings>,
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Of the fleet.
    pub change: Change,
    /// Keys that apply from now on.
    pub applied: Vec<&'static str>,
    /// Keys that changed and apply after a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Why nothing was reloaded.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// There is nothing to read it from again.
    #[error("this router was not started from a configuration that can be read again")]
    Fixed,
    /// It cannot be used.
    #[error("the configuration cannot be used, nothing changed: {0}")]
    Config(#[from] ConfigError),
    /// There is no token in its file.
    #[error("the admin token cannot be taken, nothing changed: {}", chain(.0))]
    Token(TokenError),
}

impl std::fmt::Debug for Reload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reload").finish_non_exhaustive()
    }
}

impl Reload {
    pub(super) fn new(
        fleet: Arc<Fleet>,
        sources: Sources,
        proxy: Arc<Shared>,
        token: Arc<AdminToken>,
        settings: Settings,
        reread: Option<Box<Reread>>,
    ) -> Self {
        Self { fleet, sources, proxy, token, reread, settings: Mutex::new(settings) }
    }

    /// Reads the configuration and applies it. Waits for files and locks, so not to be called where that is forbidden.
    ///
    /// # Errors
    /// [`ReloadError`]; nothing changed then.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let reloaded = self.try_reload();
        match &reloaded {
            Ok(Reloaded { applied, needs_restart, .. }) => {
                tracing::info!(?applied, "configuration reloaded");
                if !needs_restart.is_empty() {
                    tracing::warn!(?needs_restart, "some of it applies after a restart only");
                }
            }
            Err(error) => tracing::error!(%error, "configuration not reloaded"),
        }
        reloaded
    }

    fn try_reload(&self) -> Result<Reloaded, ReloadError> {
        let reread = self.reread.as_ref().ok_or(ReloadError::Fixed)?;
        // One at a time; the later one reads the later file.
        let mut settings = self.settings.lock();
        let config = reread()?;
        self.token.reload().map_err(ReloadError::Token)?;
        let (applied, needs_restart) =
            settings.differ(&config.settings).into_iter().partition(|key| is_at_once(key));
        self.fleet.set_drain_deadline(config.drain_deadline);
        self.proxy.reading.rcu(|before| reading(&config, Arc::clone(&before.names)));
        self.proxy.ledger.reconfigure(config.policy.clone());
        let change = self.sources.replace((&config).into());
        *settings = config.settings;
        Ok(Reloaded { change, applied, needs_restart })
    }
}

fn is_at_once(key: &str) -> bool {
    let at = |name: &str| crate::config::settings::KEYS.iter().position(|k| k.name == name);
    let constants = at("hash-load-factor")..=at("report-fade-intervals");
    AT_ONCE.contains(&key) || constants.contains(&at(key))
}

/// What requests are read by; the names are the fleet's to say.
pub(super) fn reading(config: &Config, names: Arc<Names>) -> Reading {
    let wants_session = config.policy.policy == PolicyName::Session;
    Reading {
        names,
        aliases: Arc::new(Aliases::new(&config.model_aliases)),
        session_key: wants_session.then(|| config.session_key.as_str().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{AT_ONCE, is_at_once};
    use crate::config::settings::Key;

    #[test]
    fn keys_that_apply_at_once_are_keys() {
        assert!(AT_ONCE.iter().all(|name| Key::find(name).is_some()));
        for (key, expected) in [
            ("backend", true),
            ("decode-gain", true),
            ("weigh-by-speed", true),
            ("listen", false),
            ("record", false),
        ] {
            assert_eq!(is_at_once(key), expected, "{key}");
        }
    }
}
