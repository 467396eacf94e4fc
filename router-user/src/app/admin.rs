//! The admin plane's listener and token, from configuration.

use std::sync::Arc;

use super::StartError;
use crate::accept;
use crate::config::{AdminListen, Config};
use crate::observe::admin::{AdminToken, Listener, UnixSocket};

/// Binds the listener and reads the token: the listener, where it is, and the token.
///
/// # Errors
/// The address is not to be had, or there is no token in the file.
pub(super) fn open(config: &Config) -> Result<(Listener, AdminListen, Arc<AdminToken>), StartError> {
    let token = Arc::new(AdminToken::open(config.admin_token_file.as_deref())?);
    let (listener, at) = match &config.admin_listen {
        AdminListen::Tcp(addr) => {
            let listener = accept::bind(*addr).map_err(|source| StartError::Bind { addr: *addr, source })?;
            let at = listener.local_addr().map_err(StartError::Internal)?;
            (Listener::Tcp(listener), at.into())
        }
        at @ AdminListen::Unix(path) => {
            let failed = |source| StartError::BindUnix { path: path.clone(), source };
            (Listener::Unix(UnixSocket::bind(path).map_err(failed)?), at.clone())
        }
    };
    if is_open_to_others(&at) && !token.is_some() {
        tracing::warn!(
            %at,
            "whoever reaches the admin listener reads metrics and status; without --admin-token-file nobody changes \
             anything there"
        );
    }
    Ok((listener, at, token))
}

fn is_open_to_others(at: &AdminListen) -> bool {
    match at {
        AdminListen::Tcp(addr) => !addr.ip().to_canonical().is_loopback(),
        AdminListen::Unix(_) => false,
    }
}
