//! E04 and E05 of the known failures of others: thousands of connections that end in every way, and those that are idle,
//! older than the programs, over other address forms, or none of the backend's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use router_common::BackendId;
use router_user::account::Account;
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::hosts::own_network;
use crate::phase_ends::full_listener;
use crate::sandbox::{Sandbox, name, run, say, wait_until_finished};
use crate::world::{Backend, account, register, wait_row};

const MANY: usize = 5000;
const AT_ONCE: usize = 2000;
const KILLED: usize = 1000;

/// Lets this process have so many descriptors.
pub(crate) fn allow_descriptors(count: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        limit.current = Some(count);
        limit.maximum = limit.maximum.map(|maximum| maximum.max(count));
        setrlimit(Resource::Nofile, limit).unwrap();
    }
}

/// Nothing is open, and every connection that was counted was taken away.
#[track_caller]
fn nothing_open(account: &Account, id: BackendId, opened: usize) {
    wait_row(account, id, |row| {
        (row.conns, row.foreign_conns, row.closed) == (0, 0, opened as u64) && row.opened == opened as u64
    });
}

/// Connects so many at a time, none of which is answered within 50 ms.
fn time_out(to: SocketAddr, count: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let attempt = move || async move {
        let connect = tokio::net::TcpStream::connect(to);
        assert!(
            tokio::time::timeout(Duration::from_millis(50), connect).await.is_err(),
            "it must not answer"
        );
    };
    runtime.block_on(async {
        let mut attempts = tokio::task::JoinSet::new();
        (0..count).for_each(|_| drop(attempts.spawn(attempt())));
        attempts.join_all().await
    });
}

/// The process that is killed with its connections.
fn victim(sandbox: &Sandbox, to: &str) {
    assert!(sandbox.step().is_some());
    allow_descriptors(2 * KILLED as u64);
    let _open: Vec<_> = (0..KILLED).map(|_| TcpStream::connect(to).unwrap()).collect();
    say("open");
    wait_until_finished();
}

#[test]
fn e04_every_way_a_connection_can_end_leaves_nothing_and_the_next_are_counted() {
    run(name!(), |sandbox| {
        if let Some(to) = sandbox.step() {
            return victim(sandbox, to);
        }
        allow_descriptors(3 * AT_ONCE as u64);
        let account = account(sandbox);
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = register(&account, closed);
        (0..MANY).for_each(|_| drop(TcpStream::connect(closed).unwrap_err()));
        nothing_open(&account, refused, 0);

        let hole = full_listener();
        let deaf = register(&account, hole.local_addr().unwrap());
        let queued = [(); 2].map(|()| TcpStream::connect(hole.local_addr().unwrap()).unwrap());
        (0..MANY / 1000).for_each(|_| time_out(hole.local_addr().unwrap(), 1000));
        assert_eq!((account.row(deaf).conns, account.row(deaf).opened), (2, 2), "those that were answered");
        drop((queued, hole));
        nothing_open(&account, deaf, 2);

        let backend = Backend::new(&account, "127.0.0.1");
        (0..MANY).for_each(|_| drop(backend.connect()));
        nothing_open(&account, backend.id, MANY);

        for _ in 0..MANY {
            let (mut ours, theirs) = backend.connect();
            set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
            drop(theirs);
            ours.read(&mut [0]).unwrap_err();
        }
        nothing_open(&account, backend.id, 2 * MANY);
        assert_eq!(account.row(backend.id).resets, MANY as u64);

        let open: Vec<_> = (0..AT_ONCE).map(|_| backend.connect()).collect();
        assert_eq!(account.row(backend.id).conns, AT_ONCE as u64);
        drop(open);
        nothing_open(&account, backend.id, 2 * MANY + AT_ONCE);

        let mut victim = sandbox.helper(&backend.addr().to_string());
        let theirs: Vec<_> = (0..KILLED).map(|_| backend.listener.accept().unwrap().0).collect();
        victim.hears();
        assert_eq!(account.row(backend.id).conns, KILLED as u64);
        victim.kill();
        drop((victim, theirs));
        let before = 2 * MANY + AT_ONCE + KILLED;
        nothing_open(&account, backend.id, before);

        let last: Vec<_> = (0..100).map(|_| backend.connect()).collect();
        let row = account.row(backend.id);
        assert_eq!((row.conns, row.opened), (100, before as u64 + 100), "all of the last are counted");
        drop(last);
        nothing_open(&account, backend.id, before + 100);
    });
}

const FIFTY: usize = 50;

