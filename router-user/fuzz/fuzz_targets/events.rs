//! Streams of events: a comment between two of them changes none, wherever frames end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use router_fuzz::with_comments;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (stream, steps) = input;
    // A byte order mark is one at the very beginning only, and no engine sends it.
    if stream.first() == Some(&0xef) {
        return;
    }
    let mut at = 0;
    let ends: Vec<usize> = steps
        .iter()
        .map(|&step| {
            at += usize::from(step);
            at
        })
        .collect();
    let commented = with_comments(&stream, &ends);
    assert_eq!(events(&commented), events(&stream), "{:?}", String::from_utf8_lossy(&commented));
});

/// The events of a stream, by the standard's rules: a list of fields each, without comments. What is not ended by an
/// empty line is none.
fn events(stream: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let (mut events, mut fields) = (Vec::new(), Vec::new());
    for line in lines(stream) {
        match line.first() {
            None if fields.is_empty() => {}
            None => events.push(std::mem::take(&mut fields)),
            Some(b':') => {}
            Some(_) => fields.push(line),
        }
    }
    events
}

/// Lines that ended: by CR LF, LF or CR.
fn lines(stream: &[u8]) -> Vec<Vec<u8>> {
    let (mut lines, mut line, mut after_cr) = (Vec::new(), Vec::new(), false);
    for &byte in stream {
        match byte {
            b'\n' if after_cr => {}
            b'\n' | b'\r' => lines.push(std::mem::take(&mut line)),
            byte => line.push(byte),
        }
        after_cr = byte == b'\r';
    }
    lines
}
