//! Metrics texts of engines: reading never panics, and what is said depends neither on where it stands nor on how the
//! text is cut; nothing is idle that does not say so.
#![no_main]

use libfuzzer_sys::fuzz_target;
use router_fuzz::metrics_text::{Engine, Parsed, Reader, nearest, parse};
use router_policy::{Nanos, Report, Signal};

fuzz_target!(|text: &[u8]| {
    let whole = parse(text, Nanos(7));
    let said = counts(&whole);
    idle_only_by_its_own_word(text, &whole);
    assert_eq!(all(&in_pieces(text, false)), all(&whole), "in pieces");
    let with_names = in_pieces(text, true);
    assert_eq!(counts(&with_names), said, "with names");
    assert!(with_names.names.len() <= 64 && with_names.names.iter().all(|name| name.len() <= 100));
    let _near = nearest(&with_names.names, None, Engine::running_name);

    // What the first line is tells whether it is such a text at all.
    let comment: &[u8] = b"# HELP x y\n# vllm:num_requests_running 7\n\n";
    let commented = counts(&parse(&[comment, text].concat(), Nanos(7)));
    let mut lines: Vec<&[u8]> = text.split(|&b| b == b'\n').collect();
    lines.reverse();
    // Gauges of several engines are added up, so order is nothing.
    let reversed = [comment, &lines.join(&b'\n')].concat();
    assert_eq!(counts(&parse(&reversed, Nanos(7))), commented, "the lines reversed");
});

/// Reads a text in pieces whose lengths are its own bytes.
fn in_pieces(text: &[u8], with_names: bool) -> Parsed {
    let mut reader = Reader::new(with_names);
    let mut rest = text;
    while let Some(&first) = rest.first() {
        let (piece, after) = rest.split_at(usize::from(first).clamp(1, rest.len()));
        reader.feed(piece).expect("an input is small");
        rest = after;
    }
    reader.finish(Nanos(7), None)
}

fn idle_only_by_its_own_word(text: &[u8], parsed: &Parsed) {
    if (parsed.report.running.value(), parsed.report.waiting.value()) == (Some(0), Some(0)) {
        let engine = parsed.engine.expect("somebody said so");
        for name in [engine.running_name(), engine.waiting_name()] {
            assert!(text.windows(name.len()).any(|part| part == name.as_bytes()), "{name} is not there");
        }
    }
}

/// All but the start time, of which the last counts, the fingerprint, which tells the order too, and the last bits of
/// a mean.
fn counts(parsed: &Parsed) -> String {
    let kv_use = match parsed.report.kv_use {
        Signal::Known { value, at } => Signal::known((value * 1e9).round(), at),
        unknown => unknown,
    };
    let report = Report { fingerprint: None, kv_use, ..parsed.report.clone() };
    format!("{:?} {:?} {:?}", parsed.engine, parsed.awake, report)
}

fn all(parsed: &Parsed) -> String {
    format!("{:?} {:?} {:?}", parsed.report, parsed.awake, parsed.process_start_seconds)
}
