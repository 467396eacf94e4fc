//! From configuration to an account, and from the account to the mark of upstream sockets.

use std::sync::Arc;
use std::time::Duration;

use crate::account::{self, Account, KernelError, KernelOptions, Role, State, Swept};
use crate::config::{KernelConfig, KernelHook, KernelMode};
use crate::forward::connect::Mark;

/// Opens the account and says in one line a finding whether the kernel takes part.
pub(super) fn open(config: &KernelConfig) -> Result<Account, KernelError> {
    let mode = match config.mode {
        KernelMode::Auto => account::KernelMode::Auto,
        KernelMode::On => account::KernelMode::On,
        KernelMode::Off => account::KernelMode::Off,
    };
    let hook = match config.hook {
        KernelHook::Cgroup => account::Hook::Cgroup(config.cgroup.clone()),
        KernelHook::Tcx => account::Hook::Tcx(config.devices.clone()),
    };
    let options = KernelOptions { mode, pin_dir: config.pin_dir.clone(), hook };
    let account = account::open(&options)?;
    match account.state() {
        State::On { programs, missing, .. } => {
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

/// How long a dead process, or a socket that went unseen, stays counted where no program sees them go.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Sweeps for as long as it is polled; what has begun when it is dropped goes on to its end.
pub(super) async fn sweep(account: Account) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = String::new();
    loop {
        ticks.tick().await;
        let account = account.clone();
        let reason = match tokio::task::spawn_blocking(move || account.sweep()).await {
            Ok(Ok(swept)) => {
                if swept != Swept::default() {
                    tracing::debug!(slots = swept.slots, rows = swept.rows, "gone and still counted");
                }
                continue;
            }
            Ok(Err(reason)) => reason,
            Err(panic) => panic.to_string(),
        };
        if reason != said {
            tracing::warn!(%reason, "what goes unseen stays counted");
            said = reason;
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
    }))
}
