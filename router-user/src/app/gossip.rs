//! From configuration to the gossip of the host's router processes. Whatever fails is one line in the log: the router
//! then knows of its own placements alone.

use std::io;
use std::path::Path;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use router_policy::prefix::HashKey;

use crate::account::Ledger;
use crate::config::Config;
use crate::gossip::{self, Gossip, KEY_BYTES};

/// Joins the other processes, if that is asked for and possible; returns the secret of the prompt hashes, which is
/// theirs or else `fresh`.
pub(super) fn start(
    config: &Config,
    ledger: &Arc<Ledger>,
    series: &mut Registry,
    fresh: [u8; KEY_BYTES],
) -> (HashKey, Option<Gossip>) {
    let Some(dir) = &config.gossip_dir else { return (HashKey::new(fresh), None) };
    match join(dir, ledger, series, fresh) {
        Ok((key, gossip)) => (key, Some(gossip)),
        Err(error) => {
            let dir = dir.display();
            tracing::warn!(%dir, %error, "no gossip: other routers of this host are not told what is placed where");
            (HashKey::new(fresh), None)
        }
    }
}

fn join(
    dir: &Path,
    ledger: &Arc<Ledger>,
    series: &mut Registry,
    fresh: [u8; KEY_BYTES],
) -> io::Result<(HashKey, Gossip)> {
    let joined = gossip::join(dir, fresh)?;
    let key = joined.hash_key();
    let heard = Arc::clone(ledger);
    let gossip = joined.start(Box::new(move |id, blocks| heard.heard(id, blocks)), series)?;
    let outbox = gossip.outbox().clone();
    ledger.tell_placements(Box::new(move |id, at, blocks| outbox.placed(id, at, blocks)));
    Ok((key, gossip))
}
