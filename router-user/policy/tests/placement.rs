//! The façade's rules, each as its own test.

mod common;

use common::{ask, chat, ids, placement, ready_pair};
use router_policy::{
    BackendSpec, Decision, Fallback, Models, Nanos, Outcome, OwnCounts, PickError, Placement, PolicyConfig,
    PolicyName, Reason, Report, RequestShape, Signal, Task, Tasks, Usage,
};

fn threshold(min_match: u64, fallback: Fallback) -> PolicyConfig {
    let policy = PolicyName::PrefixThreshold;
    PolicyConfig { policy, prefix_min_match: min_match, fallback, ..PolicyConfig::default() }
}

fn split(decisions: &[Decision]) -> [usize; 2] {
    let mut hits = [0, 0];
    for d in decisions {
        hits[d.ticket.backend().index()] += 1;
    }
    hits
}

fn end(p: &mut Placement, now: Nanos, d: Decision) {
    p.on_finished(now, d.ticket, Outcome::Completed, &Usage::default());
}

#[test]
fn identical_prompts_below_the_threshold_spread_when_sent_together() {
    for seed in 0..50 {
        let mut p = ready_pair(threshold(9216, Fallback::LeastInFlight), seed);
        let prompt = chat(&["s".repeat(4000)]);
        let burst: Vec<Decision> = (0..8).map(|_| ask(&mut p, Nanos(1), &prompt)).collect();
        assert_eq!(split(&burst), [4, 4], "seed {seed}");
    }
}

#[test]
fn distinct_conversations_with_a_long_common_prefix_below_the_threshold_spread() {
    let mut p = ready_pair(threshold(100_000, Fallback::LeastInFlight), 3);
    let common = "c".repeat(40_000);
    let burst: Vec<Decision> = (0..8)
        .map(|i| ask(&mut p, Nanos(1), &chat(&[common.clone(), format!("own {i} ").repeat(300)])))
        .collect();
    assert_eq!(split(&burst), [4, 4]);
    assert!(burst.iter().all(|d| d.reason == Reason::BelowThresholdLeastInFlight));
    assert!(burst[7].matched_tokens >= 40_000 / 4 - 64, "the prefix is in the index all the same");
}

#[test]
fn a_conversation_beyond_the_threshold_stays_while_its_backend_is_no_worse() {
    for seed in 0..20 {
        let mut p = ready_pair(threshold(100_000, Fallback::LeastInFlight), seed);
        let mut turns = vec!["t".repeat(110_000)];
        let first = ask(&mut p, Nanos(1), &chat(&turns));
        let home = first.ticket.backend();
        end(&mut p, Nanos(2), first);
        for turn in 0..10 {
            turns.push(format!("turn {turn} ").repeat(50));
            let d = ask(&mut p, Nanos(3), &chat(&turns));
            assert_eq!(
                (d.ticket.backend(), d.reason),
                (home, Reason::PrefixMatch),
                "seed {seed} turn {turn}"
            );
            end(&mut p, Nanos(4), d);
        }
    }
}

#[test]
fn a_cold_index_seeds_itself_below_the_threshold() {
    let mut p = ready_pair(threshold(4096, Fallback::LowestQps), 1);
    let mut turns = vec!["x".repeat(3000)];
    let first = ask(&mut p, Nanos(1), &chat(&turns));
    assert_eq!(first.reason, Reason::BelowThresholdLowestQps);
    let home = first.ticket.backend();
    end(&mut p, Nanos(2), first);
    turns.push("y".repeat(3000));
    let second = p.pick_forced(Nanos(3), &chat(&turns), home).unwrap();
    end(&mut p, Nanos(4), second);
    // The rate now prefers the other backend, which never had a request.
    turns.push("z".repeat(100));
    let third = ask(&mut p, Nanos(5), &chat(&turns));
    assert_eq!((third.ticket.backend(), third.reason), (home, Reason::PrefixMatch));
}

#[test]
fn lowest_qps_picks_the_busiest_and_that_is_why_it_is_not_the_default() {
    let mut p = ready_pair(threshold(1 << 20, Fallback::LowestQps), 1);
    let [a, b] = ids();
    for i in 0..12 {
        let short = p.pick_forced(Nanos(i), &chat(&[format!("short {i}")]), a).unwrap();
        end(&mut p, Nanos(i), short);
    }
    let _long: Vec<Decision> =
        (0..2).map(|i| p.pick_forced(Nanos(20), &chat(&[format!("long {i}")]), b).unwrap()).collect();
    let burst: Vec<Decision> =
        (0..8).map(|i| ask(&mut p, Nanos(30), &chat(&[format!("session {i} ").repeat(200)]))).collect();
    assert_eq!(split(&burst), [0, 8]);
    assert_eq!(p.snapshot(Nanos(31), b).unwrap().own.requests, 10);
}

