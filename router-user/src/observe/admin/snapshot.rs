//! The snapshot that the status page is fed with: the state without what only a look at one backend needs.

use router_policy::Nanos;
use serde_json::{Value, json};

use crate::backends::health::Cause;
use crate::observe::status::{BackendStatus, Status, seats, signal};

pub(super) fn snapshot(status: &Status, subscribers: usize) -> Value {
    let requests = &status.requests;
    let decisions = requests.decisions.iter().map(|(reason, n)| ((*reason).to_owned(), json!(n)));
    let mut json = status.json_of_process();
    json["decisions"] = Value::Object(decisions.collect());
    json["ttft_buckets"] = json!(requests.ttft_buckets);
    json["subscribers"] = json!(subscribers);
    json["backends"] = status.backends.iter().map(|b| backend(b, status.now)).collect();
    json
}

fn backend(b: &BackendStatus, now: Nanos) -> Value {
    let s = &b.snapshot;
    let (seats, seats_source) = seats(s.seats);
    json!({
        "row": b.id.index(),
        "url": b.url,
        "pool": b.pool,
        "state": b.state(now),
        "own": s.own.requests,
        "others": s.others.requests,
        "placed": b.placed,
        "kernel": b.kernel.as_ref().map(|k| json!({
            "awaiting": k.awaiting(), "streaming": k.streaming(), "unknown": k.unknown(), "conns": k.load.conns,
        })),
        "running": signal(&s.report.running, now),
        "waiting": signal(&s.report.waiting, now),
        "kv_use": signal(&s.report.kv_use, now),
        "seats": [seats, seats_source],
        "suspect": b.suspect.as_ref().map(|s| json!({ "sign": s.sign.as_str(), "why": s.to_string() })),
        "held_against": b.held_against.map(Cause::as_str),
        "problem": b.heard.problem,
    })
}
