//! What reading a request costs: body to shape (scan and hash), and with the pick among eight backends behind it.
//! `cargo bench -p router-user --bench parse`.
//!
//! One question: how long does a request wait for its placement? Prints the median and the 99th percentile in
//! microseconds, and the medians as a multiple of copying the same bytes, each copy timed right before its scan.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use router_policy::prefix::HashKey;
use router_policy::{Alone, BackendId, BackendSpec, Nanos, Outcome, Placement, PolicyConfig, Usage};
use router_user::parse::shape;

const BACKENDS: usize = 8;
/// Bytes scanned of each body: so many that the 99th percentile is of a thousand samples at least.
const BYTES_SCANNED: usize = 400 << 20;
const SAMPLES_MIN: usize = 2_000;
const SAMPLES_MAX: usize = 20_000;

const SIZES: [(&str, usize); 5] =
    [("2 KB", 2_000), ("16 KB", 16_000), ("100 KB", 100_000), ("400 KB", 400_000), ("1 MB", 1_000_000)];

/// Makes a body of about so many bytes.
type Make = fn(usize) -> String;

const KINDS: [(&str, Make); 4] =
    [("plain text", plain), ("escape-heavy", escaped), ("small messages", small), ("token ids", ids)];

/// One system text and a question, without anything to escape.
fn plain(bytes: usize) -> String {
    let text = "The quick brown fox jumps over the lazy dog; it does so every day. ".repeat(bytes / 67 + 1);
    body(&[("system", &text[..bytes * 3 / 4]), ("user", &text[..bytes / 4])])
}

/// Source code at its worst: an escape every six bytes.
fn escaped(bytes: usize) -> String {
    let code = "\\tlet name = \\\"x\\\";\\n\\tif (a) { b\\\\n(); }\\n";
    body(&[("system", "s"), ("user", &code.repeat(bytes / code.len() + 1))])
}

/// Turns of 80 bytes.
fn small(bytes: usize) -> String {
    let turns = (0..bytes / 120).map(|n| {
        let role = if n % 2 == 0 { "user" } else { "assistant" };
        (role, "Please go on with the next step, and say what you see when it is done.")
    });
    body(&turns.collect::<Vec<_>>())
}

/// One prompt of token ids.
fn ids(bytes: usize) -> String {
    let ids: Vec<String> = (0..bytes / 6).map(|n| (10_000 + n % 90_000).to_string()).collect();
    format!(r#"{{"model":"org/model","prompt":[{}],"stream":true}}"#, ids.join(","))
}

/// A chat as clients write it; texts are JSON already.
fn body(messages: &[(&str, &str)]) -> String {
    let messages: Vec<String> = messages
        .iter()
        .map(|(role, content)| format!(r#"{{"role":"{role}","content":"{content}"}}"#))
        .collect();
    format!(r#"{{"messages":[{}],"model":"org/model","stream":true,"max_tokens":256}}"#, messages.join(","))
}

/// Nanoseconds of each sample.
#[derive(Default)]
struct Times {
    copy: Vec<u64>,
    shape: Vec<u64>,
    placed: Vec<u64>,
}

fn measure(body: &Bytes, placement: &mut Placement, now: &mut u64) -> Times {
    let key = HashKey::new([1; 192]);
    let mut copy = vec![0_u8; body.len()];
    let mut times = Times::default();
    for _ in 0..(BYTES_SCANNED / body.len()).clamp(SAMPLES_MIN, SAMPLES_MAX) {
        let start = Instant::now();
        copy.copy_from_slice(black_box(body));
        black_box(&mut copy);
        times.copy.push(start.elapsed().as_nanos() as u64);

        let start = Instant::now();
        let request = shape(black_box(body), &key).unwrap();
        times.shape.push(start.elapsed().as_nanos() as u64);
        *now += 1_000;
        let decision = placement.pick(Nanos(*now), black_box(&request), &[]).unwrap();
        times.placed.push(start.elapsed().as_nanos() as u64);
        assert!(request.shaped, "the body has a prompt");
        placement.on_finished(Nanos(*now), decision.ticket, Outcome::Completed, &Usage::default());
    }
    for samples in [&mut times.copy, &mut times.shape, &mut times.placed] {
        samples.sort_unstable();
    }
    times
}

fn placement() -> Placement {
    let mut placement = Placement::new(PolicyConfig::default(), Box::new(Alone), 1);
    for row in 0..BACKENDS {
        let id = BackendId::new(row).unwrap();
        placement.set_backend(id, BackendSpec::default());
        placement.set_ready(id, true);
    }
    placement
}

fn main() {
    let at = |sorted: &[u64], percent: usize| sorted[sorted.len() * percent / 100] as f64 / 1_000.0;
    println!("µs, p50 / p99; x = p50 as a multiple of copying the same bytes; {BACKENDS} backends");
    println!("{:<15}{:>7}{:>10}{:>27}{:>27}", "body", "", "copy", "parse and hash", "with pick");
    for (kind, make) in KINDS {
        let (mut placement, mut now) = (placement(), 0);
        for (size, bytes) in SIZES {
            let times = measure(&make(bytes).into(), &mut placement, &mut now);
            let copy = at(&times.copy, 50);
            let cell = |sorted: &[u64]| {
                let p50 = at(sorted, 50);
                format!("{p50:>9.2} /{:>8.2} {:>5.1}x", at(sorted, 99), p50 / copy)
            };
            println!(
                "{kind:<15}{size:>7}{copy:>10.2} {:>26} {:>26}",
                cell(&times.shape),
                cell(&times.placed)
            );
        }
    }
}
