//! The burst the product was made for: eight new sessions on two equal engines.

use crate::cluster::{Cluster, Session};
use router_policy::{Fallback, Nanos, PolicyConfig, PolicyName};

const SECOND: u64 = 1_000_000_000;

/// When the eight sessions begin.
pub(crate) const START: Nanos = Nanos(20 * SECOND);

/// Twelve short requests on A, two longer ones on B, which alone then knows the system prompt; all have ended when eight
/// sessions begin, the last of the list.
pub(crate) fn sessions(seed: u64) -> Vec<Session> {
    let system = "s".repeat(8192);
    let turn = |own: String, start, turns, answer_tokens, forced| Session {
        start: Nanos(start),
        opening: vec![system.clone(), own],
        turn_text: "next ".repeat(60),
        turns,
        answer_tokens,
        gap: Nanos(SECOND / 5),
        forced,
    };
    let mut all: Vec<Session> = (0..12)
        .map(|i| Session {
            opening: vec![format!("short {i} ").repeat(10)],
            ..turn(String::new(), i * SECOND, 1, 4, Some(0))
        })
        .collect();
    all.extend((0..2).map(|i| turn(format!("long {i} "), 0, 1, 400, Some(1))));
    all.extend((0..8).map(|i| turn(format!("seed {seed} session {i} ").repeat(110), START.0, 3, 100, None)));
    all
}

/// Where each session went, turn by turn, and when all was over.
fn run(config: PolicyConfig, seed: u64) -> (Vec<Vec<usize>>, Nanos) {
    let mut cluster = Cluster::new(2, 4, false, config, seed);
    let run = cluster.run(&sessions(seed));
    let mut went = vec![Vec::new(); 8];
    for p in run.placed.iter().filter(|p| p.session >= 14) {
        went[p.session - 14].push(p.backend);
    }
    (went, run.makespan)
}

fn split(went: &[Vec<usize>]) -> [usize; 2] {
    let on_b = went.iter().filter(|turns| turns[0] == 1).count();
    [8 - on_b, on_b]
}

fn threshold(fallback: Fallback) -> PolicyConfig {
    let policy = PolicyName::PrefixThreshold;
    PolicyConfig { policy, prefix_min_match: 9216, fallback, ..PolicyConfig::default() }
}

#[test]
fn the_rate_puts_all_eight_on_one_engine_and_keeps_them_there() {
    for seed in 0..10 {
        let (went, _) = run(threshold(Fallback::LowestQps), seed);
        assert_eq!(split(&went), [0, 8], "seed {seed}");
        assert!(went.iter().flatten().all(|&b| b == 1), "every later turn follows: {went:?}");
    }
}

#[test]
fn live_load_splits_the_burst_and_ends_sooner() {
    for seed in 0..20 {
        let (_, latched) = run(threshold(Fallback::LowestQps), seed);
        for config in [threshold(Fallback::LeastInFlight), PolicyConfig::default()] {
            let policy = config.policy;
            let (went, makespan) = run(config, seed);
            assert_eq!(split(&went), [4, 4], "{policy:?} seed {seed}");
            assert!(makespan < latched, "{policy:?} seed {seed}: {makespan:?} against {latched:?}");
        }
    }
}
