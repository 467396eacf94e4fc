//! What engines report beside what is counted here: it is charged, it fades, and without it the counts decide alone.

mod common;

use common::{ask, chat, end, ids, ready_pair};
use proptest::prelude::*;
use router_policy::{Nanos, Placement, PolicyConfig, PolicyName, Report, Signal, Why};

fn at(seconds: f64) -> Nanos {
    Nanos::from_secs_f64(seconds)
}

fn session(n: usize) -> router_policy::RequestShape {
    chat(&[format!("session {n} ").repeat(99)])
}

fn said(running: u32, waiting: u32, seconds: f64) -> Report {
    let known = |n| Signal::known(n, at(seconds));
    Report { running: known(running), waiting: known(waiting), ..Report::default() }
}

fn report(p: &mut Placement, seconds: f64, row: usize, report: Report) -> Report {
    p.report_begins(at(seconds), ids()[row]);
    p.report(at(seconds), ids()[row], report)
}

/// Where a burst of so many unrelated sessions goes.
fn burst(p: &mut Placement, seconds: f64, count: usize) -> [usize; 2] {
    let mut split = [0, 0];
    for n in 0..count {
        split[ask(p, at(seconds), &session(n)).ticket.backend().index()] += 1;
    }
    split
}

#[test]
fn with_all_reports_absent_the_policy_runs_on_live_counts_alone() {
    for policy in [PolicyName::PrefixCost, PolicyName::LeastInFlight, PolicyName::PrefixThreshold] {
        for seed in 0..20 {
            let config = || PolicyConfig { policy, ..PolicyConfig::default() };
            let mut never_told = ready_pair(config(), seed);
            let expected: Vec<_> =
                (0..16).map(|n| ask(&mut never_told, at(5.0), &session(n)).ticket.backend()).collect();
            assert_eq!(expected.iter().filter(|id| id.index() == 0).count(), 8, "{policy:?}");
            for why in Why::ALL {
                let mut p = ready_pair(config(), seed);
                let unknown = || Report {
                    running: Signal::Unknown(why),
                    waiting: Signal::Unknown(why),
                    ..Report::default()
                };
                let placed: Vec<_> = (0..16)
                    .map(|n| {
                        // Before, between and after.
                        report(&mut p, 4.0 + n as f64 * 0.01, n % 2, unknown());
                        ask(&mut p, at(5.0), &session(n)).ticket.backend()
                    })
                    .collect();
                assert_eq!(
                    placed, expected,
                    "{policy:?} {why:?}: a report that tells nothing changes nothing"
                );
                let foreign = p.snapshot(at(5.0), ids()[0]).unwrap().foreign;
                assert_eq!(foreign, Signal::Unknown(why), "unknown, with its reason");
            }
        }
    }
}

#[test]
fn half_a_report_is_none() {
    for half in [
        Report { waiting: Signal::Unknown(Why::Missing), ..said(0, 0, 5.0) },
        Report { running: Signal::Unknown(Why::Malformed), ..said(0, 0, 5.0) },
    ] {
        let mut p = ready_pair(PolicyConfig::default(), 3);
        report(&mut p, 5.0, 0, half);
        assert!(p.snapshot(at(5.0), ids()[0]).unwrap().foreign.why().is_some());
        assert_eq!(burst(&mut p, 5.0, 8), [4, 4]);
    }
}

/// M04, and what a renamed gauge must never do: attract what the others are too busy for.
#[test]
fn who_tells_nothing_is_taken_to_be_as_busy_as_the_others_and_not_idle() {
    for policy in [PolicyName::PrefixCost, PolicyName::LeastInFlight] {
        for seed in 0..20 {
            let mut p = ready_pair(PolicyConfig { policy, ..PolicyConfig::default() }, seed);
            let unknown = Signal::Unknown(Why::Missing);
            report(&mut p, 5.0, 0, Report { running: unknown, waiting: unknown, ..Report::default() });
            report(&mut p, 5.0, 1, said(4, 6, 5.0));
            let [a, b] = burst(&mut p, 5.0, 20);
            assert!(a.abs_diff(b) <= 2, "{policy:?}, seed {seed}: {a}+{b}");
            let known = p.snapshot(at(5.0), ids()[0]).unwrap().foreign;
            assert_eq!(known, Signal::Unknown(Why::Missing), "what is assumed is not shown as known");
        }
    }
}

