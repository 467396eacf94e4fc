//! Where the request on a connection is, by the segments that pass. Sockets here are unmarked, so all is foreign.

use std::io::{Read, Write};
use std::net::TcpStream;

use router_common::BackendLoad;
use router_user::account::{Account, Role};

use crate::sandbox::{Sandbox, name, run};
use crate::world::{Backend, account, connect_marked, wait_row};

pub(crate) const REQUEST: &[u8] =
    b"POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: 2\r\n\r\n{}";
pub(crate) const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// A connection with both of its ends, and the row it counts in.
pub(crate) struct Wire {
    pub(crate) account: Account,
    pub(crate) backend: Backend,
    pub(crate) ours: TcpStream,
    pub(crate) theirs: TcpStream,
}

impl Wire {
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        Self::over(sandbox, "127.0.0.1")
    }

    fn over(sandbox: &Sandbox, host: &str) -> Self {
        let account = account(sandbox);
        let backend = Backend::new(&account, host);
        Self::to(account, backend)
    }

    pub(crate) fn to(account: Account, backend: Backend) -> Self {
        let (ours, theirs) = backend.connect();
        for end in [&ours, &theirs] {
            end.set_nodelay(true).unwrap();
        }
        Self { account, backend, ours, theirs }
    }

    /// Sends a request.
    pub(crate) fn ask(&mut self, bytes: &[u8]) -> &mut Self {
        pass(&mut self.ours, &mut self.theirs, bytes);
        self
    }

    /// Sends a part of an answer, as a segment of its own.
    pub(crate) fn answer(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        pass(&mut self.theirs, &mut self.ours, bytes.as_ref());
        self
    }

    pub(crate) fn row(&self) -> BackendLoad {
        self.account.row(self.backend.id)
    }

    /// Waits for these gauges: awaiting, streaming, unknown.
    #[track_caller]
    pub(crate) fn is(&mut self, phases: [u64; 3]) -> &mut Self {
        wait_row(&self.account, self.backend.id, |row| [row.awaiting, row.streaming, row.unknown] == phases);
        self
    }
}

/// Sends and reads: afterwards the kernel has seen it.
pub(crate) fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    to.read_exact(&mut vec![0; bytes.len()]).unwrap();
}

pub(crate) const IDLE: [u64; 3] = [0, 0, 0];
pub(crate) const AWAITING: [u64; 3] = [1, 0, 0];
pub(crate) const STREAMING: [u64; 3] = [0, 1, 0];
pub(crate) const UNKNOWN: [u64; 3] = [0, 0, 1];

#[test]
fn each_request_of_a_connection_awaits_streams_and_ends() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        wire.is(IDLE);
        for n in 1..=3 {
            wire.ask(REQUEST).is(AWAITING);
            wire.answer(CHUNKED).is(STREAMING).answer("5\r\nhello\r\n").is(STREAMING);
            wire.answer(LAST_CHUNK).is(IDLE);
            assert_eq!(wire.row().ttfb_count, n);
        }
        let row = wire.row();
        let answer = CHUNKED.len() + "5\r\nhello\r\n".len() + LAST_CHUNK.len();
        assert_eq!((row.tx_bytes, row.rx_bytes), (3 * REQUEST.len() as u64, 3 * answer as u64));
        assert!(row.ttfb_ns > 0 && row.ttfb_ns < 60_000_000_000, "{}", row.ttfb_ns);
        assert!(row.last_rx_ns > 0);
        assert_eq!(row.conns, 1);
    });
}

#[test]
fn a_last_chunk_ends_the_answer_however_it_is_cut() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        let whole = [CHUNKED, b"5\r\nhello\r\n", LAST_CHUNK].concat();
        wire.ask(REQUEST).answer(whole).is(IDLE);
        wire.ask(REQUEST).answer(CHUNKED).answer("5\r\nhello\r\n0\r\n\r\n").is(IDLE);
        wire.ask(REQUEST).answer(CHUNKED).answer("5\r\nhello\r\n0").is(STREAMING);
        wire.answer("\r\n").is(STREAMING).answer("\r\n").is(IDLE);
        wire.ask(REQUEST)
            .answer(CHUNKED)
            .answer("a\r\nline 10\r\n\r\n")
            .is(STREAMING)
            .answer(LAST_CHUNK)
            .is(IDLE);
    });
}

