//! What is learned, what it changes, and that one engine's nonsense does not skew it.

mod common;

use common::{ask, chat, ids, ready_pair};
use router_policy::{
    BackendSpec, Nanos, Outcome, Placement, PolicyConfig, PolicyName, Reason, Report, RequestShape, Signal,
    Tuning, Usage,
};

fn at(s: f64) -> Nanos {
    Nanos::from_secs_f64(s)
}

/// One whole stream at a backend: sent, first byte after `prefill`, end after `decode` more seconds.
#[expect(clippy::unwrap_used, reason = "tests may unwrap")]
fn stream(p: &mut Placement, row: usize, start: f64, prefill: f64, decode: f64, usage: Usage) {
    let shape = chat(&[format!("{row} {start} ").repeat(4000)]);
    let mut d = p.pick_forced(at(start), &shape, ids()[row]).unwrap();
    p.on_first_byte(at(start + prefill), &mut d.ticket);
    p.on_finished(at(start + prefill + decode), d.ticket, Outcome::Completed, &usage);
}

#[test]
fn characters_per_token_come_from_usage_and_price_later_prompts() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let shape = chat(&["x".repeat(6000)]);
    let d = ask(&mut p, at(0.0), &shape);
    assert_eq!(d.prompt_tokens, 1501, "4 characters a token before any usage");
    let usage = Usage { prompt_tokens: Some(3000), ..Usage::default() };
    p.on_finished(at(1.0), d.ticket, Outcome::Completed, &usage);
    let d = ask(&mut p, at(2.0), &shape);
    assert!((2990..=3001).contains(&d.prompt_tokens), "{}", d.prompt_tokens);
    let learned = p.snapshot(at(2.0), d.ticket.backend()).unwrap().chars_per_token;
    assert!(learned.is_some_and(|(c, n)| (1.9..2.1).contains(&c) && n == 1) || d.matched_tokens == 0);
}

#[test]
fn an_aborted_answer_teaches_no_usage() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let d = ask(&mut p, at(0.0), &chat(&["x".repeat(6000)]));
    let id = d.ticket.backend();
    let usage = Usage { prompt_tokens: Some(3000), ..Usage::default() };
    p.on_finished(at(1.0), d.ticket, Outcome::ClientGone, &usage);
    assert_eq!(p.snapshot(at(2.0), id).unwrap().chars_per_token, None);
}

#[test]
fn an_answer_leaves_filler_by_its_tokens_else_by_its_size() {
    for (usage, blocks) in [
        (Usage { completion_tokens: Some(640), ..Usage::default() }, 10),
        (Usage { answer_bytes: 2560, ..Usage::default() }, 10),
        (Usage::default(), 0),
    ] {
        let mut p = ready_pair(PolicyConfig::default(), 1);
        let d = ask(&mut p, at(0.0), &chat(&["x".repeat(512)]));
        let id = d.ticket.backend();
        let before = p.snapshot(at(0.0), id).unwrap().index_blocks;
        p.on_finished(at(1.0), d.ticket, Outcome::Completed, &usage);
        assert_eq!(p.snapshot(at(1.0), id).unwrap().index_blocks - before, blocks, "{usage:?}");
    }
}

#[test]
fn what_was_never_sent_leaves_no_filler() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let d = ask(&mut p, at(0.0), &chat(&["x".repeat(512)]));
    let id = d.ticket.backend();
    let usage = Usage { completion_tokens: Some(640), ..Usage::default() };
    p.on_finished(at(1.0), d.ticket, Outcome::NeverSent, &usage);
    assert_eq!(p.snapshot(at(1.0), id).unwrap().index_blocks, 2);
}

#[test]
fn a_slower_engine_gets_less_when_speed_weighs() {
    let shares = |weigh_by_speed| {
        let tuning = Tuning { weigh_by_speed, ..Tuning::default() };
        let mut p = ready_pair(PolicyConfig { tuning, ..PolicyConfig::default() }, 1);
        for n in 0..5 {
            // A prefills 4,000 tokens a second, B 16,000.
            stream(&mut p, 0, f64::from(n) * 100.0, 1.0, 1.0, Usage::default());
            stream(&mut p, 1, f64::from(n) * 100.0, 0.25, 1.0, Usage::default());
        }
        let mut on_slow = 0;
        let mut held = Vec::new();
        for n in 0..12 {
            let d = ask(&mut p, at(1000.0), &chat(&[format!("new {n} ").repeat(600)]));
            on_slow += usize::from(d.ticket.backend() == ids()[0]);
            held.push(d);
        }
        on_slow
    };
    assert_eq!(shares(false), 6, "equal by default");
    assert!(shares(true) < 6, "fewer on the slow one: {}", shares(true));
}

