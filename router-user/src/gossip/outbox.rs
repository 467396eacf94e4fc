//! What waits to be told: the one thing that a request's way touches.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use router_policy::prefix::BlockHash;
use router_policy::{BackendId, Nanos};

use super::metrics::{Lost, Metrics};
use super::peers::Peers;
use super::wire::BLOCKS_MAX;

/// Placements that may wait.
const QUEUE: usize = 4096;

/// Blocks of them that may: 8 MiB.
const QUEUE_BLOCKS: usize = 1 << 19;

/// A placement that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) backend: BackendId,
    pub(super) at: Nanos,
    pub(super) blocks: Box<[BlockHash]>,
}

/// The sending end; clones are of the same queue.
#[derive(Clone, Debug)]
pub struct Outbox {
    // `None` ends the reader.
    queue: SyncSender<Option<Waiting>>,
    blocks: Arc<AtomicUsize>,
    peers: Arc<Peers>,
    metrics: Arc<Metrics>,
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Inbox {
    queue: Receiver<Option<Waiting>>,
    blocks: Arc<AtomicUsize>,
}

/// What the reader finds.
#[derive(Debug)]
pub(super) enum Next {
    Placement(Waiting),
    Nothing,
    End,
}

pub(super) fn outbox(peers: Arc<Peers>, metrics: Arc<Metrics>) -> (Outbox, Inbox) {
    let (sender, queue) = sync_channel(QUEUE);
    let blocks = Arc::new(AtomicUsize::new(0));
    (Outbox { queue: sender, blocks: Arc::clone(&blocks), peers, metrics }, Inbox { queue, blocks })
}

impl Outbox {
    /// A prompt was placed. Never waits; costs a copy of the hashes if there is anybody to tell, else a load.
    pub fn placed(&self, backend: BackendId, at: Nanos, blocks: &[BlockHash]) {
        let blocks = &blocks[..blocks.len().min(BLOCKS_MAX)];
        if blocks.is_empty() || !self.peers.any() {
            return;
        }
        let fits = self.blocks.fetch_add(blocks.len(), Relaxed) + blocks.len() <= QUEUE_BLOCKS;
        let waiting = || Some(Waiting { backend, at, blocks: blocks.into() });
        if !fits || self.queue.try_send(waiting()).is_err() {
            self.blocks.fetch_sub(blocks.len(), Relaxed);
            self.metrics.lost(Lost::QueueFull, 1);
        }
    }

    /// Ends the reader. A full queue has no room for it: whoever ends says so elsewhere, too.
    pub(super) fn end(&self) {
        let _full = self.queue.try_send(None);
    }
}

impl Inbox {
    /// The next, waiting for so long at most.
    pub(super) fn next(&self, wait: Duration) -> Next {
        match self.queue.recv_timeout(wait) {
            Ok(Some(waiting)) => {
                self.blocks.fetch_sub(waiting.blocks.len(), Relaxed);
                Next::Placement(waiting)
            }
            Err(RecvTimeoutError::Timeout) => Next::Nothing,
            Ok(None) | Err(RecvTimeoutError::Disconnected) => Next::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    fn queue() -> (Outbox, Inbox, Arc<Metrics>) {
        let peers = Arc::new(Peers::default());
        let metrics = Arc::new(Metrics::new(&mut Registry::default(), &peers));
        let (outbox, inbox) = outbox(peers, Arc::clone(&metrics));
        (outbox, inbox, metrics)
    }

    fn placed(outbox: &Outbox, blocks: usize) {
        outbox.placed(BackendId::new(1).unwrap(), Nanos(5), &vec![7; blocks]);
    }

    fn taken(inbox: &Inbox) -> Vec<usize> {
        std::iter::from_fn(|| match inbox.next(Duration::ZERO) {
            Next::Placement(waiting) => Some(waiting.blocks.len()),
            Next::Nothing | Next::End => None,
        })
        .collect()
    }

    #[test]
    fn nothing_waits_while_nobody_listens_and_long_prompts_are_cut() {
        let (outbox, inbox, _) = queue();
        placed(&outbox, 3);
        outbox.peers.listens(2, true);
        placed(&outbox, 0);
        placed(&outbox, 4);
        placed(&outbox, BLOCKS_MAX + 1);
        assert_eq!(taken(&inbox), [4, BLOCKS_MAX]);
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_in_blocks_and_the_rest_is_counted() {
        let (outbox, inbox, metrics) = queue();
        outbox.peers.listens(2, true);
        (0..QUEUE + 2).for_each(|_| placed(&outbox, 1));
        assert_eq!(metrics.of(Lost::QueueFull), 2);
        assert_eq!(taken(&inbox).len(), QUEUE);
        let fit = QUEUE_BLOCKS / BLOCKS_MAX;
        (0..fit + 3).for_each(|_| placed(&outbox, BLOCKS_MAX));
        assert_eq!((taken(&inbox).len(), metrics.of(Lost::QueueFull)), (fit, 5));
        placed(&outbox, BLOCKS_MAX);
        assert_eq!(taken(&inbox).len(), 1, "what was refused takes no room");
    }
}
