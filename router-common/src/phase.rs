//! The request on a connection, as the segments tell: nothing, sent, being answered; and how one leads to the next.
//!
//! Pure: the BPF programs bring what they saw, and store what comes out. Invariant: from any phase the next request
//! on the connection leads to [`AWAITING`] (but for [`UNKNOWN`], which lasts), so a mistake lasts one request at most.

use crate::http::{Head, Sent, ends_chunked};
use crate::order::{Overtaken, beyond};

/// Nothing is outstanding.
pub const IDLE: u8 = 0;
/// A request was sent, and its answer has not begun. Progress: what overtook its beginning ([`Overtaken`]).
pub const AWAITING: u8 = 1;
/// As [`AWAITING`], and the answer will be a head alone.
pub const AWAITING_HEAD: u8 = 2;
/// An answer in chunks has begun. Progress: its last eight bytes.
pub const CHUNKED: u8 = 3;
/// An answer of known length has begun. Progress: the bytes that are left.
pub const SIZED: u8 = 4;
/// An answer has begun that ends with the connection.
pub const UNTIL_CLOSE: u8 = 5;
/// Requests cannot be told: TLS, HTTP/2, a tunnel. Lasts as long as the connection.
pub const UNKNOWN: u8 = 6;

/// In which gauge of its row a phase counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// In none.
    None,
    /// `awaiting`.
    Awaiting,
    /// `streaming`.
    Streaming,
    /// `unknown`.
    Unknown,
}

/// Where a phase counts.
#[must_use]
#[inline(always)]
pub const fn gauge(phase: u8) -> Gauge {
    match phase {
        AWAITING | AWAITING_HEAD => Gauge::Awaiting,
        CHUNKED | SIZED | UNTIL_CLOSE => Gauge::Streaming,
        UNKNOWN => Gauge::Unknown,
        _ => Gauge::None,
    }
}

/// The phase after a segment to the backend; `is_first` = no request was seen on the connection before.
#[must_use]
#[inline(always)]
pub const fn on_sent(phase: u8, sent: Sent, is_first: bool) -> u8 {
    match (phase, sent) {
        (UNKNOWN, _) | (_, Sent::Http2) => UNKNOWN,
        // A body may contain what looks like a request; before any answer it changes nothing.
        (AWAITING | AWAITING_HEAD, _) => phase,
        (_, Sent::Request) => AWAITING,
        (_, Sent::HeadRequest) => AWAITING_HEAD,
        (IDLE, Sent::Other) if is_first => UNKNOWN,
        // The rest of a body whose answer came early.
        (_, Sent::Other) => phase,
    }
}

/// A phase, and what it must remember of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The phase.
    pub phase: u8,
    /// See [`CHUNKED`] and [`SIZED`]; else 0.
    pub progress: u64,
}

impl Step {
    const fn to(phase: u8) -> Self {
        Self { phase, progress: 0 }
    }
}

/// What follows the first segment of an answer: `len` bytes, of which `tail` are the last eight.
#[must_use]
#[inline(always)]
pub const fn on_answer(phase: u8, head: &Head, tail: u64, len: u32) -> Step {
    if head.status == 0 || head.status == 101 {
        return Step::to(UNKNOWN);
    }
    if head.is_interim() {
        return Step::to(phase);
    }
    if phase == AWAITING_HEAD || head.is_without_body() {
        return Step::to(IDLE);
    }
    if head.is_chunked {
        return on_chunks(tail, len);
    }
    if head.len == 0 {
        // How the body ends was not seen. It is better to count it too short than never to end.
        return Step::to(IDLE);
    }
    if head.length == Head::NO_LENGTH {
        return Step::to(UNTIL_CLOSE);
    }
    on_bytes(head.length, len - head.len)
}

/// What follows the first segment of an answer, which reaches up to `end`, if others overtook it.
#[must_use]
#[inline(always)]
pub const fn on_overtaken(to: Step, overtaken: Overtaken, end: u32) -> Step {
    match to.phase {
        SIZED => on_bytes(to.progress, beyond(end, overtaken.reaches(end))),
        CHUNKED if overtaken.is_end() => Step::to(IDLE),
        _ => to,
    }
}

/// What follows a segment of a chunked answer.
#[must_use]
#[inline(always)]
pub const fn on_chunks(tail: u64, len: u32) -> Step {
    if ends_chunked(tail, len) { Step::to(IDLE) } else { Step { phase: CHUNKED, progress: tail } }
}

