//! From a placement to what is printed of it.

use prometheus_client::registry::Registry;
use router_policy::prefix::{ChainBuilder, HashKey};
use router_policy::{
    Alone, BackendId, BackendSpec, Nanos, Outcome, Placement, PolicyConfig, Report, RequestShape, Signal,
    Usage,
};
use serde_json::Value;

use super::*;
use crate::decisions::{CandidateLine, Line, Recorder};

/// A decision for the first of these, by cost; each costs what stands beside it, all of it uncached.
pub(super) fn line(id: u64, request: Option<&str>, candidates: &[(&str, f64)]) -> Line {
    let candidate = |(backend, cost): &(&str, f64)| CandidateLine {
        backend: (*backend).to_owned(),
        in_flight: Some(2.0),
        own: Some(2),
        others: 0,
        foreign: None,
        foreign_age_s: None,
        in_band: None,
        report_age_s: None,
        stale: false,
        matched: 0,
        q_c_k: [0.0, 0.0, 400_000.0],
        kv: ("assumed".to_owned(), None),
        seats: (1, "proven_by_use".to_owned(), None),
        prefill: (15_000.0, 0),
        kernel: None,
        cost: [*cost, 0.0, 0.0, 0.0, 0.0, 0.0],
        compared: *cost,
        band: 0.0,
    };
    Line {
        id,
        request: request.map(str::to_owned),
        at_ns: 1_000_000_000 * id,
        prompt: "0".repeat(32),
        tokens: 100,
        stream: true,
        chosen: candidates.first().map_or_else(String::new, |(backend, _)| (*backend).to_owned()),
        reason: "cost_with_prefix".to_owned(),
        means: [5.0, 15_000.0, 4.0],
        mean_request: [0.0, 0.0],
        candidates: candidates.iter().map(candidate).collect(),
    }
}

fn chat(text: &str) -> RequestShape {
    let key = HashKey::new([1; 192]);
    let mut chain = ChainBuilder::new(&key, b"model");
    chain.update(text.as_bytes());
    RequestShape { chain: chain.finish(), shaped: true, stream: true, ..RequestShape::default() }
}

fn at(seconds: f64) -> Nanos {
    Nanos::from_secs_f64(seconds)
}

/// Records of a router with two backends: `a` reported 0.25 s before, has the first prompt cached, and three long ones
/// in flight; `b` never said a word. The last request extends the first prompt, and must go to `b`.
fn record(path: &Path) -> Placement {
    let config = PolicyConfig { record: true, ..PolicyConfig::default() };
    let mut p = Placement::new(config, Box::new(Alone), 1);
    let [a, b] = [0, 1].map(|row| BackendId::new(row).unwrap());
    for (id, seats) in [(a, Some(8)), (b, None)] {
        p.set_backend(id, BackendSpec { max_num_seqs: seats, ..BackendSpec::default() });
        p.set_ready(id, true);
    }
    let url = move |id| if id == a { "http://a".to_owned() } else { "http://b".to_owned() };
    let recorder = Recorder::start(path, url, &mut Registry::default()).unwrap();
    let warm = p.pick_forced(at(0.0), &chat(&"s".repeat(4096)), a).unwrap();
    p.on_finished(at(1.0), warm.ticket, Outcome::Completed, &Usage::default());
    for n in 0..3 {
        let _held = p.pick_forced(at(2.0), &chat(&format!("{n} other").repeat(2000)), a).unwrap();
    }
    p.report_begins(at(2.0), a);
    let report = Report {
        running: Signal::known(4, at(2.0)),
        waiting: Signal::known(0, at(2.0)),
        kv_tokens: Signal::known(50_000, at(2.0)),
        ..Report::default()
    };
    p.report(at(2.0), a, report);
    for (n, text) in [(1, "t".repeat(3000)), (2, "s".repeat(6000))] {
        let decision = p.pick(at(2.25), &chat(&text), &[]).unwrap();
        recorder.take(decision.record.unwrap(), &format!("request-{n}"));
    }
    p
}

/// The answer once the writing thread has written `decisions`.
fn written(path: &Path, decisions: usize) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while std::fs::read_to_string(path).unwrap().matches('\n').count() < decisions {
        assert!(std::time::Instant::now() < end, "records are written when the recorder is gone");
        std::thread::yield_now();
    }
}

