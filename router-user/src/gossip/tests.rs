use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use router_common::BackendAddr;
use router_policy::BackendId;
use router_policy::prefix::BlockHash;

use super::metrics::Lost;
use super::place::Key;
use super::wire::Datagram;
use super::{Gossip, KEY_BYTES, join};
use crate::clock;

const DEADLINE: Duration = Duration::from_secs(10);

fn folder() -> tempfile::TempDir {
    let ours = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(ours).tempdir().unwrap()
}

fn row(index: usize) -> BackendId {
    BackendId::new(index).unwrap()
}

fn addr(port: u16) -> BackendAddr {
    BackendAddr::from_socket_addr(([127, 0, 0, 1], port).into())
}

type Heard = mpsc::Receiver<(BackendId, Vec<BlockHash>)>;

/// A process that has these ports as its rows, in this order.
fn member(dir: &Path, ports: &[u16]) -> (Gossip, Heard) {
    let (tell, heard) = mpsc::channel();
    let rows = ports.iter().enumerate().map(|(at, &port)| (row(at), addr(port))).collect();
    let take = Box::new(move |id, blocks: &[BlockHash]| tell.send((id, blocks.to_vec())).unwrap());
    let gossip = join(dir, [7; KEY_BYTES]).unwrap().start(take, &mut Registry::default()).unwrap();
    gossip.set_rows(rows);
    (gossip, heard)
}

#[track_caller]
fn until(what: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !what() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn peers(gossip: &Gossip) -> usize {
    (0..super::place::MEMBERS).filter(|&number| gossip.shared.peers.is_alive(number)).count()
}

fn lost(gossip: &Gossip, why: Lost) -> u64 {
    gossip.shared.metrics.of(why)
}

#[test]
fn a_placement_reaches_every_other_process_at_its_own_row_and_never_comes_back() {
    let folder = folder();
    let (first, heard_first) = member(folder.path(), &[1, 2]);
    let (second, heard_second) = member(folder.path(), &[2, 1]);
    let (third, heard_third) = member(folder.path(), &[3, 2]);
    let all = [&first, &second, &third];
    until(|| all.iter().all(|gossip| peers(gossip) == 2));

    first.outbox().placed(row(1), clock::now(), &[10, 11, 12]);
    assert_eq!(heard_second.recv_timeout(DEADLINE).unwrap(), (row(0), vec![10, 11, 12]));
    assert_eq!(heard_third.recv_timeout(DEADLINE).unwrap(), (row(1), vec![10, 11, 12]));
    // The third has no such backend.
    first.outbox().placed(row(0), clock::now(), &[20]);
    assert_eq!(heard_second.recv_timeout(DEADLINE).unwrap(), (row(1), vec![20]));
    until(|| lost(&third, Lost::UnknownBackend) == 1);
    assert!(heard_third.try_recv().is_err());

    drop((first, second, third));
    assert!(heard_first.try_iter().next().is_none(), "nobody hears its own");
}

#[test]
fn many_placements_of_any_length_arrive_whole_and_in_order() {
    let folder = folder();
    let (first, _) = member(folder.path(), &[1]);
    let (second, heard) = member(folder.path(), &[1]);
    until(|| peers(&first) == 1);
    let chains: Vec<Vec<BlockHash>> = (0..200).map(|n| vec![n; 1 + (n as usize * 37) % 900]).collect();
    for chain in &chains {
        first.outbox().placed(row(0), clock::now(), chain);
        // Not faster than the two of them are told and heard.
        if chain[0] % 20 == 19 {
            until(|| second.shared.metrics.heard.get() > chain[0] as u64);
        }
    }
    let arrived: Vec<_> = chains.iter().map(|_| heard.recv_timeout(DEADLINE).unwrap().1).collect();
    assert_eq!(arrived, chains);
    assert_eq!((first.shared.metrics.told.get(), second.shared.metrics.heard.get()), (200, 200));
}

#[test]
fn who_does_not_read_loses_and_is_counted_and_who_is_gone_is_told_no_more() {
    let folder = folder();
    let (first, _) = member(folder.path(), &[1]);
    let deaf = UnixDatagram::bind(folder.path().join("5.sock")).unwrap();
    let key = &first.shared.place.key;
    deaf.send_to(Datagram::new().sealed(key), first.shared.place.path(0)).unwrap();
    until(|| peers(&first) == 1);
    let end = Instant::now() + DEADLINE;
    while lost(&first, Lost::SocketFull) == 0 {
        assert!(Instant::now() < end, "the kernel holds a bounded number of datagrams");
        first.outbox().placed(row(0), clock::now(), &[1; 100]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(peers(&first), 1, "it may read again");
    drop(deaf);
    first.outbox().placed(row(0), clock::now(), &[1]);
    until(|| peers(&first) == 0);
}

#[test]
fn what_no_process_of_ours_wrote_is_counted_and_nothing_else() {
    let folder = folder();
    let (first, heard) = member(folder.path(), &[1]);
    let stranger = UnixDatagram::unbound().unwrap();
    let mut other_key = Datagram::new();
    assert!(other_key.add(addr(1), clock::now(), &[1]));
    for (n, bytes) in (1..).zip([other_key.sealed(&Key([8; KEY_BYTES])), b"", b"ulgs", &[0xff; 70_000][..]]) {
        stranger.send_to(bytes, first.shared.place.path(0)).unwrap();
        until(|| lost(&first, Lost::Unreadable) == n);
    }
    let mut right = Datagram::new();
    assert!(right.add(addr(1), clock::now(), &[1]));
    stranger.send_to(right.sealed(&first.shared.place.key), first.shared.place.path(0)).unwrap();
    assert_eq!(heard.recv_timeout(DEADLINE).unwrap(), (row(0), vec![1]), "it still listens");
    assert_eq!(peers(&first), 0, "a socket without a place is nobody to tell");
}

#[test]
fn its_end_frees_the_place_at_once() {
    let folder = folder();
    for _ in 0..3 {
        let (gossip, _) = member(folder.path(), &[1]);
        assert_eq!(gossip.shared.place.number, 0);
    }
    assert!(!folder.path().join("0.sock").exists());
}
