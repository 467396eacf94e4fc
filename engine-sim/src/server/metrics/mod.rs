//! `/metrics` in one of five dialects, perhaps distorted, and `/stats`, our own view, which never lies.
//!
//! Reading order: `view`, `family`, `vllm`, `others`, `distort`, and the choice here.
//! Only series that the model has a value for are written; latency histograms are not among them.

mod distort;
mod family;
mod others;
mod view;
mod vllm;

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::faults::{Dialect, Given, MetricsFaults};
use family::Family;
pub(super) use others::slots;
pub(super) use view::View;

/// Families as they were when faults were set, for those that are to stay so.
#[derive(Debug, Default)]
pub(super) struct Frozen(Vec<Family>);

impl Frozen {
    pub(super) fn take(dialect: Dialect, view: &View<'_>) -> Self {
        Self(families(dialect, view))
    }
}

/// The text exposition.
pub(super) fn exposition(
    dialect: Dialect,
    view: &View<'_>,
    faults: &MetricsFaults,
    frozen: &Frozen,
) -> String {
    let mut families = families(dialect, view);
    distort::distort(&mut families, faults, &frozen.0);
    family::render(&families)
}

/// What trtllm-serve has at `/metrics`, where the others have text.
pub(super) fn iterations(view: &View<'_>) -> Value {
    others::trtllm_iterations(view)
}

fn families(dialect: Dialect, view: &View<'_>) -> Vec<Family> {
    match dialect {
        Dialect::Vllm => vllm::families(view),
        Dialect::Sglang => others::sglang(view),
        Dialect::Tgi => others::tgi(view),
        Dialect::LlamaCpp => others::llamacpp(view),
        Dialect::TrtLlm => others::trtllm(view),
    }
}

/// What `/stats` tells beside the view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extra {
    pub(super) admin_addr: Option<SocketAddr>,
    pub(super) refused_connections: u64,
    pub(super) restarts: u64,
    pub(super) faults: Given,
}

/// Our own view, as JSON.
pub(super) fn stats_json(view: &View<'_>, extra: &Extra) -> Value {
    let (config, stats) = (view.config, view.stats);
    json!({
        "name": view.name,
        "profile": config.profile.name,
        "max_num_seqs": config.max_num_seqs,
        "running": stats.running,
        "waiting": stats.waiting,
        "arriving": stats.arriving,
        "running_peak": stats.running_peak,
        "waiting_peak": stats.waiting_peak,
        "seat_queue_peak": stats.seat_queue_peak,
        "served": stats.served,
        "aborted": stats.aborted,
        "refused": stats.refused,
        "refused_connections": extra.refused_connections,
        "preempted": stats.preempted,
        "prompt_tokens": stats.prompt_tokens,
        "cache_hit_tokens": stats.cache_hit_tokens,
        "generated_tokens": stats.generated_tokens,
        "steps": stats.steps,
        "kv_blocks_used": stats.used_blocks,
        "kv_blocks": stats.total_blocks,
        "kv_blocks_host": config.host_blocks,
        "sleep_level": view.sleep_level,
        "started_at": view.started_at_s,
        "restarts": extra.restarts,
        "admin_listen": extra.admin_addr,
        "faults": extra.faults,
    })
}
