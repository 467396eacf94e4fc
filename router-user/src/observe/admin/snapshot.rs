//! The snapshot that the status page is fed with: the state without what only a look at one backend needs.

use router_policy::Nanos;
use serde_json::{Value, json};

use crate::backends::health::Cause;
use crate::observe::status::{BackendStatus, Status, seats, signal};

pub(super) fn snapshot(status: &Status, subscribers: usize) -> Value {
    let programs = status.kernel.programs.iter().map(|(name, on)| ((*name).to_owned(), json!(on)));
    let requests = &status.requests;
    let decisions = requests.decisions.iter().map(|(reason, n)| ((*reason).to_owned(), json!(n)));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "policy": status.policy.as_str(),
        "uptime_seconds": status.uptime.as_secs_f64(),
        "ready": status.is_ready(),
        "draining": status.is_draining,
        "pools_without_ready": status.pools_without_ready(),
        "kernel": { "line": status.kernel.line, "attached": programs.collect::<serde_json::Map<_, _>>() },
        "index": { "blocks": status.index.blocks, "bytes": status.index.bytes },
        "decisions": decisions.collect::<serde_json::Map<_, _>>(),
        "ttft_buckets": requests.ttft_buckets,
        "subscribers": subscribers,
        "backends": status.backends.iter().map(|b| backend(b, status.now)).collect::<Vec<_>>(),
    })
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