#[test]
fn an_answer_of_known_length_ends_with_its_last_byte() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        wire.ask(REQUEST).answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").is(IDLE);
        let body = vec![b'x'; 100_000];
        wire.ask(REQUEST).answer("HTTP/1.1 200 OK\r\ncontent-length: 200001\r\n\r\n").is(STREAMING);
        wire.answer(&body).is(STREAMING).answer(&body).is(STREAMING).answer("}").is(IDLE);
        assert_eq!(wire.row().ttfb_count, 2);
    });
}

#[test]
fn an_answer_without_length_ends_with_the_connection() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        wire.ask(REQUEST).answer("HTTP/1.0 200 OK\r\nserver: old\r\n\r\nhello").is(STREAMING);
        wire.theirs.shutdown(std::net::Shutdown::Write).unwrap();
        wire.is(IDLE);
        assert_eq!(wire.row().conns, 1, "this side has not closed");
    });
}

#[test]
fn answers_without_body_end_with_their_head() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        for head in ["204 No Content\r\n\r\n", "304 Not Modified\r\ncontent-length: 9\r\n\r\n"] {
            wire.ask(REQUEST).is(AWAITING).answer(["HTTP/1.1 ", head].concat()).is(IDLE);
        }
        wire.ask(b"HEAD /health HTTP/1.1\r\nhost: engine\r\n\r\n").is(AWAITING);
        wire.answer("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").is(IDLE);
    });
}

#[test]
fn a_long_request_awaits_from_its_first_segment() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        wire.ask(b"POST / HTTP/1.1\r\ncontent-length: 300000\r\n\r\n").is(AWAITING);
        for _ in 0..3 {
            wire.ask(&vec![b'x'; 100_000]).is(AWAITING);
        }
        wire.answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is(IDLE);
        assert_eq!(wire.row().ttfb_count, 1);
    });
}

#[test]
fn the_rest_of_a_body_that_was_answered_early_is_no_request() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        wire.ask(b"POST / HTTP/1.1\r\ncontent-length: 20\r\n\r\n{\"prompt\":").is(AWAITING);
        wire.answer("HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n").is(IDLE);
        wire.ask(b"\"still\"}  ").is(IDLE);
        wire.ask(REQUEST).is(AWAITING);
    });
}

#[test]
fn phases_are_followed_over_ipv6_too() {
    run(name!(), |sandbox| {
        let mut wire = Wire::over(sandbox, "::1");
        wire.ask(REQUEST).is(AWAITING).answer(CHUNKED).is(STREAMING).answer(LAST_CHUNK).is(IDLE);
    });
}

#[test]
fn requests_of_routers_of_others_and_of_probes_are_apart() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        let of_others = |row: &BackendLoad| [row.foreign_conns, row.foreign_awaiting, row.foreign_streaming];
        wire.ask(REQUEST).is(AWAITING);
        assert_eq!(of_others(&wire.row()), [1, 1, 0]);

        let mut router = connect_marked(&wire.account, &wire.backend, Role::Router);
        let mut routers = wire.backend.listener.accept().unwrap().0;
        pass(&mut router, &mut routers, REQUEST);
        wire.is([2, 0, 0]);
        let mut probe = connect_marked(&wire.account, &wire.backend, Role::Probe);
        let mut probes = wire.backend.listener.accept().unwrap().0;
        pass(&mut probe, &mut probes, REQUEST);
        pass(&mut routers, &mut router, CHUNKED);
        wire.is([1, 1, 0]);
        assert_eq!(of_others(&wire.row()), [1, 1, 0]);
        assert_eq!((wire.row().conns, wire.row().tx_bytes), (2, 2 * REQUEST.len() as u64), "no probe in it");

        wire.answer(CHUNKED).is([0, 2, 0]);
        assert_eq!(of_others(&wire.row()), [1, 0, 1]);
        pass(&mut routers, &mut router, LAST_CHUNK);
        wire.answer(LAST_CHUNK).is(IDLE);
        assert_eq!(of_others(&wire.row()), [1, 0, 0]);
    });
}
