//! What the programs log, passed on to `tracing`.
//!
//! The programs write into a ring buffer that all processes share and that has one reader: the process in slot 0.
//! Without a reader the ring fills up and the kernel drops what does not fit; nothing waits.

use std::io;

use aya_log::EbpfLogger;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The reader's end of the ring.
#[must_use = "nothing is read until `run` is polled"]
pub struct LogReader(pub(super) EbpfLogger<ToTracing>);

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogReader")
    }
}

impl LogReader {
    /// Passes records on until dropped. Dropping it loses nothing that the ring still holds.
    ///
    /// # Errors
    /// The ring cannot be waited for. Needs a tokio runtime with IO.
    pub async fn run(self) -> io::Result<()> {
        #[expect(unsafe_code, reason = "tokio cannot know that the descriptor stays")]
        // SAFETY: the logger owns the ring's descriptor, never changes it, and closes it when it is dropped.
        let ring = unsafe { AsyncFd::register_with_interest(self.0, Interest::READABLE) };
        let mut ring = ring.map_err(|error| error.into_parts().1)?;
        loop {
            let mut ready = ring.readable_mut().await?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}

/// Turns a record of the programs into an event with target `unlatch::bpf`.
pub(super) struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _metadata: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args();
        match record.level() {
            log::Level::Error => tracing::error!(target: "unlatch::bpf", "{text}"),
            log::Level::Warn => tracing::warn!(target: "unlatch::bpf", "{text}"),
            log::Level::Info => tracing::info!(target: "unlatch::bpf", "{text}"),
            log::Level::Debug => tracing::debug!(target: "unlatch::bpf", "{text}"),
            log::Level::Trace => tracing::trace!(target: "unlatch::bpf", "{text}"),
        }
    }

    fn flush(&self) {}
}
