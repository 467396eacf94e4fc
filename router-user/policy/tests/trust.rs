//! Who gets a request, by how far backends are trusted. Nobody who is not chosen has a say.
#![expect(clippy::unwrap_used, reason = "tests may unwrap")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::{ask, chat, ids, placement, ready_pair};
use router_policy::{
    BackendId, BackendSpec, Decision, Nanos, Outcome, PickError, Placement, PolicyConfig, PolicyName,
    RequestShape, Trust, Usage,
};

const NOW: Nanos = Nanos(1);

fn id(row: usize) -> BackendId {
    BackendId::new(row).unwrap()
}

/// So many ready backends.
fn many(policy: PolicyName, count: usize) -> Placement {
    let mut p = placement(PolicyConfig { policy, ..PolicyConfig::default() }, 7);
    for row in 0..count {
        p.set_backend(id(row), BackendSpec::default());
        p.set_ready(id(row), true);
    }
    p
}

/// Prompts that were never sent before, all in flight.
fn burst(p: &mut Placement, count: usize) -> Vec<Decision> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let text = || format!("{} unlike ", NEXT.fetch_add(1, Ordering::Relaxed)).repeat(100);
    (0..count).map(|_| ask(p, NOW, &chat(&[text()]))).collect()
}

fn went(decisions: &[Decision], row: usize) -> usize {
    decisions.iter().filter(|d| d.ticket.backend() == id(row)).count()
}

#[test]
fn a_suspect_gets_nothing_while_anybody_else_is_left_whatever_the_policy() {
    for policy in PolicyName::ALL {
        let mut p = many(policy, 3);
        p.set_trust(id(0), Trust::Suspect);
        assert_eq!(went(&burst(&mut p, 30), 0), 0, "{policy:?}");
        // The others are full, not ready or tried: better it than nobody.
        p.set_ready(id(1), false);
        let prompt = RequestShape::unshaped();
        let picked = p.pick(NOW, &prompt, &[id(2)]).unwrap();
        assert_eq!(picked.ticket.backend(), id(0), "{policy:?}");
    }
}

#[test]
fn an_ejected_one_gets_requests_only_if_all_of_the_pool_are_bad() {
    for policy in PolicyName::ALL {
        let mut p = many(policy, 3);
        p.set_trust(id(0), Trust::Ejected);
        assert_eq!(went(&burst(&mut p, 30), 0), 0, "{policy:?}");
        let prompt = RequestShape::unshaped();
        assert_eq!(p.pick(NOW, &prompt, &[id(1), id(2)]).unwrap_err(), PickError::AllTried, "{policy:?}");
        p.set_trust(id(1), Trust::Ejected);
        p.set_trust(id(2), Trust::Suspect);
        assert_eq!(went(&burst(&mut p, 30), 2), 30, "{policy:?}: the least bad");
        p.set_trust(id(2), Trust::Ejected);
        let all = burst(&mut p, 300);
        assert!((0..3).all(|row| went(&all, row) > 0), "{policy:?}: never all of them out");
        for row in 0..3 {
            p.set_ready(id(row), false);
        }
        assert_eq!(p.pick(NOW, &prompt, &[]).unwrap_err(), PickError::NoneReady, "nobody is there");
    }
}

#[test]
fn a_half_open_one_gets_so_many_at_a_time_beside_what_it_had() {
    for most in 1..4 {
        let mut p = many(PolicyName::LeastInFlight, 2);
        // Requests that hang there from before.
        let _hang: Vec<_> =
            (0..3).map(|_| p.pick_forced(NOW, &chat(&["hang".into()]), id(0)).unwrap()).collect();
        let _busy: Vec<_> =
            (0..90).map(|_| p.pick_forced(NOW, &chat(&["busy".into()]), id(1)).unwrap()).collect();
        p.set_trust(id(0), Trust::Trial(most));
        let mut trials = burst(&mut p, 30);
        trials.retain(|d| d.ticket.backend() == id(0));
        assert_eq!(trials.len(), most as usize);
        // A second word for the same changes nothing.
        p.set_trust(id(0), Trust::Trial(most));
        assert_eq!(went(&burst(&mut p, 10), 0), 0);
        let trial = trials.pop().unwrap();
        p.on_finished(NOW, trial.ticket, Outcome::UpstreamFailed, &Usage::default());
        assert_eq!(went(&burst(&mut p, 10), 0), 1, "the next one");
    }
}

