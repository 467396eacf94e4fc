//! From configuration to an account, and from the account to the mark of upstream sockets.

use std::sync::Arc;
use std::time::Duration;

use crate::account::{self, Account, Adopted, KernelError, KernelOptions, Role, State};
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

/// Puts right at the start what happened while no program was attached; where none sees processes and sockets go, sweeps
/// for as long as it is polled. What has begun when it is dropped goes on to its end.
pub(super) async fn settle(account: Account) {
    let adopting = account.clone();
    match blocking(move || adopting.adopt()).await {
        Ok(adopted) if adopted == Adopted::default() => {}
        Ok(Adopted { taken_up, refused }) => {
            tracing::info!(taken_up, refused, "connections older than the programs");
        }
        Err(reason) => tracing::warn!(%reason, "connections older than the programs are not counted"),
    }
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = String::new();
    loop {
        ticks.tick().await;
        let sweeping = account.clone();
        match blocking(move || sweeping.sweep()).await {
            Ok(swept) => {
                if swept.slots + swept.rows > 0 {
                    tracing::info!(
                        slots = swept.slots,
                        rows = swept.rows,
                        "gone and still counted: put right"
                    );
                }
                if swept.unsettled == 0 && !account.needs_sweeping() {
                    return;
                }
            }
            Err(reason) if !account.needs_sweeping() => {
                tracing::warn!(%reason, "what went unseen stays counted");
                return;
            }
            Err(reason) if reason != said => {
                tracing::warn!(%reason, "what goes unseen stays counted");
                said = reason;
            }
            Err(_as_before) => {}
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(panic.to_string()))
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