/// What follows `len` bytes of an answer of which `left` are to come.
#[must_use]
#[inline(always)]
pub const fn on_bytes(left: u64, len: u32) -> Step {
    if left <= len as u64 { Step::to(IDLE) } else { Step { phase: SIZED, progress: left - len as u64 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: Head = Head { status: 200, is_chunked: false, length: Head::NO_LENGTH, len: 40 };

    #[test]
    fn a_request_awaits_its_answer_from_every_readable_phase() {
        for phase in [IDLE, AWAITING, CHUNKED, SIZED, UNTIL_CLOSE] {
            assert_eq!(on_sent(phase, Sent::Request, false), AWAITING, "from {phase}");
        }
        assert_eq!(on_sent(IDLE, Sent::HeadRequest, true), AWAITING_HEAD);
        assert_eq!(on_sent(UNKNOWN, Sent::Request, false), UNKNOWN);
    }

    #[test]
    fn what_is_no_request_makes_only_a_fresh_connection_unknown() {
        assert_eq!(on_sent(IDLE, Sent::Other, true), UNKNOWN);
        for phase in [IDLE, AWAITING, CHUNKED, SIZED, UNTIL_CLOSE] {
            assert_eq!(on_sent(phase, Sent::Other, false), phase, "the rest of a body in {phase}");
        }
        assert_eq!(on_sent(IDLE, Sent::Http2, true), UNKNOWN);
    }

    #[test]
    fn an_answer_streams_until_its_framing_ends_it() {
        let chunked = Head { is_chunked: true, ..OK };
        let sized = Head { length: 100, ..OK };
        assert_eq!(on_answer(AWAITING, &chunked, 7, 60), Step { phase: CHUNKED, progress: 7 });
        assert_eq!(on_answer(AWAITING, &sized, 7, 60), Step { phase: SIZED, progress: 80 });
        assert_eq!(on_answer(AWAITING, &sized, 7, 140), Step::to(IDLE));
        assert_eq!(on_answer(AWAITING, &OK, 7, 60), Step::to(UNTIL_CLOSE));
        assert_eq!(on_bytes(80, 79), Step { phase: SIZED, progress: 1 });
        assert_eq!(on_bytes(80, 200), Step::to(IDLE), "more than announced");
    }

    #[test]
    fn what_overtook_the_beginning_of_an_answer_is_part_of_it() {
        let none = Overtaken::from_progress(0);
        let sized = Step { phase: SIZED, progress: 80 };
        let chunked = Step { phase: CHUNKED, progress: 7 };
        assert_eq!(on_overtaken(sized, none, 500), sized);
        assert_eq!(on_overtaken(sized, none.by(579, false), 500), Step { phase: SIZED, progress: 1 });
        assert_eq!(on_overtaken(sized, none.by(580, false), 500), Step::to(IDLE));
        assert_eq!(on_overtaken(chunked, none.by(580, false), 500), chunked);
        assert_eq!(on_overtaken(chunked, none.by(580, true), 500), Step::to(IDLE));
        for phase in [UNTIL_CLOSE, UNKNOWN, IDLE] {
            assert_eq!(on_overtaken(Step::to(phase), none.by(580, true), 500), Step::to(phase));
        }
    }

    #[test]
    fn answers_without_body_end_at_once() {
        for status in [204, 304] {
            assert_eq!(on_answer(AWAITING, &Head { status, ..OK }, 0, 40), Step::to(IDLE));
        }
        assert_eq!(on_answer(AWAITING_HEAD, &Head { length: 9, ..OK }, 0, 40), Step::to(IDLE));
        assert_eq!(on_answer(AWAITING, &Head { length: 0, ..OK }, 0, 40), Step::to(IDLE));
    }

    #[test]
    fn interim_answers_await_on_and_tunnels_are_unknown() {
        assert_eq!(on_answer(AWAITING, &Head { status: 100, ..OK }, 0, 40), Step::to(AWAITING));
        assert_eq!(on_answer(AWAITING, &Head { status: 101, ..OK }, 0, 40), Step::to(UNKNOWN));
        assert_eq!(on_answer(AWAITING, &Head::UNREADABLE, 0, 40), Step::to(UNKNOWN));
    }

    #[test]
    fn an_answer_whose_framing_was_not_seen_counts_no_longer_than_its_first_byte() {
        let cut = Head { len: 0, ..OK };
        assert_eq!(on_answer(AWAITING, &cut, 0, 512), Step::to(IDLE));
        assert_eq!(on_answer(AWAITING, &Head { length: 10, ..cut }, 0, 512), Step::to(IDLE));
        assert_eq!(on_answer(AWAITING, &Head { is_chunked: true, ..cut }, 9, 512).phase, CHUNKED);
    }

    #[test]
    fn each_phase_counts_in_one_gauge() {
        let all = [IDLE, AWAITING, AWAITING_HEAD, CHUNKED, SIZED, UNTIL_CLOSE, UNKNOWN].map(gauge);
        let streaming = [Gauge::Streaming; 3];
        assert_eq!(all[..3], [Gauge::None, Gauge::Awaiting, Gauge::Awaiting]);
        assert_eq!((&all[3..6], all[6]), (&streaming[..], Gauge::Unknown));
        assert_eq!(gauge(200), Gauge::None, "a value from a map may be anything");
    }
}
