//! Sending again: never what an engine may have begun, never beyond the budget.
#![no_main]

use arbitrary::Arbitrary;
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Method, StatusCode};
use libfuzzer_sys::fuzz_target;
use router_fuzz::retry::{Facts, RetryBudget, Verdict, may_go_elsewhere, rest_asked, verdict};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Failures in the order in which one request meets them.
    failures: Vec<[bool; 4]>,
    status: u16,
    method: &'a str,
    configured: Vec<u16>,
    retry_after: &'a [u8],
    per_mille: u16,
    /// Requests that come (true) and retries that are asked for.
    steps: Vec<bool>,
}

fuzz_target!(|input: Input<'_>| {
    one_request(&input.failures);
    elsewhere(&input);
    budget(&input);
});

/// As `Upstream::send` does it: first perhaps on a reused connection, then on fresh ones.
fn one_request(failures: &[[bool; 4]]) {
    let mut is_reused = failures.first().is_some_and(|first| first[0]);
    let mut fresh = 0;
    for &[_, unsent, heard, unacked] in failures {
        let may_have_run = heard || !(unsent || (unacked && is_reused));
        let verdict = verdict(Facts { reused: is_reused, unsent, heard, unacked });
        assert!(!may_have_run || verdict == Verdict::GiveUp, "it may have run");
        if verdict != Verdict::FreshConnection {
            break;
        }
        is_reused = false;
        fresh += 1;
    }
    assert!(fresh <= 1, "a fresh connection is not reused, so this ends");
}

fn elsewhere(input: &Input<'_>) {
    let (Ok(status), Ok(method)) = (StatusCode::from_u16(input.status), input.method.parse::<Method>()) else { return };
    if may_go_elsewhere(status, &method, &input.configured) {
        assert!(input.configured.contains(&input.status));
        let has_no_effects = [Method::GET, Method::HEAD, Method::TRACE].contains(&method);
        assert!(has_no_effects || [429, 503].contains(&input.status), "{method} {status} may have run");
    }
    if let Ok(value) = HeaderValue::from_bytes(input.retry_after) {
        let rest = rest_asked(&HeaderMap::from_iter([(RETRY_AFTER, value)]));
        assert!(rest.is_none_or(|rest| (1..=60).contains(&rest.as_secs())), "{rest:?}");
    }
}

fn budget(input: &Input<'_>) {
    let per_request = f64::from(input.per_mille % 1001) / 1000.0;
    let budget = RetryBudget::new(per_request);
    let (mut came, mut taken) = (0_u32, 0_u32);
    for &is_request in &input.steps {
        if is_request {
            budget.came();
            came += 1;
        } else {
            taken += u32::from(budget.take());
        }
        assert!(f64::from(taken) <= 10.0 + f64::from(came) * per_request);
    }
}
