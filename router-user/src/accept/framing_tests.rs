//! Every offence, wherever reads end. That hyper cuts messages at the same places is the fuzz target's to show.

use super::{Framing, Offence, Stop};
use proptest::prelude::*;

const GOOD: &str = "\r\nPOST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\
    POST /b HTTP/1.1\r\ntransfer-ENCODING:  Chunked \r\n\r\n3;x=\"y\"\r\na\nb\r\n00a \r\n0123456789\r\n0\r\nT: v\r\n\r\n\
    GET /c HTTP/1.1\r\nX: \r\n\r\n";

/// The first offence with reads that end at the given places.
fn first(text: &str, reads: &[usize]) -> Option<(usize, Offence)> {
    let (mut framing, mut from) = (Framing::default(), 0);
    for &to in reads.iter().chain([&text.len()]) {
        let to = to.clamp(from, text.len());
        if let Err(Stop { at, offence }) = framing.pass(&text.as_bytes()[from..to]) {
            return Some((from + at, offence));
        }
        from = to;
    }
    None
}

fn request(headers: &str) -> String {
    format!("{GOOD}POST /x HTTP/1.1\r\nHost: h\r\n{headers}\r\n\r\n")
}

#[test]
fn what_is_well_framed_passes_wherever_reads_end() {
    for at in 0..GOOD.len() {
        assert_eq!(first(GOOD, &[at]), None, "cut at {at}");
    }
    let all: Vec<usize> = (0..GOOD.len()).collect();
    assert_eq!(first(GOOD, &all), None, "byte by byte");
}

#[test]
fn each_offence_is_found_wherever_reads_end() {
    use Offence::{BareLf, Chunk, Encoding, Fold, Length, LengthAndEncoding, Name, TwoLengths};
    for (headers, offence) in [
        ("A: b\nC: d", BareLf),
        ("A: b\r\n more", Fold),
        ("A: b\r\n\tmore", Fold),
        ("Content-Length : 3", Name),
        ("Content-Length\t: 3", Name),
        (": 3", Name),
        ("no colon", Name),
        ("Content-Length: +3", Length),
        ("Content-Length: -3", Length),
        ("Content-Length: 0x3", Length),
        ("Content-Length: 3 3", Length),
        ("Content-Length: 3, 3", Length),
        ("Content-Length:", Length),
        ("Content-Length: 99999999999999999999", Length),
        ("Content-Length: 3\r\nContent-Length: 3", TwoLengths),
        ("Content-Length: 3\r\nA: b\r\ncontent-length: 4", TwoLengths),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked", LengthAndEncoding),
        ("Transfer-Encoding: chunked\r\nContent-Length: 3", LengthAndEncoding),
        ("Transfer-Encoding: gzip, chunked", Encoding),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Encoding),
        ("Transfer-Encoding: xchunked", Encoding),
        ("Transfer-Encoding: \u{b}chunked", Encoding),
        ("Transfer-Encoding: chunked\r\n\r\n3\r\nabcd", Chunk),
        ("Transfer-Encoding: chunked\r\n\r\n-3\r\nabc", Chunk),
        ("Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc", Chunk),
        ("Transfer-Encoding: chunked\r\n\r\n\r\n", Chunk),
        ("Transfer-Encoding: chunked\r\n\r\n3\nabc", BareLf),
        ("Transfer-Encoding: chunked\r\n\r\n11111111111111111\r\nabc", Chunk),
        ("Transfer-Encoding: chunked\r\n\r\n0\r\nA : b", Name),
    ] {
        let text = request(headers);
        let whole = first(&text, &[]).unwrap_or_else(|| panic!("{headers:?} must not pass"));
        assert_eq!(whole.1, offence, "{headers:?}");
        assert!(whole.0 >= GOOD.len(), "{headers:?}: what came before is in order");
        for at in GOOD.len()..text.len() {
            let cut = first(&text, &[at]).unwrap_or_else(|| panic!("{headers:?} cut at {at}"));
            assert_eq!(cut.1, offence, "{headers:?} cut at {at}");
        }
        let all: Vec<usize> = (0..text.len()).collect();
        assert_eq!(first(&text, &all).map(|o| o.1), Some(offence), "{headers:?} byte by byte");
    }
}

#[test]
fn a_long_line_is_no_offence() {
    let text = request(&format!("{}: x\r\nCookie: {}", "n".repeat(300), "c".repeat(70_000)));
    let all: Vec<usize> = (0..text.len()).step_by(7).collect();
    assert_eq!(first(&text, &all), None);
    assert_eq!(first(&text, &[]), None);
}

#[test]
fn what_a_length_or_encoding_says_beyond_what_is_kept_is_never_guessed() {
    for (headers, offence) in [
        (format!("Content-Length: {}3", "0".repeat(100)), Offence::Length),
        (format!("Content-Length: 3{}", " ".repeat(100)), Offence::Length),
        (format!("Transfer-Encoding: chunked{}", " ".repeat(100)), Offence::Encoding),
    ] {
        let text = request(&headers);
        let all: Vec<usize> = (0..text.len()).collect();
        for reads in [&[][..], &all] {
            assert_eq!(first(&text, reads).map(|o| o.1), Some(offence), "{headers}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_a_verdict_that_does_not_depend_on_reads(
        text in "[ a:\r\n0-9;T]{0,80}",
        head in prop_oneof![Just(""), Just("P / H\r\nContent-Length: 7\r\n\r\n"), Just("P / H\r\nTransfer-Encoding: chunked\r\n\r\n")],
        reads in prop::collection::vec(0_usize..120, 0..6),
    ) {
        let text = format!("{head}{text}");
        let mut reads = reads;
        reads.sort_unstable();
        prop_assert_eq!(first(&text, &reads).map(|o| o.1), first(&text, &[]).map(|o| o.1));
    }
}