#[test]
fn no_backend_inserts_nothing() {
    let mut p = placement(PolicyConfig::default(), 1);
    let prompt = chat(&["p".repeat(9000)]);
    assert_eq!(p.pick(Nanos(1), &prompt, &[]).unwrap_err(), PickError::NoBackend);
    assert!(p.index().is_empty());
    let mut p = ready_pair(PolicyConfig::default(), 1);
    for id in ids() {
        p.set_ready(id, false);
    }
    assert_eq!(p.pick(Nanos(1), &prompt, &[]).unwrap_err(), PickError::NoneReady);
    assert!(p.index().is_empty(), "none ready inserts nothing either");
}

#[test]
fn errors_name_the_nearest_miss() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let [a, b] = ids();
    let mut prompt = chat(&["p".repeat(9000)]);
    assert_eq!(p.pick(Nanos(1), &prompt, &[a, b]).unwrap_err(), PickError::AllTried);
    for id in ids() {
        p.set_models(id, Models::Listed(vec!["m".into()], Nanos(0)));
    }
    prompt.model = Some("other".into());
    assert_eq!(p.pick(Nanos(1), &prompt, &[]).unwrap_err(), PickError::UnknownModel);
    p.set_models(b, Models::Unknown);
    assert_eq!(ask(&mut p, Nanos(1), &prompt).ticket.backend(), b, "an unknown list matches any model");
}

#[test]
fn a_backend_gets_only_the_work_it_does() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let [a, b] = ids();
    let of = |tasks: &[Task]| BackendSpec {
        model: Some("m".into()),
        tasks: Tasks::of(tasks),
        ..BackendSpec::default()
    };
    p.set_backend(a, of(&[Task::Generate]));
    p.set_backend(b, of(&[Task::Embed, Task::Score]));
    let asking = |task| RequestShape { task, model: Some("m".into()), ..chat(&["p".repeat(9000)]) };
    for (task, backend) in [(Task::Generate, a), (Task::Embed, b), (Task::Score, b)] {
        for _ in 0..4 {
            assert_eq!(ask(&mut p, Nanos(1), &asking(task)).ticket.backend(), backend, "{task:?}");
        }
    }
    let error = p.pick(Nanos(1), &asking(Task::Transcribe), &[]).unwrap_err();
    assert_eq!(error, PickError::OtherTask, "the model is there");
    let other = RequestShape { model: Some("other".into()), ..asking(Task::Transcribe) };
    assert_eq!(p.pick(Nanos(1), &other, &[]).unwrap_err(), PickError::UnknownModel);
    assert!(p.pick(Nanos(1), &asking(Task::Any), &[]).is_ok(), "what the path does not tell is done by all");
}

#[test]
fn stale_equal_gauges_never_dogpile() {
    for policy in [PolicyName::LeastInFlight, PolicyName::PrefixThreshold] {
        for seed in 0..200 {
            let own_counts = OwnCounts::Unknown;
            let mut p = ready_pair(PolicyConfig { policy, own_counts, ..PolicyConfig::default() }, seed);
            for id in ids() {
                let at = Nanos(1);
                let report = Report {
                    running: Signal::known(0, at),
                    waiting: Signal::known(0, at),
                    ..Report::default()
                };
                p.report(at, id, report);
            }
            let burst: Vec<Decision> = (0..8)
                .map(|i| ask(&mut p, Nanos(9_000_000_000), &chat(&[format!("session {i} ").repeat(99)])))
                .collect();
            let [a, b] = split(&burst);
            assert!(a.abs_diff(b) <= 2, "{policy:?} seed {seed}: {a}+{b}");
        }
    }
}

#[test]
fn frozen_unequal_gauges_do_not_get_the_whole_burst() {
    let mut p = ready_pair(PolicyConfig { policy: PolicyName::LeastInFlight, ..PolicyConfig::default() }, 5);
    let mut burst = Vec::new();
    for step in 0..16_u64 {
        let now = Nanos(1_000_000_000 + step * 60_000_000);
        for (id, running) in ids().into_iter().zip([0, 1]) {
            p.report_begins(now, id);
            let report = Report {
                running: Signal::known(running, now),
                waiting: Signal::known(0, now),
                ..Report::default()
            };
            p.report(now, id, report);
        }
        burst.push(ask(&mut p, now, &chat(&[format!("session {step} ").repeat(99)])));
    }
    let [a, b] = split(&burst);
    assert!(a <= 10 && b >= 6, "{a}+{b}");
}

#[test]
fn live_counts_split_a_burst_exactly() {
    for policy in [PolicyName::LeastInFlight, PolicyName::PrefixCost, PolicyName::PrefixThreshold] {
        for seed in 0..100 {
            let mut p = ready_pair(PolicyConfig { policy, ..PolicyConfig::default() }, seed);
            let burst: Vec<Decision> =
                (0..8).map(|i| ask(&mut p, Nanos(1), &chat(&[format!("session {i} ").repeat(99)]))).collect();
            assert_eq!(split(&burst), [4, 4], "{policy:?} seed {seed}");
        }
    }
}

#[test]
fn equals_are_chosen_by_chance_not_by_list_order() {
    for policy in [PolicyName::LeastInFlight, PolicyName::PrefixCost] {
        let mut p = ready_pair(PolicyConfig { policy, ..PolicyConfig::default() }, 11);
        let mut hits = [0, 0];
        for i in 0..300 {
            let d = ask(&mut p, Nanos(i), &chat(&[format!("unrelated {i} ").repeat(40)]));
            hits[d.ticket.backend().index()] += 1;
            end(&mut p, Nanos(i), d);
        }
        assert!(hits.iter().all(|h| (110..190).contains(h)), "{policy:?} {hits:?}");
    }
}