#[test]
fn one_that_came_back_lately_has_a_share_of_what_the_others_have() {
    for (share, mean, most) in [(0.0, 20, 1), (0.12, 20, 4), (0.5, 20, 11), (1.0, 20, 20)] {
        let mut p = many(PolicyName::LeastInFlight, 3);
        for row in [1, 2] {
            for _ in 0..mean {
                let _held = p.pick_forced(NOW, &chat(&["x".into()]), id(row)).unwrap();
            }
        }
        p.set_trust(id(0), Trust::Rising(share));
        assert_eq!(went(&burst(&mut p, most), 0), most, "{share} of {mean}");
        if share < 1.0 {
            assert_eq!(went(&burst(&mut p, 1), 0), 0, "{share} of {mean}: it has its share");
        }
    }
    let mut p = many(PolicyName::LeastInFlight, 2);
    for row in [0, 1] {
        p.set_trust(id(row), Trust::Rising(0.0));
    }
    assert_eq!(went(&burst(&mut p, 20), 0), 10, "where all came back lately nobody is held back");
}

/// R09: what may not be chosen changes nothing among those that may.
#[test]
fn r09_one_that_is_not_trusted_has_no_say_in_where_a_prompt_goes() {
    // Where 40 prompts go while the third backend, which has three requests, is not to be chosen.
    let go = |policy: PolicyName, deny: &dyn Fn(&mut Placement)| {
        let mut p = many(policy, 3);
        for _ in 0..3 {
            let _held = p.pick_forced(NOW, &chat(&["y".into()]), id(2)).unwrap();
        }
        deny(&mut p);
        let mut go = |n: usize| {
            let d = ask(&mut p, NOW, &chat(&[format!("{} common ", n % 7).repeat(500), format!("{n}")]));
            let to = d.ticket.backend();
            if n.is_multiple_of(3) {
                p.on_finished(NOW, d.ticket, Outcome::Completed, &Usage::default());
            }
            to
        };
        (0..40).map(&mut go).collect::<Vec<_>>()
    };
    for policy in PolicyName::ALL {
        let without = go(policy, &|p| p.set_ready(id(2), false));
        assert!(!without.contains(&id(2)));
        for trust in [Trust::Suspect, Trust::Ejected, Trust::Rising(0.0)] {
            let mut with = go(policy, &|p| p.set_trust(id(2), trust));
            // Until the others have as many.
            with.truncate(with.iter().position(|to| *to == id(2)).unwrap_or(with.len()));
            assert_eq!(with, without[..with.len()], "{policy:?} {trust:?}");
            assert_eq!(with.len(), without.len(), "{policy:?} {trust:?}: it has its share");
        }
    }
}

#[test]
fn a_request_waits_as_long_as_its_prefill_and_a_plain_one_as_long_as_its_answer_too() {
    let mut p = ready_pair(PolicyConfig::default(), 1);
    let [a, _] = ids();
    assert_eq!(p.wait(a, Nanos(0), Nanos(u64::MAX)), None);
    let mut stream = chat(&["s".repeat(60_000)]);
    stream.stream = true;
    let sent = Nanos::from_secs_f64(3.0);
    let first = p.pick_forced(sent, &stream, a).unwrap();
    let wait = p.wait(a, Nanos(0), Nanos(u64::MAX)).unwrap();
    assert_eq!(wait.since, sent);
    assert!((0.9..1.2).contains(&wait.expected_seconds), "15,000 tokens at 15,000 a second: {wait:?}");
    assert_eq!(p.wait(a, Nanos(sent.0 + 1), Nanos(u64::MAX)), None, "it was sent before");
    assert_eq!(p.wait(a, Nanos(0), sent), None, "it is too young");
    assert!(p.expected_seconds(a, false) > p.expected_seconds(a, true) + 4.0, "an answer takes its time");
    p.on_finished(sent, first.ticket, Outcome::ClientGone, &Usage::default());
    let mut plain = chat(&["p".into()]);
    plain.stream = false;
    let d = p.pick_forced(sent, &plain, a).unwrap();
    p.on_finished(Nanos::from_secs_f64(33.0), d.ticket, Outcome::Completed, &Usage::default());
    assert!((29.9..31.0).contains(&p.expected_seconds(a, false)), "as the last one did");
}
