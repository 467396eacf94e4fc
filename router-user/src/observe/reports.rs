//! How it stands with what engines report: one word, and what is wrong.

use prometheus_client::encoding::DescriptorEncoder;
use router_policy::Why;
use serde_json::{Value, json};

use super::encode::gauges;
use super::status::BackendStatus;

/// The report is known, or the engine says that it sleeps; else a [`Why`].
const KNOWN: &str = "known";
const ASLEEP: &str = "asleep";

/// How it stands with a backend's report, as one word.
fn state(backend: &BackendStatus) -> &'static str {
    let report = &backend.snapshot.report;
    match report.running.why().or_else(|| report.waiting.why()) {
        _ if backend.heard.asleep => ASLEEP,
        Some(why) => why.as_str(),
        None => KNOWN,
    }
}

pub(super) fn json(backend: &BackendStatus) -> Value {
    json!({
        "state": state(backend),
        "engine": backend.heard.engine.map(|engine| engine.as_str()),
        "problem": backend.heard.problem,
    })
}

pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    backends: &[BackendStatus],
) -> Result<(), std::fmt::Error> {
    let states = || [KNOWN, ASLEEP].into_iter().chain(Why::ALL.map(Why::as_str));
    let samples = backends.iter().flat_map(|b| {
        let now = state(b);
        states().map(move |s| ([("backend", b.url.as_str()), ("state", s)], u32::from(s == now)))
    });
    let help = "1 for how it stands with what the engine reports: known, or why not";
    gauges(encoder, "unlatch_backend_report_state", help, samples)
}
