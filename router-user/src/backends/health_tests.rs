//! The state machine by table and by property.

use std::time::Duration;

use proptest::prelude::*;
use router_policy::{Nanos, Trust};

use super::{Cause, Health, Probe, Rules};

fn at(seconds: f64) -> Nanos {
    Nanos::from_secs_f64(seconds)
}

fn health() -> Health {
    Health::new(Rules::default())
}

fn word(health: &mut Health, seconds: f64) -> &'static str {
    health.tick(at(seconds));
    health.trust(at(seconds)).as_str()
}

#[test]
fn failures_in_a_row_suspect_then_eject_then_a_trial_brings_it_back_slowly() {
    let mut h = health();
    let words: Vec<_> = (0..6)
        .map(|n| {
            h.failed(at(1.0 + f64::from(n) / 100.0), Cause::Errors);
            word(&mut h, 1.1)
        })
        .collect();
    assert_eq!(words, ["ready", "ready", "suspect", "suspect", "ejected", "ejected"]);
    assert_eq!(h.cause(), Some(Cause::Errors));
    assert_eq!(word(&mut h, 6.0), "ejected");
    assert_eq!(word(&mut h, 6.1), "half_open");
    assert_eq!(h.trust(at(6.1)), Trust::Trial(1));
    assert_eq!(word(&mut h, 600.0), "half_open", "nothing happened that says otherwise");
    h.answered(at(600.0), 1);
    assert_eq!(word(&mut h, 602.5), "slow_start");
    assert_eq!(h.trust(at(602.5)), Trust::Rising(0.25));
    assert_eq!(word(&mut h, 610.0), "ready");
}

#[test]
fn one_client_that_waited_in_vain_makes_suspect() {
    let mut h = health();
    h.failed(at(1.0), Cause::Unanswered);
    assert_eq!((word(&mut h, 1.0), h.cause()), ("suspect", Some(Cause::Unanswered)));
    assert_eq!(word(&mut h, 6.0), "half_open");
    h.answered(at(6.5), 1);
    assert_eq!(word(&mut h, 6.5), "ready", "it was never ejected");
}

#[test]
fn an_answer_ends_a_row_and_a_suspicion() {
    let mut h = health();
    for n in 0..40 {
        h.failed(at(f64::from(n)), Cause::Errors);
        h.failed(at(f64::from(n)), Cause::Errors);
        h.answered(at(f64::from(n)), 3);
    }
    assert_eq!(word(&mut h, 40.0), "ready", "two of five fail, never three in a row");
    (0..3).for_each(|_| h.failed(at(41.0), Cause::Cut));
    assert_eq!(word(&mut h, 41.0), "suspect");
    h.answered(at(41.1), 1);
    assert_eq!(word(&mut h, 41.1), "ready");
}

#[test]
fn a_share_of_failures_counts_from_a_least_number_on_and_within_the_window_only() {
    for (answered, failed, spread_seconds, ejected) in
        [(10, 10, 1.0, true), (12, 9, 1.0, false), (9, 9, 1.0, false), (10, 10, 300.0, false)]
    {
        let mut h = health();
        let each = spread_seconds / 20.0;
        for n in 0..answered.max(failed) {
            let now = at(100.0 + f64::from(n) * 2.0 * each);
            if n < answered {
                h.answered(now, 1);
            }
            if n < failed {
                h.failed(now, Cause::Cut);
            }
        }
        let is_ejected = matches!(h.trust(at(1.0)), Trust::Ejected);
        assert_eq!(is_ejected, ejected, "{failed} of {} in {spread_seconds} s", answered + failed);
    }
}

#[test]
fn ejections_double_to_their_bound_and_begin_anew_after_a_calm_time() {
    let mut h = health();
    let mut now = 1.0;
    let eject = |h: &mut Health, now: &mut f64| {
        (0..5).for_each(|_| h.failed(at(*now), Cause::Errors));
        let begun = *now;
        while h.trust(at(*now)) == Trust::Ejected {
            *now += 0.5;
            h.tick(at(*now));
        }
        *now - begun
    };
    let pauses: Vec<f64> = (0..4).map(|_| eject(&mut h, &mut now)).collect();
    assert_eq!(pauses, [5.0, 10.0, 15.0, 15.0], "a trial that fails is the next ejection");
    h.answered(at(now), 1);
    now += 11.0;
    assert_eq!(word(&mut h, now), "ready");
    assert_eq!(eject(&mut h, &mut now), 15.0, "it was back for a short time only");
    h.answered(at(now), 1);
    now += 61.0;
    h.tick(at(now));
    assert_eq!(eject(&mut h, &mut now), 5.0);
}

