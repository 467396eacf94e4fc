//! From configuration to an account, and from the account to the mark of upstream sockets.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use router_policy::{BackendId, LoadTable, Told};

use crate::account::{self, Account, KernelError, KernelOptions, Role, RowError, State};
use crate::clock;
use crate::config::{KernelConfig, KernelMode};
use crate::forward::connect::Mark;

/// Where the backend's host tells in band, a silent connection is probed after this long: the answer tells, too. The
/// kernel knows whole seconds.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// A host that told nothing for this long does not tell any more.
const TELLS_WITHIN: f64 = 60.0;

/// Opens the account and says in one line a finding whether the kernel takes part.
pub(super) fn open(config: &KernelConfig) -> Result<Account, KernelError> {
    let mode = match config.mode {
        KernelMode::Auto => account::KernelMode::Auto,
        KernelMode::On => account::KernelMode::On,
        KernelMode::Off => account::KernelMode::Off,
    };
    let options = KernelOptions { mode, pin_dir: config.pin_dir.clone(), cgroup: config.cgroup.clone() };
    let account = account::open(&options)?;
    match account.state() {
        State::On { programs, missing } => {
            tracing::info!(slot = account.slot(), ?programs, "counting in the kernel");
            for reason in missing {
                tracing::warn!(%reason, "a program is not attached");
            }
        }
        State::Off { reason } if config.mode == KernelMode::Off => {
            tracing::info!(%reason, "counting in process memory");
        }
        State::Off { reason } => tracing::warn!(%reason, "counting in process memory"),
    }
    Ok(account)
}

/// An account without the kernel, for a reason that came up after [`open`]; says so in one line.
pub(super) fn in_memory(reason: &RowError) -> std::io::Result<Account> {
    tracing::warn!(%reason, "counting in process memory");
    Account::in_memory(reason.to_string())
}

/// How often it is looked whether the programs are still there.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Says in one line if programs or pins are taken off under this process; never ends.
pub(super) async fn look_after(account: Account) {
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    loop {
        ticks.tick().await;
        if let Some(lost) = account.look_after() {
            tracing::warn!(%lost, alone = !account.state().is_on(), "counting goes on without the kernel's help");
        }
    }
}

/// What tells the kernel whose a socket is; `None` without kernel.
pub(super) fn mark(account: &Account, role: Role) -> Option<Mark> {
    if !account.state().is_on() {
        return None;
    }
    let account = account.clone();
    Some(Arc::new(move |socket, backend| {
        if let Err(error) = account.mark_socket(socket, role, backend) {
            // It is then counted as a foreign one: the counts of the policy stay right.
            tracing::debug!(backend = backend.index(), %error, "cannot mark a socket");
        }
        if role == Role::Router {
            ask_often(&account, socket, backend);
        }
    }))
}

/// Lets an idle connection hear of the backend's load as long as it is kept.
fn ask_often(account: &Account, socket: BorrowedFd<'_>, backend: BackendId) {
    let tells = |told: Told| clock::now().seconds_since(told.at) < TELLS_WITHIN;
    if account.told(backend).is_some_and(tells)
        && let Err(error) = rustix::net::sockopt::set_tcp_keepidle(socket, ASK_AFTER)
    {
        tracing::debug!(backend = backend.index(), %error, "cannot probe a connection often");
    }
}
