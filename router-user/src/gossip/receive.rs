//! The thread that listens to the others.

use std::ffi::OsStr;
use std::os::unix::net::SocketAddr;
use std::sync::Arc;

use router_policy::prefix::BlockHash;

use super::metrics::Lost;
use super::place::MEMBERS;
use super::wire::{self, DATAGRAM_MAX};
use super::{Heard, Shared};
use crate::clock;

/// The listener.
pub(super) struct Receiver {
    shared: Arc<Shared>,
    heard: Box<Heard>,
    blocks: Vec<BlockHash>,
}

impl Receiver {
    pub(super) fn new(shared: Arc<Shared>, heard: Box<Heard>) -> Self {
        Self { shared, heard, blocks: Vec::with_capacity(wire::BLOCKS_MAX) }
    }

    /// Until the socket is shut.
    pub(super) fn run(mut self) {
        // A byte more than a datagram has, so that a longer one is seen.
        let mut buffer = vec![0; DATAGRAM_MAX + 1];
        while !self.shared.is_ending() {
            match self.shared.place.socket.recv_from(&mut buffer) {
                Ok((len, from)) if !self.shared.is_ending() => self.take(&buffer[..len], &from),
                Ok(_) => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return tracing::warn!(%error, "gossip of other processes is not heard any more");
                }
            }
        }
    }

    fn take(&mut self, datagram: &[u8], from: &SocketAddr) {
        let metrics = &self.shared.metrics;
        let Ok(placements) = wire::read(datagram, &self.shared.place.key) else {
            return metrics.lost(Lost::Unreadable, 1);
        };
        if let Some(number) = number(from).filter(|&number| number != self.shared.place.number) {
            self.shared.peers.listens(number, true);
        }
        for placement in placements {
            let Some(id) = self.shared.row_of(&placement.addr) else {
                metrics.lost(Lost::UnknownBackend, 1);
                continue;
            };
            self.blocks.clear();
            self.blocks.extend(placement.blocks());
            // One at a time: whoever wants to pick waits for one prompt at most.
            (self.heard)(id, &self.blocks);
            metrics.heard.inc();
            metrics.delay.observe(clock::now().seconds_since(placement.at));
        }
    }
}

/// Whose socket it is.
fn number(from: &SocketAddr) -> Option<usize> {
    let path = from.as_pathname()?;
    let number = path.file_stem()?.to_str()?.parse().ok().filter(|&number| number < MEMBERS)?;
    (path.extension() == Some(OsStr::new("sock"))).then_some(number)
}
