//! The control thread: watches engines and answers operators, apart from the data plane, so that neither can slow it.

use std::net::TcpListener;
use std::thread::JoinHandle;

use super::{RunningRouter, StartError};
use crate::account::Account;
use crate::shutdown::{Ending, Phase};

/// The control thread.
#[derive(Debug)]
pub(super) struct Control(JoinHandle<()>);

/// Starts it.
pub(super) fn start(router: &RunningRouter, admin: TcpListener) -> Result<Control, StartError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Internal)?;
    let ending = router.control_plane.listen();
    let account = router.account.clone();
    let body = move || runtime.block_on(run(admin, account, ending));
    let thread = std::thread::Builder::new()
        .name("unlatch-control".to_owned())
        .spawn(body)
        .map_err(StartError::Internal)?;
    Ok(Control(thread))
}

impl Control {
    pub(super) fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }
}

async fn run(admin: TcpListener, account: Account, mut ending: Ending) {
    let _admin = admin;
    if let Some(reader) = account.log_reader() {
        // Ends with this runtime.
        tokio::spawn(async move {
            if let Err(error) = reader.run().await {
                tracing::warn!(%error, "the programs' log cannot be read any more");
            }
        });
    }
    drop(account);
    ending.reached(Phase::Stopping).await;
}