#[test]
fn what_a_router_recorded_is_explained_with_terms_that_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions");
    record(&path);
    written(&path, 2);
    let json: Value = serde_json::from_str(&answer(&path, Some("request-2"), true).unwrap()).unwrap();
    let [decision] = json.as_array().unwrap().as_slice() else { panic!("one decision: {json}") };
    assert_eq!(
        (decision["chosen"].as_str(), decision["prompt_tokens"].as_u64()),
        (Some("http://b"), Some(1500))
    );
    let candidates = decision["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2);
    for c in candidates {
        let terms = c["terms"].as_object().unwrap();
        let sum: f64 = terms.values().map(|term| term.as_f64().unwrap()).sum();
        assert_eq!(terms.len(), 6);
        assert!((sum - c["total"].as_f64().unwrap()).abs() < 1e-6, "{c:#}");
        assert!((sum - c["compared"].as_f64().unwrap()).abs() < 1e-6, "{c:#}");
    }
    let [a, b] = [0, 1].map(|at| &candidates[at]);
    assert_eq!((a["is_chosen"].as_bool(), b["is_chosen"].as_bool()), (Some(false), Some(true)));
    assert_eq!(a["known"]["matched_tokens"], 1024, "of the warm prompt");
    assert_eq!(
        (a["known"]["own"].as_u64(), a["known"]["seats_source"].as_str()),
        (Some(3), Some("configured"))
    );
    assert_eq!(
        (a["age_seconds"]["report"].as_f64(), a["age_seconds"]["own"].as_f64()),
        (Some(0.25), Some(0.0))
    );
    assert!(
        b["age_seconds"]["report"].is_null() && b["known"]["foreign"].is_null(),
        "unknown is not 0: {b:#}"
    );
}

#[test]
fn the_text_marks_the_chosen_and_says_why_and_how_old() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions");
    record(&path);
    written(&path, 2);
    let text = answer(&path, Some("request-2"), false).unwrap();
    let why = "chosen: http://b because its total is ";
    let because = text.lines().find(|line| line.starts_with(why)).unwrap_or_else(|| panic!("{text}"));
    assert!(because.contains("lower than http://a's; waiting at http://a, "), "{text}");
    assert!(because.ends_with("outweighs its 1,024 more cached tokens"), "{text}");
    let of = |backend: &str| -> Vec<Vec<&str>> {
        let lines = text.lines().filter(|line| line.trim_start_matches(['*', ' ']).starts_with(backend));
        lines.map(|line| line.split_whitespace().collect()).collect()
    };
    let [terms, known, ages] = &of("http://b")[..] else { panic!("three tables: {text}") };
    assert_eq!((terms[0], known[0], ages[0]), ("*", "*", "*"));
    let number = |cell: &&str| cell.replace(',', "").parse::<f64>().unwrap();
    for cells in [terms, &of("http://a")[0]] {
        let numbers: Vec<f64> =
            cells.iter().skip_while(|cell| !cell.contains("http")).skip(1).map(number).collect();
        let [terms @ .., total] = numbers.as_slice() else { panic!("{text}") };
        assert!((terms.iter().sum::<f64>() - total).abs() < 0.35, "rounded to tenths: {text}");
    }
    assert_eq!(ages[2..6], ["unknown", "now", "now", "unknown"], "{text}");
    assert!(
        of("http://a")[2].join(" ").contains("0.25 s now now 0.25 s reported 0.25 s configured"),
        "{text}"
    );
}

#[test]
fn without_an_id_the_file_is_summarised_packed_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions");
    record(&path);
    written(&path, 2);
    let text = answer(&path, None, false).unwrap();
    assert!(text.starts_with("2 decisions\n"), "{text}");
    let packed = folder.path().join("packed");
    let bytes = zstd::stream::encode_all(std::fs::read(&path).unwrap().as_slice(), 1).unwrap();
    std::fs::write(&packed, bytes).unwrap();
    assert_eq!(answer(&packed, None, false).unwrap(), text);
    let json: Value = serde_json::from_str(&answer(&path, None, true).unwrap()).unwrap();
    assert_eq!((json["decisions"].as_u64(), json["unreadable_lines"].as_u64()), (Some(2), Some(0)));
}

#[test]
fn a_bad_file_and_an_unknown_id_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions");
    let error = |explain| format!("{:#}", answer(&path, explain, false).unwrap_err());
    assert!(error(None).starts_with("cannot read "), "{}", error(None));
    std::fs::write(&path, "nonsense\n").unwrap();
    assert!(error(None).contains("no decision record in it"), "{}", error(None));
    let json = serde_json::to_string(&line(7, Some("r"), &[("a", 1.0)])).unwrap();
    std::fs::write(&path, json).unwrap();
    assert!(error(Some("8")).contains("`8` names none of its 1 decisions"), "{}", error(Some("8")));
}
