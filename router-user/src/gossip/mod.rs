//! What the router processes of a host tell each other: where they placed which prompts, so that each finds what the
//! others left in the engines' caches. Counts do not go this way: they lie in the shared table ([`crate::account`]).
//!
//! Reading order: [`place`](self) (the directory, and why only processes of our user are in it), `wire` (the
//! datagrams), `outbox` (what a request's way touches), `send`, `receive`, `peers`, `metrics`. Knows no ledger: placements
//! come in and go out through functions that `app` gives. Invariant: nothing here makes a request wait, and nothing
//! that fails here stops the router; a placement that is lost costs a prefill at worst, and is counted.

mod metrics;
mod outbox;
mod peers;
mod place;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::net::Shutdown;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use prometheus_client::registry::Registry;
use router_common::BackendAddr;
use router_policy::BackendId;
use router_policy::prefix::{BlockHash, HashKey};

use metrics::Metrics;
pub use outbox::Outbox;
use peers::Peers;
pub use place::KEY_BYTES;
use place::Place;
use receive::Receiver;
use send::Sender;

/// Takes a placement of another process: the prompt's blocks are cached there now.
pub type Heard = dyn Fn(BackendId, &[BlockHash]) + Send;

/// What both threads share.
#[derive(Debug)]
struct Shared {
    place: Place,
    peers: Arc<Peers>,
    metrics: Arc<Metrics>,
    /// This process's backends; of others nothing is told or heard.
    rows: ArcSwap<Rows>,
    ending: AtomicBool,
}

/// Rows and where they are; rows mean nothing to other processes.
pub type Rows = Vec<(BackendId, BackendAddr)>;

impl Shared {
    fn addr_of(&self, id: BackendId) -> Option<BackendAddr> {
        self.rows.load().iter().find(|(row, _)| *row == id).map(|(_, addr)| *addr)
    }

    fn row_of(&self, addr: &BackendAddr) -> Option<BackendId> {
        self.rows.load().iter().find(|(_, at)| at == addr).map(|(id, _)| *id)
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }
}

/// A place among the processes of the host, not yet used.
#[derive(Debug)]
pub struct Joined(Place);

/// Takes a place in the directory, which is made if need be. `fresh` becomes the shared key if there is none.
///
/// # Errors
/// The directory cannot be made, is not this user's alone, or all its places are taken; its key is none.
pub fn join(dir: &Path, fresh: [u8; KEY_BYTES]) -> io::Result<Joined> {
    Place::take(dir, fresh).map(Joined)
}

impl Joined {
    /// The secret of the prompt hashes that all processes of the directory share.
    #[must_use]
    pub const fn hash_key(&self) -> HashKey {
        HashKey::new(self.0.key.0)
    }

    /// Starts to tell and to listen, of no backend until [`Gossip::set_rows`].
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(self, heard: Box<Heard>, series: &mut Registry) -> io::Result<Gossip> {
        let peers = Arc::new(Peers::default());
        let metrics = Arc::new(Metrics::new(series, &peers));
        let (outbox, inbox) = outbox::outbox(Arc::clone(&peers), Arc::clone(&metrics));
        let shared = Arc::new(Shared {
            place: self.0,
            peers,
            metrics,
            rows: ArcSwap::default(),
            ending: AtomicBool::new(false),
        });
        let mut gossip = Gossip { shared: Arc::clone(&shared), outbox, threads: Vec::new() };
        let receiver = Receiver::new(Arc::clone(&shared), heard);
        gossip.threads.push(spawn("unlatch-hear", move || receiver.run())?);
        let sender = Sender::new(shared);
        gossip.threads.push(spawn("unlatch-tell", move || sender.run(&inbox))?);
        Ok(gossip)
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// Telling and listening. Dropping it ends both and gives the place back.
#[derive(Debug)]
pub struct Gossip {
    shared: Arc<Shared>,
    outbox: Outbox,
    threads: Vec<JoinHandle<()>>,
}

impl Gossip {
    /// Whose placements are told and heard from now on.
    pub fn set_rows(&self, rows: Rows) {
        self.shared.rows.store(Arc::new(rows));
    }

    /// Where placements go in.
    #[must_use]
    pub const fn outbox(&self) -> &Outbox {
        &self.outbox
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.shared.ending.store(true, Relaxed);
        self.outbox.end();
        // Wakes the listener. A socket that cannot be shut is none that anybody listens at.
        let _shut = self.shared.place.socket.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the gossip panicked");
            }
        }
    }
}