/// What `ss` says of established connections.
fn ss(options: &str, filter: &str) -> String {
    let output = Command::new("ss").args([options, "state", "established", filter]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Established connections to a port.
fn listed(to: SocketAddr) -> usize {
    ss("-Htn", &format!("dport = :{}", to.port())).lines().count()
}

/// Bytes that the one such connection has sent, with those sent again.
fn sent(filter: &str) -> u64 {
    let text = ss("-Htin", filter);
    let words: Vec<&str> =
        text.split_whitespace().filter_map(|word| word.strip_prefix("bytes_sent:")).collect();
    let [bytes] = words[..] else { panic!("{text}") };
    bytes.parse().unwrap()
}

#[test]
fn e05_idle_older_and_mapped_connections_come_to_the_true_value() {
    run(name!(), |sandbox| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let connect = |to: SocketAddr| (TcpStream::connect(to).unwrap(), listener.accept().unwrap().0);
        let older: Vec<_> = (0..FIFTY).map(|_| connect(addr)).collect();
        let account = account(sandbox);
        let id = register(&account, addr);
        // Found at the start or left out; never a part of them.
        let found = account.row(id).conns as usize;
        assert!([0, FIFTY].contains(&found), "{found}");
        let opened_before = account.row(id).opened;

        let idle: Vec<_> = (0..FIFTY).map(|_| connect(addr)).collect();
        let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{}", addr.port()).parse().unwrap();
        let dual: Vec<_> = (0..FIFTY).map(|_| connect(mapped)).collect();
        let unix: Vec<_> = (0..FIFTY).map(|_| UnixStream::pair().unwrap()).collect();
        let row = account.row(id);
        assert_eq!((row.conns as usize, row.opened - opened_before), (found + 2 * FIFTY, 2 * FIFTY as u64));
        assert_eq!(listed(addr), 3 * FIFTY, "with the older ones");

        drop(older);
        wait_row(&account, id, |row| row.conns as usize == 2 * FIFTY);
        drop((idle, dual, unix));
        wait_row(&account, id, |row| row.conns == 0 && row.opened == row.closed);
        assert_eq!(listed(addr), 0);
    });
}

#[test]
fn e05_bytes_agree_with_those_of_the_sockets() {
    const REQUEST: usize = 300_000;
    const ANSWER: usize = 70_000;
    run(name!(), |sandbox| {
        let account = account(sandbox);
        for host in ["127.0.0.1", "::1"] {
            let backend = Backend::new(&account, host);
            let (mut ours, mut theirs) = backend.connect();
            let head = format!("POST / HTTP/1.1\r\nhost: e\r\ncontent-length: {REQUEST}\r\n\r\n");
            let request = [head.as_bytes(), &[b'x'; REQUEST]].concat();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {ANSWER}\r\n\r\n");
            let answer = [head.as_bytes(), &[b'y'; ANSWER]].concat();
            // Later ones begin with a large segment.
            for _ in 0..3 {
                pass_in_full(&mut ours, &mut theirs, &request);
                wait_row(&account, backend.id, |row| row.awaiting == 1);
                pass_in_full(&mut theirs, &mut ours, &answer);
                wait_row(&account, backend.id, |row| (row.awaiting, row.streaming) == (0, 0));
            }
            let port = backend.addr().port();
            wait_row(&account, backend.id, |row| {
                let ends = (sent(&format!("dport = :{port}")), sent(&format!("sport = :{port}")));
                (row.tx_bytes, row.rx_bytes) == ends
            });
            assert!(account.row(backend.id).tx_bytes >= 3 * request.len() as u64);
        }
    });
}

/// Writes while the other end reads.
fn pass_in_full(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    std::thread::scope(|scope| {
        scope.spawn(|| to.read_exact(&mut vec![0; bytes.len()]).unwrap());
        from.write_all(bytes).unwrap();
    });
}

#[test]
fn e05_another_network_of_the_same_cgroup_is_no_routers() {
    run(name!(), |sandbox| {
        let account = account(sandbox);
        let backend = Backend::new(&account, "127.0.0.1");
        let here = backend.connect();
        let (there, elsewhere) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                own_network().unwrap();
                // The same address as the backend's, but of a machine of its own; and one that is no backend's.
                let same = TcpListener::bind(backend.addr()).unwrap();
                let other = TcpListener::bind("127.0.0.1:0").unwrap();
                let open = |listener: &TcpListener| -> Vec<_> {
                    let to = listener.local_addr().unwrap();
                    (0..FIFTY)
                        .map(|_| (TcpStream::connect(to).unwrap(), listener.accept().unwrap().0))
                        .collect()
                };
                (open(&same), open(&other))
            });
            other.join().unwrap()
        });
        let row = account.row(backend.id);
        // Limit: a row is an address of one network; what another network calls the same counts there, as foreign.
        assert_eq!((row.conns, row.foreign_conns), (1 + FIFTY as u64, 1 + FIFTY as u64));
        drop((there, elsewhere, here));
        wait_row(&account, backend.id, |row| (row.conns, row.foreign_conns) == (0, 0));
    });
}
