//! From configuration to an account, and from the account to the mark of upstream sockets.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use router_policy::{BackendId, LoadTable, Told};

use crate::account::{
    self, Account, Adopted, Hook, KernelError, KernelOptions, Role, RowError, State, Swept,
};
use crate::clock;
use crate::config::{KernelConfig, KernelHook, KernelMode};
use crate::forward::connect::Mark;

/// Where the backend's host tells in band, a silent connection is probed after this long: the answer tells, too. The
/// kernel knows whole seconds.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// A host that told nothing for this long does not tell any more.
const TELLS_WITHIN: f64 = 60.0;

/// What the programs are attached to.
pub(super) fn hook(config: &KernelConfig) -> Hook {
    match config.hook {
        KernelHook::Cgroup => Hook::Cgroup(config.cgroup.clone()),
        KernelHook::Tcx => Hook::Tcx(config.devices.clone()),
    }
}

/// Opens the account and says in one line a finding whether the kernel takes part.
pub(super) fn open(config: &KernelConfig) -> Result<Account, KernelError> {
    let mode = match config.mode {
        KernelMode::Auto => account::KernelMode::Auto,
        KernelMode::On => account::KernelMode::On,
        KernelMode::Off => account::KernelMode::Off,
    };
    let options = KernelOptions { mode, pin_dir: config.pin_dir.clone(), hook: hook(config) };
    let account = account::open(&options)?;
    give_back_memory();
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

/// Loading programs takes some 20 MiB for a moment, for the kernel's types, which the allocator would keep for good. To
/// be called by the thread that loaded.
#[expect(unsafe_code, reason = "the allocator has no safe call for it")]
fn give_back_memory() {
    // SAFETY: takes no pointer and frees only what nobody has.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// An account without the kernel, for a reason that came up after [`open`]; says so in one line.
pub(super) fn in_memory(reason: &RowError) -> std::io::Result<Account> {
    tracing::warn!(%reason, "counting in process memory");
    Account::in_memory(reason.to_string())
}

/// How often it is looked whether the programs are still there; and how long a dead process, or a socket that went
/// unseen, stays counted where no program sees them go.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Takes up connections that are older than the programs. Then says in one line if programs or pins are taken off under
/// this process, and sweeps where no program sees processes and sockets go; never ends. What has begun when it is
/// dropped goes on to its end.
pub(super) async fn look_after(account: Account) {
    let adopting = account.clone();
    let adopt = move || {
        let adopted = adopting.adopt();
        give_back_memory();
        adopted
    };
    match blocking(adopt).await {
        Ok(adopted) if adopted == Adopted::default() => {}
        Ok(Adopted { taken_up, refused }) => {
            tracing::info!(taken_up, refused, "connections older than the programs");
        }
        Err(reason) => tracing::warn!(%reason, "connections older than the programs are not counted"),
    }
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = String::new();
    loop {
        ticks.tick().await;
        if let Some(lost) = account.look_after() {
            tracing::warn!(%lost, alone = !account.state().is_on(), "counting goes on without the kernel's help");
        }
        if account.needs_sweeping() {
            sweep(&account, &mut said).await;
        }
    }
}

/// Sweeps once; says why not, unless that was said last.
async fn sweep(account: &Account, said: &mut String) {
    let sweeping = account.clone();
    match blocking(move || sweeping.sweep()).await {
        Ok(Swept { slots: 0, rows: 0 }) => {}
        Ok(Swept { slots, rows }) => tracing::info!(slots, rows, "gone and still counted: put right"),
        Err(reason) if reason == *said => {}
        Err(reason) => {
            tracing::warn!(%reason, "what goes unseen stays counted");
            *said = reason;
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