#[test]
fn a_failed_trial_ejects_at_once_and_so_do_two_failures_of_a_slow_start() {
    let ejected_once = || {
        let mut h = health();
        (0..5).for_each(|_| h.failed(at(1.0), Cause::Errors));
        h.tick(at(6.0));
        h
    };
    let mut h = ejected_once();
    h.failed(at(6.1), Cause::Errors);
    assert_eq!(word(&mut h, 6.1), "ejected");
    let mut h = ejected_once();
    h.answered(at(6.1), 1);
    h.failed(at(6.2), Cause::Cut);
    assert_eq!(word(&mut h, 6.2), "slow_start");
    h.failed(at(6.3), Cause::Cut);
    assert_eq!(word(&mut h, 6.3), "ejected");
}

#[test]
fn silence_is_suspected_at_four_times_the_expected_time_and_five_seconds_and_a_byte_disproves_it() {
    let mut h = health();
    h.silent(at(100.0), 12.9, 2.0);
    assert_eq!(word(&mut h, 100.0), "ready");
    h.silent(at(100.2), 13.1, 2.0);
    assert_eq!((word(&mut h, 100.2), h.cause()), ("suspect", Some(Cause::Hung)));
    h.silent(at(113.0), 26.1, 2.0);
    assert_eq!(word(&mut h, 113.0), "ejected");
    h.alive(at(114.0));
    assert_eq!(word(&mut h, 114.0), "slow_start", "whatever was decided");
    let mut h = health();
    h.silent(at(100.0), 13.1, 2.0);
    h.alive(at(101.0));
    assert_eq!(word(&mut h, 101.0), "ready");
}

#[test]
fn bytes_prove_nothing_against_failed_requests_for_errors_are_bytes_too() {
    let mut h = health();
    (0..5).for_each(|_| h.failed(at(1.0), Cause::Errors));
    h.alive(at(2.0));
    assert_eq!(word(&mut h, 2.0), "ejected");
    h.tick(at(6.0));
    h.alive(at(6.5));
    assert_eq!(word(&mut h, 6.5), "half_open");
}

#[test]
fn a_hung_engine_is_tried_again_and_only_what_was_sent_since_is_waited_for() {
    let mut h = health();
    h.silent(at(50.0), 30.0, 0.0);
    assert_eq!(word(&mut h, 50.0), "ejected");
    assert_eq!(h.counts_from(), Nanos(0));
    assert_eq!(word(&mut h, 55.0), "half_open");
    assert_eq!(h.counts_from(), at(55.0));
    h.silent(at(61.0), 5.5, 0.0);
    assert_eq!((word(&mut h, 61.0), word(&mut h, 70.9)), ("ejected", "ejected"));
    assert_eq!(word(&mut h, 71.0), "half_open");
}

#[test]
fn probes_take_out_and_bring_back_by_rows() {
    use Probe::{Failed, Passed, TimedOut};
    let dead = TimedOut { alive: false };
    for (probes, expected) in [
        (&[Failed, Failed, Passed, Failed, Failed][..], "ready"),
        (&[Failed, Failed, Failed], "ejected"),
        (&[dead, Failed, dead], "ejected"),
        (&[Failed, Failed, Failed, Passed], "ejected"),
        (&[Failed, Failed, Failed, Passed, Failed, Passed], "ejected"),
        (&[Failed, Failed, Failed, Passed, Passed], "slow_start"),
    ] {
        let mut h = health();
        probes.iter().for_each(|probe| h.probed(at(1.0), *probe));
        assert_eq!(word(&mut h, 1.0), expected, "{probes:?}");
    }
}

/// H02 in the small.
#[test]
fn h02_an_engine_that_streams_is_not_taken_out_by_probes_that_time_out() {
    let mut h = health();
    for n in 0..1000 {
        h.probed(at(f64::from(n)), Probe::TimedOut { alive: true });
        assert_eq!(word(&mut h, f64::from(n)), "ready");
    }
    h.probed(at(1000.0), Probe::TimedOut { alive: false });
    h.probed(at(1001.0), Probe::TimedOut { alive: false });
    h.probed(at(1002.0), Probe::TimedOut { alive: true });
    h.probed(at(1003.0), Probe::TimedOut { alive: false });
    assert_eq!(word(&mut h, 1003.0), "ready", "a sign of life begins a new row");
}