#[test]
fn a_session_moves_at_the_turn_where_waiting_costs_more_than_recomputing_and_the_record_says_so() {
    let mut p = ready_pair(PolicyConfig { record: true, ..PolicyConfig::default() }, 3);
    let [a, b] = ids();
    let mut turns = vec!["s".repeat(8192)];
    let first = p.pick_forced(at(0.0), &chat(&turns), a).unwrap();
    p.on_finished(at(1.0), first.ticket, Outcome::Completed, &Usage::default());
    let mut held = Vec::new();
    let mut moved = None;
    for turn in 0..40 {
        turns.push(format!("turn {turn} ").repeat(40));
        let d = ask(&mut p, at(2.0), &chat(&turns));
        let record = d.record.as_ref().unwrap();
        let cost = |id| record.candidates.iter().find(|c| c.backend == id).unwrap().compared;
        let (stay, go) = (cost(a), cost(b));
        if d.ticket.backend() == b {
            assert!(go <= stay, "turn {turn}: it moves when that is cheaper ({go} against {stay})");
            moved = Some(turn);
            break;
        }
        assert!(stay <= go, "turn {turn}: not before ({stay} against {go})");
        p.on_finished(at(3.0), d.ticket, Outcome::Completed, &Usage::default());
        // Somebody else's prefill of 600 tokens is added to A's queue.
        held.push(p.pick_forced(at(3.0), &chat(&[format!("other {turn} ").repeat(240)]), a).unwrap());
    }
    assert!(moved.is_some_and(|turn| turn > 0), "nothing is latched: it moves at last, {moved:?}");
}

#[test]
fn a_report_that_is_too_old_is_stale_and_says_nothing() {
    use router_policy::OwnCounts;
    let config = PolicyConfig {
        policy: PolicyName::LeastInFlight,
        own_counts: OwnCounts::Unknown,
        ..PolicyConfig::default()
    };
    let mut p = ready_pair(config, 1);
    let [a, b] = ids();
    for (id, running) in [(a, 9), (b, 0)] {
        let report = Report {
            running: Signal::known(running, at(1.0)),
            waiting: Signal::known(0, at(1.0)),
            ..Report::default()
        };
        p.report(at(1.0), id, report);
    }
    assert_eq!(ask(&mut p, at(2.0), &RequestShape::unshaped()).ticket.backend(), b, "fresh: B is emptier");
    let reasons: Vec<Reason> =
        (0..4).map(|_| ask(&mut p, at(60.0), &RequestShape::unshaped()).reason).collect();
    assert!(reasons.iter().all(|r| *r == Reason::LowestQps), "too old: nobody can say, {reasons:?}");
}

#[test]
fn sessions_stay_together_until_their_backend_is_overloaded() {
    let mut p = ready_pair(PolicyConfig { policy: PolicyName::Session, ..PolicyConfig::default() }, 1);
    for (id, url) in ids().into_iter().zip(["http://a", "http://b"]) {
        p.remove_backend(id);
        p.set_backend(id, BackendSpec { url: url.into(), ..BackendSpec::default() });
        p.set_ready(id, true);
    }
    let of = |session| RequestShape { session: Some(session), ..chat(&["hello".to_owned()]) };
    for session in 0..40 {
        let first = ask(&mut p, at(0.0), &of(session));
        let home = first.ticket.backend();
        p.on_finished(at(1.0), first.ticket, Outcome::Completed, &Usage::default());
        let again = ask(&mut p, at(2.0), &of(session));
        assert_eq!((again.ticket.backend(), again.reason), (home, Reason::HashOwner));
        p.on_finished(at(3.0), again.ticket, Outcome::Completed, &Usage::default());
    }
    let held: Vec<_> = (0..8).map(|_| ask(&mut p, at(4.0), &of(1))).collect();
    assert!(held.iter().any(|d| d.reason == Reason::HashSpill), "one hot session spills over");
    assert_eq!(ask(&mut p, at(5.0), &chat(&["x".to_owned()])).reason, Reason::NoSession);
}
