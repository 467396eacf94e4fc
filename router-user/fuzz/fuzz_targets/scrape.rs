//! Metrics texts of engines: reading never panics, and what is said does not depend on where it stands.
#![no_main]

use libfuzzer_sys::fuzz_target;
use router_fuzz::metrics_text::{Parsed, parse};
use router_policy::Nanos;

fuzz_target!(|text: &[u8]| {
    let said = counts(&parse(text, Nanos(7)));
    let mut lines: Vec<&[u8]> = text.split(|&b| b == b'\n').collect();
    // Gauges of several engines are added up, so order is nothing.
    lines.reverse();
    assert_eq!(counts(&parse(&lines.join(&b'\n'), Nanos(7))), said, "the lines reversed");
    let commented = [b"# HELP x y\n# vllm:num_requests_running 7\n\n", text].concat();
    assert_eq!(counts(&parse(&commented, Nanos(7))), said, "comments before");
});

/// All but the start time, of which the last counts.
fn counts(parsed: &Parsed) -> String {
    format!("{:?} {:?}", parsed.engine, parsed.report)
}
