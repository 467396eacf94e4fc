//! Affinity must not cost time: eight sessions that begin at once on two equal engines end no later than if they were
//! placed by load alone, whatever holds the engine that is warm.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use router_policy::{Nanos, PolicyConfig, PolicyName};

use crate::burst;
use crate::cluster::{Cluster, Placed, Session};

const SEATS: u32 = 4;
const SECOND: u64 = 1_000_000_000;
const SEEDS: u64 = 50;

/// When the burst begins, after the warm-up.
const BURST: u64 = 3 * SECOND;

/// A shared system prompt of 4,000 tokens.
fn system_prompt() -> String {
    "The system prompt that all of them share. ".repeat(400)[..16_000].to_owned()
}

/// A warm engine with `long` long streams, then eight sessions of uneven sizes within 0.4 s, eight turns each.
fn uneven(long: u64, seed: u64) -> Vec<Session> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let session = |own: String, start, turns, answer_tokens, forced| Session {
        start: Nanos(start),
        opening: vec![system_prompt(), own],
        turn_text: "and what follows from that? ".repeat(20),
        turns,
        answer_tokens,
        gap: Nanos(SECOND),
        forced,
    };
    let mut all = vec![session("warm ".repeat(20), 0, 1, 1, Some(0))];
    all.extend((0..long).map(|i| session(format!("long {i} ").repeat(50), SECOND, 1, 2500, Some(0))));
    all.extend((0..8).map(|i| {
        let own = format!("seed {seed} session {i} ").repeat(rng.random_range(40..200));
        let start = BURST + rng.random_range(0..SECOND * 4 / 10);
        Session {
            gap: Nanos(rng.random_range(SECOND..3 * SECOND)),
            ..session(own, start, 8, rng.random_range(100..250), None)
        }
    }));
    all
}

/// The burst of [`burst`], with `long` long streams on the engine that is warm while it comes.
fn burst_of_the_demo(long: u64, seed: u64) -> Vec<Session> {
    let mut all = burst::sessions(seed);
    let eight = all.split_off(all.len() - 8);
    let warm = all.last().unwrap().clone();
    all.extend((0..long).map(|i| Session {
        start: Nanos(burst::START.0 - SECOND),
        opening: vec![warm.opening[0].clone(), format!("stream {i} ").repeat(20)],
        answer_tokens: 2500,
        ..warm.clone()
    }));
    all.extend(eight);
    all
}

/// What became of the last eight sessions.
struct Burst {
    placed: Vec<Placed>,
    /// Seconds from their first beginning to their last end.
    makespan: f64,
}

fn run(policy: PolicyName, told: bool, sessions: &[Session], seed: u64) -> Burst {
    let first = sessions.len() - 8;
    let began = sessions[first..].iter().map(|s| s.start).min().unwrap();
    let mut cluster = Cluster::new(2, SEATS, told, PolicyConfig { policy, ..PolicyConfig::default() }, seed);
    let run = cluster.run(sessions);
    let placed: Vec<Placed> = run.placed.into_iter().filter(|p| p.session >= first).collect();
    for engine in [0, 1] {
        let is_used = placed.iter().any(|p| p.backend == engine);
        assert!(is_used, "{policy:?} seed {seed}: engine {engine} was idle all the time");
    }
    let ended = run.ended.iter().filter(|(session, _)| *session >= first);
    let makespan = ended.map(|(_, at)| at.seconds_since(began)).fold(0.0, f64::max);
    Burst { placed, makespan }
}

/// Mean over the seeds of the default policy's makespan by least-in-flight's; the sessions of a seed are the same.
fn check(what: &str, told: bool, sessions: impl Fn(u64) -> Vec<Session>) {
    let mean = |policy| {
        let makespans = (0..SEEDS).map(|seed| run(policy, told, &sessions(seed), seed).makespan);
        makespans.sum::<f64>() / SEEDS as f64
    };
    let ratio = mean(PolicyName::PrefixCost) / mean(PolicyName::LeastInFlight);
    assert!(ratio <= 1.03, "{what}, seats told: {told}: {ratio:.3} × least-in-flight's");
}

#[test]
fn a_burst_ends_no_later_than_by_load_alone() {
    for told in [true, false] {
        check("the demo's burst", told, |seed| burst_of_the_demo(0, seed));
        check("uneven sessions", told, |seed| uneven(0, seed));
    }
}

#[test]
fn a_burst_ends_no_later_than_by_load_alone_beside_long_streams_on_the_warm_engine() {
    for told in [true, false] {
        check("the demo's burst", told, |seed| burst_of_the_demo(2, seed));
        check("uneven sessions", told, |seed| uneven(2, seed));
    }
}

/// With seats told nobody queues while another engine has a free seat; else one request an engine may, to learn of it.
fn check_queues(what: &str, sessions: impl Fn(u64, u64) -> Vec<Session>) {
    for (long, told) in [(0, true), (0, false), (2, true), (2, false)] {
        for seed in 0..SEEDS {
            let burst = run(PolicyName::PrefixCost, told, &sessions(long, seed), seed);
            let mut queued = [0, 0];
            let beside_a_free_seat = |p: &&Placed| p.is_queued_beside_a_free_seat(SEATS);
            burst.placed.iter().filter(beside_a_free_seat).for_each(|p| queued[p.backend] += 1);
            let bound = u32::from(!told);
            assert!(
                queued.iter().all(|&n| n <= bound),
                "{what}, seed {seed}, {long} long, told: {told}: {queued:?} beside a free seat"
            );
        }
    }
}

#[test]
fn nobody_of_a_burst_queues_beside_a_free_seat_but_to_learn_of_it() {
    check_queues("the demo's burst", burst_of_the_demo);
    check_queues("uneven sessions", uneven);
}
