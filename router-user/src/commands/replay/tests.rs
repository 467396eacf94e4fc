//! Whole replays of small synthetic traces.

use clap::{Args, Parser};
use router_policy::PolicyName;

use super::trace::{Call, Session};
use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    replay: ReplayArgs,
}

fn args(flags: &str) -> ReplayArgs {
    let words = ["replay", "--trace", "unread"].into_iter().chain(flags.split_whitespace());
    Cli::try_parse_from(words).unwrap().replay
}

/// Clients with a long conversation each, whose turns come in turn: 40 of 5 turns, growing by 1,024 tokens. A block
/// trace: nobody recorded whose a call is.
fn conversations() -> Trace {
    conversations_every(0.491)
}

/// The same, with a call every `seconds`.
fn conversations_every(seconds: f64) -> Trace {
    let turn = |client: u64, turn: u64| {
        let ids: Vec<u64> = (0..8 + 2 * turn).map(|block| 1000 * (client + 1) + block).collect();
        let call = Call {
            prompt_tokens: 512 * ids.len() as u32,
            ids: ids.into(),
            unit_tokens: 512,
            output_tokens: 20 + 10 * (client % 7) as u32,
            gap_seconds: 0.0,
        };
        let start = (turn as f64 * 40.7 + client as f64) * seconds;
        Session { start_seconds: Some(start), calls: vec![call], is_one_client: false }
    };
    Trace::new((0..5).flat_map(|t| (0..40).map(move |client| turn(client, t))).collect())
}

/// Agent sessions that go on when they are answered.
fn agents() -> Trace {
    agents_every(0.7)
}

/// The same, with a session every `seconds`.
fn agents_every(seconds: f64) -> Trace {
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
        Session {
            start_seconds: Some(seconds * s as f64),
            calls: (0..6).map(call).collect(),
            is_one_client: true,
        }
    };
    Trace::new((0..20).map(session).collect())
}

fn compared(flags: &str, trace: &Trace) -> (Workload, Vec<Compared>) {
    let args = args(flags);
    args.check().unwrap();
    let bars = MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::hidden());
    let workload = workload(&args, trace, &bars).unwrap();
    let compared = compare(&args, trace, &workload, &bars).unwrap();
    (workload, compared)
}

fn results(flags: &str, trace: &Trace) -> Vec<Summary> {
    compared(flags, trace).1.into_iter().map(|r| r.summary).collect()
}

/// Every policy, and the oracle.
fn everybody() -> String {
    let names = PolicyName::ALL.map(PolicyName::as_str).join(",");
    format!("--policy {names},{ORACLE}")
}

