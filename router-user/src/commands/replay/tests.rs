//! Whole replays of small synthetic traces.

use clap::Parser;

use super::trace::{Call, Session};
use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    replay: ReplayArgs,
}

fn args(flags: &str) -> ReplayArgs {
    let words = ["replay", "--trace", "unread"].into_iter().chain(flags.split_whitespace());
    Cli::try_parse_from(words).unwrap().replay
}

/// Clients with a long conversation each, whose turns come in turn: 40 of 5 turns, growing by 1,024 tokens.
fn conversations() -> Trace {
    let turn = |client: u64, turn: u64| {
        let ids: Vec<u64> = (0..8 + 2 * turn).map(|block| 1000 * (client + 1) + block).collect();
        let call = Call {
            prompt_tokens: 512 * ids.len() as u32,
            ids: ids.into(),
            unit_tokens: 512,
            output_tokens: 20 + 10 * (client % 7) as u32,
            gap_seconds: 0.0,
        };
        let start = turn as f64 * 20.0 + client as f64 * 0.491;
        Session { start_seconds: Some(start), calls: vec![call] }
    };
    Trace::new((0..5).flat_map(|t| (0..40).map(move |client| turn(client, t))).collect())
}

/// Agent sessions that go on when they are answered.
fn agents() -> Trace {
    let session = |s: u64| {
        let call = |turn: u64| {
            let units = 64 + 16 * turn;
            Call {
                ids: (0..units).map(|unit| if unit < 32 { unit } else { 1000 * (s + 1) + unit }).collect(),
                unit_tokens: 16,
                prompt_tokens: 16 * units as u32,
                output_tokens: 30,
                gap_seconds: 0.5,
            }
        };
        Session { start_seconds: Some(0.7 * s as f64), calls: (0..6).map(call).collect() }
    };
    Trace::new((0..20).map(session).collect())
}

fn results(flags: &str, trace: &Trace) -> Vec<Summary> {
    let args = args(flags);
    args.check().unwrap();
    let bars = MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::hidden());
    let workload = workload(&args, trace, &bars).unwrap();
    compare(&args, trace, &workload, &bars).unwrap().into_iter().map(|r| r.summary).collect()
}

#[test]
fn the_same_flags_give_the_same_bytes() {
    let flags = "--engines 3 --load 0.8 --seed 5 --routers 2 --gossip-ms 5 --non-streaming-share 0.3 \
                 --restart-every 10s";
    let text = || report::json(&results(flags, &agents())).unwrap();
    assert_eq!(text(), text());
    let other = results("--engines 3 --seed 6 --policy random", &agents());
    assert_ne!(other, results("--engines 3 --seed 5 --policy random", &agents()), "the seed matters");
}

#[test]
fn the_oracle_finds_prefixes_and_beats_round_robin() {
    let found = results("--engines 3 --policy oracle,round-robin,prefix-cost", &conversations());
    let [oracle, round_robin, prefix_cost] = found.as_slice() else { panic!("{found:?}") };
    assert!(oracle.hit_ratio > 1.2 * round_robin.hit_ratio, "{found:#?}");
    assert!(oracle.ttft_mean_s < 0.8 * round_robin.ttft_mean_s, "{found:#?}");
    assert!(prefix_cost.ttft_mean_s < round_robin.ttft_mean_s, "{found:#?}");
    assert!(oracle.is_oracle && !round_robin.is_oracle);
}

#[test]
fn every_call_is_answered_whatever_is_simulated() {
    for flags in ["", "--routers 3", "--non-streaming-share 1", "--restart-every 2s", "--max-num-seqs 1"] {
        for trace in [conversations(), agents()] {
            let args = args(&format!("--engines 2 {flags}"));
            let bars = MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::hidden());
            let workload = workload(&args, &trace, &bars).unwrap();
            let sent: usize =
                workload.arrivals.iter().map(|a| trace.sessions[a.session as usize].calls.len()).sum();
            for result in compare(&args, &trace, &workload, &bars).unwrap() {
                assert_eq!(result.run.records.len(), sent, "{flags} {}", result.summary.policy);
                assert!(
                    result.run.records.iter().all(|r| r.sent < r.first_token && r.first_token <= r.ended)
                );
            }
        }
    }
}

#[test]
fn a_session_never_sends_before_it_was_answered() {
    let trace = agents();
    let args = args("--engines 2 --policy prefix-cost");
    let bars = MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::hidden());
    let workload = workload(&args, &trace, &bars).unwrap();
    let result = &compare(&args, &trace, &workload, &bars).unwrap()[0];
    let ended =
        |tokens| result.run.records.iter().filter(move |r| r.prompt_tokens == tokens).map(|r| r.ended);
    let first_ends: Vec<_> = ended(1024).collect();
    let first_of_the_second =
        result.run.records.iter().filter(|r| r.prompt_tokens == 1280).map(|r| r.sent).min().unwrap();
    assert!(first_ends.iter().min().unwrap() < &first_of_the_second);
    assert!(result.summary.hit_ratio > 0.5, "later turns find the earlier ones: {:?}", result.summary);
}

#[test]
fn a_prompt_too_long_is_refused_and_counted() {
    let found = results("--engines 1 --kv-tokens 6000 --policy round-robin", &conversations());
    assert_eq!(found[0].refused, 40 * 3, "three of five turns are above 6,000 tokens");
    assert!(found[0].requests > 0);
}

#[test]
fn a_cache_lost_now_and_then_costs_hits() {
    let hits =
        |flags: &str| results(&format!("--engines 2 --policy oracle {flags}"), &conversations())[0].hit_ratio;
    assert!(hits("--restart-every 5s") < 0.7 * hits(""));
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    for flags in [
        "--policy oracle --assert prefix-cost/oracle<=1",
        "--policy oracle,oracle",
        "--max-num-seqs 0",
        "--max-num-seqs 9000",
    ] {
        assert!(args(flags).check().is_err(), "{flags}");
    }
    for flags in [
        "--assert nonsense",
        "--policy fastest",
        "--load 0",
        "--engines 0",
        "--engines 257",
        "--routers 0",
        "--non-streaming-share 1.1",
        "--scrape-interval 0",
        "--profile h200",
    ] {
        let words = ["replay", "--trace", "unread"].into_iter().chain(flags.split_whitespace());
        assert!(Cli::try_parse_from(words).is_err(), "{flags}");
    }
}
