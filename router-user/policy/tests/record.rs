//! What a decision record says of the grounds: which count is whose, and how old what was told is.

mod common;

use common::{ask, chat, ids, ready_pair};
use router_policy::{
    BackendId, BackendSpec, InFlight, KvSource, LoadTable, Nanos, OwnCounts, Placement, PolicyConfig, Report,
    Seen, Signal, Told,
};

fn at(seconds: f64) -> Nanos {
    Nanos::from_secs_f64(seconds)
}

fn recorded() -> PolicyConfig {
    PolicyConfig { record: true, ..PolicyConfig::default() }
}

fn report(running: u32, seconds: f64) -> Report {
    Report {
        running: Signal::known(running, at(seconds)),
        waiting: Signal::known(0, at(seconds)),
        kv_tokens: Signal::known(50_000, at(seconds)),
        seats: Signal::known(9, at(seconds)),
        ..Report::default()
    }
}

#[test]
fn a_report_is_recorded_with_its_age_and_its_absence_as_unknown() {
    let mut p = ready_pair(recorded(), 1);
    let [a, b] = ids();
    p.report(at(1.0), a, report(3, 1.0));
    let record = ask(&mut p, at(1.5), &chat(&["x".repeat(600)])).record.unwrap();
    let of = |id: BackendId| record.candidates.iter().find(|c| c.backend == id).unwrap();
    assert_eq!(of(a).report_age_seconds, Some(0.5));
    assert_eq!((of(a).foreign, of(a).foreign_age_seconds), (Some(2.5), Some(0.5)), "fading");
    assert_eq!((of(a).kv_source, of(a).kv_age_seconds), (KvSource::Reported, Some(0.5)));
    assert_eq!((of(a).seats.count(), of(a).seats_age_seconds), (9, Some(0.5)));
    assert_eq!((of(b).report_age_seconds, of(b).foreign, of(b).foreign_age_seconds), (None, None, None));
    assert_eq!((of(b).kv_source, of(b).kv_age_seconds), (KvSource::Assumed, None));
    assert_eq!((of(b).seats_age_seconds, of(b).prefill_samples), (None, 0));
    assert!(of(a).band > 0.0, "a stale count has a band");
    assert_eq!((of(b).requests, of(b).others), (Some(2.5), 0), "as many are assumed where nobody tells");
    assert!(of(b).band > 0.0, "and that is no exact count");
    for row in [a, b] {
        p.report(at(2.0), row, report(0, 2.0));
    }
    let record = ask(&mut p, at(2.5), &chat(&["y".repeat(600)])).record.unwrap();
    assert!(
        record.candidates.iter().all(|c| c.band == 0.0 && c.foreign == Some(0.0)),
        "exact counts have none"
    );
}

/// Another process has 4 at every backend.
struct Four;

impl LoadTable for Four {
    fn others(&self, _id: BackendId) -> InFlight {
        InFlight { requests: 4, q_tokens: 10, c_tokens: 20 }
    }

    fn seen(&self, _id: BackendId, now: Nanos) -> Option<Seen> {
        Some(Seen { awaiting: 70, streaming: 80, silent_seconds: Some(now.seconds_since(Nanos(0))) })
    }

    fn publish(&self, _id: BackendId, _own: InFlight) {}
}

#[test]
fn what_the_kernel_sees_is_recorded_with_its_age_and_is_in_no_term() {
    let mut p = Placement::new(recorded(), Box::new(Four), 1);
    let [a, _] = ids();
    p.set_backend(a, BackendSpec::default());
    p.set_ready(a, true);
    let record = ask(&mut p, at(2.0), &chat(&["x".repeat(600)])).record.unwrap();
    let seen = record.candidates[0].seen.unwrap();
    assert_eq!((seen.awaiting, seen.streaming, seen.silent_seconds), (70, 80, Some(2.0)));
    assert_eq!(record.candidates[0].requests, Some(4.0), "the kernel sees the same requests");
    let alone = ask(&mut ready_pair(recorded(), 1), at(2.0), &chat(&["x".repeat(600)]));
    assert_eq!(alone.record.unwrap().candidates[0].seen, None, "unknown, not 0");
}

#[test]
fn what_is_in_flight_is_the_sum_of_own_others_and_foreign() {
    let mut p = Placement::new(recorded(), Box::new(Four), 1);
    let [a, _] = ids();
    p.set_backend(a, BackendSpec { kv_tokens: Some(1000), ..BackendSpec::default() });
    p.set_ready(a, true);
    p.report(at(0.0), a, report(7, 0.0));
    let _held = ask(&mut p, at(0.0), &chat(&["x".repeat(600)]));
    let record = ask(&mut p, at(1.0), &chat(&["x".repeat(600)])).record.unwrap();
    let [c] = record.candidates.as_slice() else { panic!("{record:?}") };
    assert_eq!((c.own, c.others, c.foreign), (Some(1), 4, Some(2.0)), "of 3 foreign a third has faded");
    assert_eq!(c.requests, Some(7.0));
    assert_eq!(c.kv_source, KvSource::Configured);
}

/// The engine's host told of 8 at 1 s, when routers of this host had 3.
struct InBand;

impl LoadTable for InBand {
    fn others(&self, _id: BackendId) -> InFlight {
        InFlight { requests: 2, q_tokens: 0, c_tokens: 0 }
    }

    fn told(&self, _id: BackendId) -> Option<Told> {
        Some(Told { in_flight: 8, ours: 3, at: at(1.0) })
    }

    fn publish(&self, _id: BackendId, _own: InFlight) {}
}

#[test]
fn what_was_told_in_band_counts_until_a_report_is_fresher() {
    let mut p = Placement::new(recorded(), Box::new(InBand), 1);
    let [a, _] = ids();
    p.set_backend(a, BackendSpec::default());
    p.set_ready(a, true);
    p.report(at(0.0), a, report(60, 0.0));
    let record = ask(&mut p, at(1.0), &chat(&["x".repeat(600)])).record.unwrap();
    let c = record.candidates[0];
    assert_eq!((c.in_band, c.foreign, c.foreign_age_seconds), (Some((8, 0.0)), Some(5.0), Some(0.0)));
    assert_eq!((c.own, c.others, c.requests), (Some(0), 2, Some(7.0)));
    assert!(c.is_stale && c.report_age_seconds == Some(1.0));
    let held = p.snapshot(at(1.0), a).unwrap();
    assert_eq!((held.foreign.value(), held.in_band), (Some(5.0), Signal::known(8, at(1.0))));
    p.report(at(2.0), a, report(4, 2.0));
    let record = ask(&mut p, at(2.0), &chat(&["x".repeat(600)])).record.unwrap();
    let c = record.candidates[0];
    assert_eq!((c.in_band, c.foreign, c.foreign_age_seconds), (Some((8, 1.0)), Some(1.0), Some(0.0)));
}

#[test]
fn a_process_without_own_counts_records_none() {
    let mut p = ready_pair(PolicyConfig { own_counts: OwnCounts::Unknown, ..recorded() }, 1);
    let record = ask(&mut p, at(1.0), &chat(&["x".repeat(600)])).record.unwrap();
    assert!(record.candidates.iter().all(|c| (c.own, c.requests) == (None, None)), "unknown is not zero");
}
