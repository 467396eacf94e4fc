//! What of HTTP/1.1 is followed only so far, and what is not followed: `limit_…` names what one might expect and does
//! not get.

use crate::phases::{AWAITING, CHUNKED, IDLE, LAST_CHUNK, REQUEST, STREAMING, UNKNOWN, Wire};
use crate::sandbox::{name, run};
use crate::world::wait_row;

#[test]
fn an_interim_answer_is_no_first_byte() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        wire.ask(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n").is(AWAITING);
        wire.answer("HTTP/1.1 100 Continue\r\n\r\n").is(AWAITING);
        assert_eq!(wire.row().ttfb_count, 0);
        wire.ask(b"{}").is(AWAITING).answer(CHUNKED).is(STREAMING).answer(LAST_CHUNK).is(IDLE);
        let both = [b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED].concat();
        wire.ask(REQUEST).answer(both).is(STREAMING).answer(LAST_CHUNK).is(IDLE);
        assert_eq!(wire.row().ttfb_count, 2);
    });
}

#[test]
fn what_cannot_be_told_is_unknown_until_the_connection_ends() {
    let firsts: [&[u8]; 3] =
        [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\x01"];
    run(name!(), |sandbox| {
        for first in firsts {
            let mut wire = Wire::new(sandbox);
            wire.ask(first).is(UNKNOWN).answer("anything").is(UNKNOWN).ask(REQUEST).is(UNKNOWN);
            let row = wire.row();
            assert_eq!((row.conns, row.ttfb_count), (1, 0), "it is a connection, and no request");
            assert_eq!((row.tx_bytes, row.rx_bytes), ((first.len() + REQUEST.len()) as u64, 8));
            wire.ours.shutdown(std::net::Shutdown::Both).unwrap();
            wire.theirs.shutdown(std::net::Shutdown::Both).unwrap();
            wire.is(IDLE);
            wait_row(&wire.account, wire.backend.id, |row| (row.conns, row.closed) == (0, 1));
        }
    });
}

#[test]
fn a_tunnel_is_unknown_from_its_switch_on() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        wire.ask(b"GET /ws HTTP/1.1\r\nupgrade: websocket\r\n\r\n").is(AWAITING);
        wire.answer("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n").is(UNKNOWN);
        wire.ask(b"\x81\x05hello").is(UNKNOWN).answer("\x01\x05hello").is(UNKNOWN).ask(REQUEST).is(UNKNOWN);
        assert_eq!(wire.row().conns, 1);
        assert_eq!(wire.row().ttfb_count, 0, "a switch is no answer");
    });
}

#[test]
fn limit_requests_sent_before_the_last_answer_are_one() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        wire.ask(&[REQUEST, REQUEST].concat()).is(AWAITING).ask(REQUEST).is(AWAITING);
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        wire.answer(answer).is(IDLE).answer([answer, answer].concat()).is(IDLE);
        assert_eq!(wire.row().ttfb_count, 1);
        wire.ask(REQUEST).is(AWAITING).answer(answer).is(IDLE);
        assert_eq!(wire.row().ttfb_count, 2, "the next one is seen again");
    });
}

#[test]
fn limit_http_2_is_told_later_too_and_tls_only_at_the_beginning() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        wire.ask(REQUEST).answer(CHUNKED).answer(LAST_CHUNK).is(IDLE);
        wire.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").is(UNKNOWN);
        // TLS on a connection that carried a request is taken for the rest of that one.
        let mut wire = Wire::new(sandbox);
        wire.ask(REQUEST).answer(CHUNKED).answer(LAST_CHUNK).is(IDLE);
        wire.ask(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").is(IDLE);
    });
}

#[test]
fn limit_trailers_stream_on_until_the_next_request_or_the_end() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        // Also where the last chunk and its trailers are a segment of their own each.
        wire.ask(REQUEST).answer(CHUNKED).answer("0\r\n").answer("server-timing: x\r\n\r\n").is(STREAMING);
        wire.ask(REQUEST).is(AWAITING).answer(CHUNKED).answer(LAST_CHUNK).is(IDLE);
        wire.ask(REQUEST).answer([CHUNKED, b"0\r\nserver-timing: x\r\n\r\n"].concat()).is(STREAMING);
        wire.ours.shutdown(std::net::Shutdown::Both).unwrap();
        wire.theirs.shutdown(std::net::Shutdown::Both).unwrap();
        wire.is(IDLE);
        let mut wire = Wire::new(sandbox);
        wire.ask(REQUEST).answer(CHUNKED).answer("0\r\nserver-timing: x\r\n\r\n").is(STREAMING);
        wire.ask(REQUEST).is(AWAITING).answer(CHUNKED).answer(LAST_CHUNK).is(IDLE);
    });
}

#[test]
fn limit_a_head_whose_framing_is_not_in_the_first_511_bytes_counts_until_its_first_byte() {
    run(name!(), |sandbox| {
        let mut wire = Wire::new(sandbox);
        let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n", "x".repeat(600));
        let late = [long.as_bytes(), b"transfer-encoding: chunked\r\n\r\n"].concat();
        wire.ask(REQUEST)
            .is(AWAITING)
            .answer(late)
            .is(IDLE)
            .answer("5\r\nhello\r\n")
            .is(IDLE)
            .answer(LAST_CHUNK);
        let early = ["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx: ", &"x".repeat(600), "\r\n\r\n"];
        wire.ask(REQUEST).answer(early.concat()).is(STREAMING).answer(LAST_CHUNK).is(IDLE);
        wire.ask(REQUEST)
            .answer("HTTP/1.1 200 OK\r\n")
            .is(IDLE)
            .answer("content-length: 2\r\n\r\n{}")
            .is(IDLE);
        wire.ask(REQUEST).is(AWAITING).answer(CHUNKED).answer(LAST_CHUNK).is(IDLE);
        assert_eq!(wire.row().ttfb_count, 4, "the first byte is always seen");
    });
}