#[test]
fn what_probes_took_out_time_does_not_bring_back() {
    let mut h = health();
    (0..3).for_each(|_| h.probed(at(1.0), Probe::Failed));
    assert_eq!(word(&mut h, 1000.0), "ejected");
}

#[test]
fn a_restart_voids_everything_and_starts_slowly() {
    let mut h = health();
    (0..5).for_each(|_| h.failed(at(1.0), Cause::Errors));
    h.restarted(at(2.0));
    assert_eq!((word(&mut h, 2.0), h.cause()), ("slow_start", None));
    let mut h = Health::new(Rules { slow_start: Duration::ZERO, ..Rules::default() });
    h.restarted(at(2.0));
    assert_eq!(word(&mut h, 2.0), "ready");
}

#[test]
fn zero_switches_each_rule_off() {
    let off = Rules { eject_failures: 0, eject_ratio: 0.0, ..Rules::default() };
    let mut h = Health::new(off);
    (0..1000).for_each(|_| h.failed(at(1.0), Cause::Errors));
    assert_eq!(word(&mut h, 1.0), "ready");
}

#[test]
fn an_inference_of_our_own_is_proof() {
    let mut h = health();
    h.silent(at(50.0), 30.0, 0.0);
    h.inferred(at(51.0), true);
    assert_eq!(word(&mut h, 51.0), "slow_start");
    (0..2).for_each(|_| h.inferred(at(52.0), false));
    assert_eq!(word(&mut h, 52.0), "ejected");
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Answered(u32),
    Alive,
    Failed(u8),
    Silent(u16, u8),
    Unreachable,
    Probed(u8),
    Inferred(bool),
    Restarted,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..4_u32).prop_map(Event::Answered),
        Just(Event::Alive),
        (0..3_u8).prop_map(Event::Failed),
        (0..60_u16, 0..10_u8).prop_map(|(silent, expected)| Event::Silent(silent, expected)),
        Just(Event::Unreachable),
        (0..4_u8).prop_map(Event::Probed),
        any::<bool>().prop_map(Event::Inferred),
        Just(Event::Restarted),
    ]
}

fn apply(h: &mut Health, now: Nanos, event: Event) {
    match event {
        Event::Answered(n) => h.answered(now, n),
        Event::Alive => h.alive(now),
        Event::Failed(n) => h.failed(now, [Cause::Errors, Cause::Cut, Cause::Unanswered][usize::from(n)]),
        Event::Silent(silent, expected) => h.silent(now, silent.into(), expected.into()),
        Event::Unreachable => h.unreachable(now),
        Event::Probed(n) => {
            let alive = |alive| Probe::TimedOut { alive };
            h.probed(now, [Probe::Passed, Probe::Failed, alive(true), alive(false)][usize::from(n)]);
        }
        Event::Inferred(is_answered) => h.inferred(now, is_answered),
        Event::Restarted => h.restarted(now),
    }
}

/// How good a state is.
fn rank(trust: Trust) -> u8 {
    match trust {
        Trust::Ejected => 0,
        Trust::Suspect => 1,
        Trust::Trial(_) => 2,
        Trust::Rising(_) => 3,
        Trust::Full => 4,
    }
}

proptest! {
    /// Whatever happened: time alone never makes it worse, no ejection outlasts its bound unless probes say so, and
    /// an engine that does everything right is wholly back within that bound and the slow start.
    #[test]
    fn every_state_leads_back(events in prop::collection::vec((event(), 0..5000_u64), 0..200)) {
        let rules = Rules::default();
        let (mut h, mut now) = (health(), Nanos(1));
        for (event, pause_ms) in events {
            let before = rank(h.trust(now));
            now = now + Duration::from_millis(pause_ms);
            h.tick(now);
            prop_assert!(rank(h.trust(now)) >= before, "time made it worse");
            let before = rank(h.trust(now));
            apply(&mut h, now, event);
            let after = rank(h.trust(now));
            match event {
                // A restart of a healthy engine begins slowly.
                Event::Answered(_) | Event::Alive | Event::Probed(0 | 2) | Event::Inferred(true) => {
                    prop_assert!(after >= before, "a good sign made it worse");
                }
                _ => {}
            }
            if after == 4 {
                prop_assert_eq!(h.cause(), None);
            }
        }
        let end = now + rules.eject_max + rules.slow_start + Duration::from_secs(1);
        while now < end {
            now = now + Duration::from_millis(200);
            h.tick(now);
            h.probed(now, Probe::Passed);
            if !matches!(h.trust(now), Trust::Ejected) {
                h.answered(now, 1);
            }
        }
        prop_assert_eq!(h.trust(now), Trust::Full);
    }
}
