//! What is printed: a table for people, or JSON.

use std::fmt::Write;

use super::args::ReplayArgs;
use super::http;
use super::stats::{METRICS, Summary};
use super::trace::Trace;
use super::workload::Workload;

/// A list of objects, one a policy.
///
/// # Errors
/// Never in practice: every number is finite.
pub(super) fn json(results: &[Summary]) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(results)? + "\n")
}

/// What was replayed, the numbers of each policy, and how they compare to the oracle's.
pub(super) fn table(args: &ReplayArgs, trace: &Trace, workload: &Workload, results: &[Summary]) -> String {
    let mut text = format!(
        "{} engines of {}, {} KV tokens each, {} seats; {} calls in {:.0} s ({:.2} a second, {} of the trace)\n",
        args.engines,
        args.profile.name,
        args.setup().engine.max_model_tokens(),
        args.max_num_seqs,
        workload.arrivals.iter().map(|a| trace.sessions[a.session as usize].calls.len()).sum::<usize>(),
        workload.duration_seconds,
        workload.rate,
        if workload.copies == 1 { "one copy".to_owned() } else { format!("{} copies", workload.copies) },
    );
    if args.routers > 1 {
        let _ = writeln!(
            text,
            "{} routers hear of each other's {} {} ms later",
            args.routers,
            if args.gossip_counts_only { "counts alone" } else { "counts and prompts" },
            args.gossip_ms
        );
    }
    let _ = writeln!(
        text,
        "\n{:<17} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>9} {:>10} {:>8}",
        "policy", "TTFT s", "p50", "p90", "p99", "e2e s", "hit %", "max/mean", "makespan s", "refused"
    );
    for s in results {
        let _ = writeln!(
            text,
            "{:<17} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>6.1} {:>9.2} {:>10.1} {:>8}",
            s.policy,
            s.ttft_mean_s,
            s.ttft_p50_s,
            s.ttft_p90_s,
            s.ttft_p99_s,
            s.e2e_mean_s,
            s.hit_ratio * 100.0,
            s.imbalance,
            s.makespan_s,
            s.refused
        );
    }
    if let Some(late) = results.iter().find_map(|s| s.late_p99_s) {
        let _ = writeln!(
            text,
            "\n{} ran at {} × real time; 99 % of its requests were sent at most {late:.3} s late, in the trace's time",
            http::NAME,
            args.time_scale
        );
    }
    if let Some(oracle) = results.iter().find(|s| s.is_oracle).filter(|_| results.len() > 1) {
        text += "\nrelative to the oracle, which uses knowledge no router has\n";
        for s in results.iter().filter(|s| !s.is_oracle) {
            let ratio = |at: usize| METRICS[at].1(s) / METRICS[at].1(oracle);
            let _ = writeln!(
                text,
                "{:<17} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>6.3} {:>9.3} {:>10.3}",
                s.policy,
                ratio(0),
                ratio(1),
                ratio(2),
                ratio(3),
                ratio(4),
                ratio(5),
                ratio(6),
                ratio(7)
            );
        }
    }
    text
}