#[test]
fn a_report_that_lags_behind_our_own_count_makes_nothing_stale() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let [a, _] = ids();
    let d = p.pick_forced(Nanos(1), &chat(&["q".repeat(999)]), a).unwrap();
    p.report_begins(Nanos(1), a);
    // The request ends between the engine's snapshot and its arrival here.
    end(&mut p, Nanos(2), d);
    let at = Nanos(3);
    p.report(
        at,
        a,
        Report { running: Signal::known(1, at), waiting: Signal::known(0, at), ..Report::default() },
    );
    assert_eq!(p.snapshot(Nanos(4), a).unwrap().foreign.value(), Some(0.0));
}

#[test]
fn every_end_gives_the_count_back() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    for outcome in [Outcome::Completed, Outcome::ClientGone, Outcome::UpstreamFailed, Outcome::NeverSent] {
        for answered in [false, true] {
            let mut d = ask(&mut p, Nanos(1), &chat(&["p".repeat(5000)]));
            let id = d.ticket.backend();
            assert_eq!(p.snapshot(Nanos(1), id).unwrap().own.requests, 1);
            if answered {
                p.on_first_byte(Nanos(2), &mut d.ticket);
                p.on_first_byte(Nanos(3), &mut d.ticket);
            }
            p.on_finished(Nanos(4), d.ticket, outcome, &Usage::default());
            let own = p.snapshot(Nanos(4), id).unwrap().own;
            assert_eq!((own.requests, own.q_tokens, own.c_tokens), (0, 0, 0), "{outcome:?} {answered}");
        }
    }
}

#[test]
fn a_ticket_of_a_removed_backend_ends_without_effect() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let d = ask(&mut p, Nanos(1), &chat(&["p".repeat(5000)]));
    let id = d.ticket.backend();
    p.remove_backend(id);
    assert!(p.index().is_empty());
    p.set_backend(id, BackendSpec::default());
    end(&mut p, Nanos(2), d);
    assert_eq!(p.snapshot(Nanos(2), id).unwrap().own.requests, 0, "the new one at the row never had it");
}

#[test]
fn a_request_without_a_shape_goes_to_the_least_in_flight_and_is_counted() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let burst: Vec<Decision> = (0..8).map(|_| ask(&mut p, Nanos(1), &RequestShape::unshaped())).collect();
    assert_eq!(split(&burst), [4, 4]);
    assert!(burst.iter().all(|d| d.reason == Reason::Unshaped && d.prompt_tokens == 0));
}

#[test]
fn round_robin_takes_turns_even_when_some_were_tried() {
    let mut p = ready_pair(PolicyConfig { policy: PolicyName::RoundRobin, ..PolicyConfig::default() }, 1);
    let [a, b] = ids();
    let order: Vec<_> =
        (0..4).map(|_| ask(&mut p, Nanos(1), &RequestShape::unshaped()).ticket.backend()).collect();
    assert_eq!(order, [a, b, a, b]);
    let d = p.pick(Nanos(1), &RequestShape::unshaped(), &[a]).unwrap();
    assert_eq!(d.ticket.backend(), b);
    assert_eq!(ask(&mut p, Nanos(1), &RequestShape::unshaped()).ticket.backend(), a);
}

#[test]
fn the_index_is_bounded_by_each_backends_pool_and_by_the_whole() {
    let mut p = ready_pair(PolicyConfig { index_blocks_max: 100, ..PolicyConfig::default() }, 1);
    for i in 0..200 {
        let d = ask(&mut p, Nanos(i), &chat(&[format!("{i} ").repeat(2000)]));
        end(&mut p, Nanos(i), d);
    }
    assert!(p.index().len() <= 100, "{}", p.index().len());
    for id in ids() {
        assert!(p.snapshot(Nanos(999), id).unwrap().index_blocks <= 50);
    }
}

#[test]
fn an_affine_request_moves_exactly_when_waiting_costs_more_than_recomputing() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let [a, b] = ids();
    let session = chat(&["s".repeat(8192), "own".repeat(100)]);
    let warm = p.pick_forced(Nanos(1), &session, a).unwrap();
    end(&mut p, Nanos(2), warm);
    let d = ask(&mut p, Nanos(3), &session);
    assert_eq!((d.ticket.backend(), d.reason), (a, Reason::CostWithPrefix), "idle: it stays");
    end(&mut p, Nanos(4), d);
    // 20,000 tokens of unanswered prefill there cost more than these 2,100.
    let _busy = p.pick_forced(Nanos(5), &chat(&["z".repeat(80_000)]), a).unwrap();
    let d = ask(&mut p, Nanos(6), &session);
    assert_eq!((d.ticket.backend(), d.reason), (b, Reason::CostWithoutPrefix), "busy: it moves");
    assert!(d.cost.total() > 0.0);
}