#[test]
fn the_same_flags_give_the_same_bytes() {
    let flags =
        "--engines 3 --seed 5 --routers 2 --gossip-ms 5 --non-streaming-share 0.3 --restart-every 10s";
    for (trace, load) in [(agents(), "--load 0.8"), (conversations(), "")] {
        let flags = format!("{flags} {load} {}", everybody());
        let text = || report::json(&results(&flags, &trace)).unwrap();
        assert_eq!(text(), text());
    }
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
            let (workload, compared) = compared(&format!("--engines 2 {flags}"), &trace);
            let sent: usize =
                workload.arrivals.iter().map(|a| trace.sessions[a.session as usize].calls.len()).sum();
            for result in compared {
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
    let result = &compared("--engines 2 --policy prefix-cost", &agents()).1[0];
    let ended =
        |tokens| result.run.records.iter().filter(move |r| r.prompt_tokens == tokens).map(|r| r.ended);
    let first_ends: Vec<_> = ended(1024).collect();
    let first_of_the_second =
        result.run.records.iter().filter(|r| r.prompt_tokens == 1280).map(|r| r.sent).min().unwrap();
    assert!(first_ends.iter().min().unwrap() < &first_of_the_second);
    assert!(result.summary.hit_ratio > 0.5, "later turns find the earlier ones: {:?}", result.summary);
}

#[test]
fn every_policy_runs_and_is_summed_up() {
    for trace in [agents(), conversations()] {
        let found = results(&format!("--engines 3 {}", everybody()), &trace);
        assert_eq!(found.len(), PolicyName::ALL.len() + 1);
        for summary in found {
            assert!(summary.ttft_mean_s > 0.0 && summary.refused == 0, "{summary:?}");
        }
    }
}

/// The engine of each call, by client: those that two calls of a client differ in are more than one.
fn homes(runs: &[Compared], client: impl Fn(usize) -> usize) -> Vec<std::collections::BTreeSet<usize>> {
    let [run] = runs else { panic!("one policy") };
    let mut records = run.run.records.clone();
    records.sort_by_key(|r| r.sent);
    let mut homes = Vec::new();
    for (at, record) in records.iter().enumerate() {
        homes.resize_with(homes.len().max(client(at) + 1), std::collections::BTreeSet::new);
        homes[client(at)].insert(record.engine);
    }
    homes
}

#[test]
fn hash_policies_keep_a_session_on_one_engine_and_sessions_apart() {
    // So far apart that nothing is in flight when the next comes: nobody is passed over for being overloaded.
    let (sessions, blocks) = (agents_every(100.0), conversations_every(20.0));
    for policy in ["session", "consistent-hash"] {
        let flags = format!("--engines 4 --policy {policy}");
        let of_sessions = homes(&compared(&flags, &sessions).1, |at| at / 6);
        let of_blocks = homes(&compared(&flags, &blocks).1, |at| at % 40);
        for (homes, clients) in [(of_sessions, 20), (of_blocks, 40)] {
            assert_eq!(homes.len(), clients, "{policy}");
            assert!(homes.iter().all(|engines| engines.len() == 1), "{policy}: {homes:?}");
            let used: std::collections::BTreeSet<_> = homes.iter().flatten().collect();
            assert_eq!(used.len(), 4, "{policy}: {homes:?}");
        }
    }
}

#[test]
fn sessions_go_by_themselves_and_hashes_by_what_they_share() {
    // The first 8 blocks are the system prompt that all share.
    let homes = |policy: &str| {
        let flags = format!("--engines 4 --hash-blocks 8 --policy {policy}");
        let homes = homes(&compared(&flags, &agents_every(100.0)).1, |at| at / 6);
        homes.into_iter().flatten().collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!((homes("session"), homes("consistent-hash")), (4, 1));
}

#[test]
fn routers_that_tell_what_they_placed_find_nearly_what_one_router_finds() {
    let of = |flags: &str| {
        let found = results(&format!("--engines 4 --policy prefix-cost {flags}"), &conversations());
        (found[0].hit_ratio, found[0].ttft_mean_s)
    };
    let (one, told) = (of(""), of("--routers 3 --gossip-ms 10"));
    let counts_only = of("--routers 3 --gossip-ms 10 --gossip-counts-only");
    assert!(told.0 > 0.97 * one.0 && told.1 < 1.05 * one.1, "one {one:?}, told {told:?}");
    assert!(counts_only.0 < 0.8 * one.0 && counts_only.1 > 1.2 * one.1, "one {one:?}, not {counts_only:?}");
    let late = of("--routers 3 --gossip-ms 60000");
    assert!(late.0 < 0.8 * told.0, "a minute late is as good as never: {late:?}");
}

#[test]
fn explaining_takes_no_flag_of_a_replay() {
    let command = ReplayArgs::augment_args(clap::Command::new("replay"));
    let beside = ["decisions", "explain", "json", "help"];
    for arg in command.get_arguments().filter(|arg| !beside.contains(&arg.get_id().as_str())) {
        let flag = format!("--{}", arg.get_long().unwrap());
        let value = match arg.get_id().as_str() {
            "trace" | "plot" => "file",
            "kv_tokens" => "16",
            "profile" => "h100-8b",
            "policy" => "random",
            "fallback" => "lowest-qps",
            "claims" => "random<=1",
            "url" => "http://127.0.0.1:1",
            "scrape_interval" | "restart_every" => "1s",
            _ => "1",
        };
        let value = arg.get_action().takes_values().then_some(value);
        let words = ["replay", "--decisions", "file", &flag].into_iter().chain(value);
        let error = Cli::try_parse_from(words).unwrap_err();
        assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{flag}: {error}");
    }
    for words in
        [&["replay"][..], &["replay", "--explain", "1"], &["replay", "--decisions", "f", "--explain", ""]]
    {
        assert!(Cli::try_parse_from(words).is_err(), "{words:?}");
    }
}

#[test]
fn an_unknown_id_and_a_bad_file_end_with_64() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions");
    let code = |explain: &[&str]| {
        let words =
            ["replay", "--decisions", path.to_str().unwrap()].into_iter().chain(explain.iter().copied());
        run(&Cli::try_parse_from(words).unwrap().replay).unwrap()
    };
    assert_eq!(code(&[]), ExitCode::from(EXIT_USAGE), "no such file");
    std::fs::write(&path, "{}\n").unwrap();
    assert_eq!(code(&[]), ExitCode::from(EXIT_USAGE), "no decision");
    assert_eq!(code(&["--explain", "1"]), ExitCode::from(EXIT_USAGE));
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
        "--hash-blocks 0",
        "--non-streaming-share 1.1",
        "--scrape-interval 0",
        "--profile h200",
    ] {
        let words = ["replay", "--trace", "unread"].into_iter().chain(flags.split_whitespace());
        assert!(Cli::try_parse_from(words).is_err(), "{flags}");
    }
}