/// policy.md: own count now + foreign share of the last report, fading over three intervals.
#[test]
fn what_others_have_there_is_charged_and_fades() {
    let config = || PolicyConfig { policy: PolicyName::LeastInFlight, ..PolicyConfig::default() };
    let foreign = |p: &Placement, seconds| p.snapshot(at(seconds), ids()[0]).unwrap().foreign.value();
    let mut p = ready_pair(config(), 1);
    report(&mut p, 5.0, 0, said(4, 2, 5.0));
    report(&mut p, 5.0, 1, said(0, 0, 5.0));
    for (seconds, expected) in [(5.0, 6.0), (6.5, 3.0), (8.0, 0.0), (99.0, 0.0)] {
        assert_eq!(foreign(&p, seconds), Some(expected), "{seconds}");
    }
    let [a, b] = burst(&mut p, 5.0, 6);
    assert!(a <= 1 && b >= 5, "{a}+{b}: within one request the stale count is no order");
    // Faded, the own counts are all there is: the other one catches up.
    let [c, d] = burst(&mut p, 9.0, 6);
    assert_eq!([a + c, b + d], [6, 6]);
}

#[test]
fn a_report_has_no_say_in_what_is_counted_here() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let held: Vec<_> = (0..4).map(|n| p.pick_forced(at(1.0), &session(n), ids()[0]).unwrap()).collect();
    report(&mut p, 2.0, 0, said(1, 0, 2.0));
    report(&mut p, 2.0, 1, said(1, 0, 2.0));
    let snapshot = p.snapshot(at(2.0), ids()[0]).unwrap();
    assert_eq!((snapshot.own.requests, snapshot.foreign.value()), (4, Some(0.0)));
    assert_eq!(burst(&mut p, 6.0, 4), [0, 4], "one that reports less than is counted does not look emptier");
    held.into_iter().for_each(|decision| end(&mut p, at(7.0), decision));
}

/// M06: a wedged engine that calls itself idle.
#[test]
fn m06_zeros_are_unknown_while_a_request_is_there_and_known_when_it_is_not() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let held = p.pick_forced(at(1.0), &session(0), ids()[0]).unwrap();
    let why = |p: &mut Placement, seconds| report(p, seconds, 0, said(0, 0, seconds)).running.why();
    assert_eq!(why(&mut p, 1.5), None, "it may not have arrived");
    assert_eq!(why(&mut p, 2.5), Some(Why::Contradicted));
    assert_eq!(p.snapshot(at(2.5), ids()[0]).unwrap().foreign, Signal::Unknown(Why::Contradicted));
    end(&mut p, at(3.0), held);
    assert_eq!(why(&mut p, 3.5), None, "nothing of ours is there any more");
    assert_eq!(p.snapshot(at(3.5), ids()[0]).unwrap().foreign.value(), Some(0.0));
}

/// R06 for ever: who says the same all the time is not believed while there is work.
#[test]
fn a_frozen_report_charges_nothing_after_a_while() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let frozen = |seconds| Report { fingerprint: Some(7), ..said(3, 0, seconds) };
    let foreign = |p: &Placement, seconds| p.snapshot(at(seconds), ids()[0]).unwrap().foreign;
    for second in 0..5 {
        report(&mut p, f64::from(second), 0, frozen(f64::from(second)));
        assert_eq!(foreign(&p, f64::from(second)).value(), Some(3.0), "{second}");
    }
    report(&mut p, 5.0, 0, frozen(5.0));
    assert_eq!(foreign(&p, 5.0), Signal::Unknown(Why::Frozen));
    report(&mut p, 6.0, 0, Report { fingerprint: Some(8), ..said(3, 0, 6.0) });
    assert_eq!(foreign(&p, 6.0).value(), Some(3.0));
}

fn signal() -> impl Strategy<Value = Signal<u32>> {
    let whys = prop::sample::select(Why::ALL.to_vec()).prop_map(Signal::Unknown);
    prop_oneof![whys, (0_u32..3).prop_map(|n| Signal::known(n, at(5.0)))]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing but both gauges, known, with nothing in them, is as good as an idle engine in what is charged; and what
    /// is unknown is as good as no report.
    #[test]
    fn only_known_zeros_are_zero(running in signal(), waiting in signal(), seed in 0_u64..9) {
        let mut p = ready_pair(PolicyConfig::default(), seed);
        report(&mut p, 5.0, 0, Report { running, waiting, ..Report::default() });
        let foreign = p.snapshot(at(5.0), ids()[0]).unwrap().foreign;
        match (running.value(), waiting.value()) {
            (Some(running), Some(waiting)) => prop_assert_eq!(foreign.value(), Some(f64::from(running + waiting))),
            _ => prop_assert!(foreign.why().is_some()),
        }
    }
}
