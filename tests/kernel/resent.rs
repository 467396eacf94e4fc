//! Answers whose segments the network brings twice, or one before the other: each byte counts once, and an answer ends
//! with its last.

use std::io::{Read, Write};

use crate::phases::{self, AWAITING, CHUNKED, IDLE, LAST_CHUNK, REQUEST, STREAMING};
use crate::sandbox::{Sandbox, name, run};
use crate::tcx::beyond;
use crate::wire::{ENGINE, Rule, Wire, is_possible};
use crate::world::account;

const HUNDRED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n";

fn over(sandbox: &Sandbox) -> (Wire, phases::Wire) {
    let cable = Wire::lay().unwrap();
    let account = account(sandbox);
    let backend = beyond(&cable.engine, &account, ENGINE);
    (cable, phases::Wire::to(account, backend))
}

/// Two segments, of which the second arrives first.
fn swapped(cable: &Wire, wire: &mut phases::Wire, first: &[u8], second: &[u8]) {
    cable.set(Rule::Overtake);
    wire.theirs.write_all(first).unwrap();
    wire.theirs.write_all(second).unwrap();
    wire.ours.read_exact(&mut vec![0; first.len() + second.len()]).unwrap();
}

#[test]
fn what_arrives_twice_counts_once() {
    if !is_possible("what_arrives_twice_counts_once") {
        return;
    }
    run(name!(), |sandbox| {
        let (cable, mut wire) = over(sandbox);
        cable.set(Rule::Twice);
        for _ in 0..3 {
            wire.ask(REQUEST).is(AWAITING).answer(HUNDRED).is(STREAMING).answer([b'x'; 60]).is(STREAMING);
            // Whatever came twice is in before this.
            wire.answer("x").is(STREAMING).answer([b'x'; 39]).is(IDLE);
            wire.ask(REQUEST).is(AWAITING).answer([HUNDRED, &"x".repeat(50)].concat()).is(STREAMING);
            wire.answer("x").is(STREAMING).answer([b'x'; 49]).is(IDLE);
            wire.ask(REQUEST).is(AWAITING).answer(CHUNKED).is(STREAMING).answer("5\r\nhello\r\n");
            wire.is(STREAMING).answer(LAST_CHUNK).is(IDLE);
        }
        assert_eq!(wire.row().ttfb_count, 9);
    });
}

#[test]
fn an_answer_whose_segments_overtake_each_other_ends_with_its_last_byte() {
    if !is_possible("an_answer_whose_segments_overtake_each_other_ends_with_its_last_byte") {
        return;
    }
    run(name!(), |sandbox| {
        let (cable, mut wire) = over(sandbox);
        // The head behind a part of the body, and behind all of it.
        wire.ask(REQUEST).is(AWAITING);
        swapped(&cable, &mut wire, HUNDRED.as_bytes(), &[b'x'; 60]);
        wire.is(STREAMING).answer([b'x'; 39]).is(STREAMING).answer("x").is(IDLE);
        wire.ask(REQUEST).is(AWAITING);
        swapped(&cable, &mut wire, HUNDRED.as_bytes(), &[b'x'; 100]);
        wire.is(IDLE);
        // Parts of the body.
        wire.ask(REQUEST).is(AWAITING).answer(HUNDRED).is(STREAMING);
        swapped(&cable, &mut wire, &[b'x'; 60], &[b'x'; 39]);
        wire.is(STREAMING).answer("x").is(IDLE);
        wire.ask(REQUEST).is(AWAITING).answer(HUNDRED).is(STREAMING);
        swapped(&cable, &mut wire, &[b'x'; 99], b"x");
        wire.is(IDLE);
        // In chunks.
        wire.ask(REQUEST).is(AWAITING);
        swapped(&cable, &mut wire, CHUNKED, b"5\r\nhello\r\n");
        wire.is(STREAMING).answer(LAST_CHUNK).is(IDLE);
        wire.ask(REQUEST).is(AWAITING);
        swapped(&cable, &mut wire, CHUNKED, LAST_CHUNK);
        wire.is(IDLE);
        wire.ask(REQUEST).is(AWAITING).answer(CHUNKED).is(STREAMING);
        swapped(&cable, &mut wire, b"5\r\nhello\r\n", LAST_CHUNK);
        wire.is(IDLE);
        assert_eq!(wire.row().ttfb_count, 7);
    });
}
