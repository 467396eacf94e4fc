//! Whether a request whose answer did not come, or which was refused, may be sent again. Does no IO.
//!
//! Invariant: a request that an engine may have begun is never sent twice. Sent again is what was not written whole;
//! and what met a *reused* connection that ended without a byte of an answer while the engine's kernel acknowledged
//! nothing of it: the engine was closing it (RFC 9112, 9.3.1). A fresh connection is not reused, so this ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper::{Method, StatusCode};

/// What is known when no answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The connection had carried a request before.
    pub reused: bool,
    /// Not all of the request was written: the engine cannot have begun it.
    pub unsent: bool,
    /// At least one byte of an answer arrived.
    pub heard: bool,
    /// The kernel says that the engine had closed the connection and none of the request was acknowledged.
    pub unacked: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Once again, to the same backend, on a new connection.
    FreshConnection,
    /// As if the connection had not come about.
    AnotherBackend,
    /// An error to the client.
    GiveUp,
}

/// The rule.
#[must_use]
pub const fn verdict(facts: Facts) -> Verdict {
    match facts {
        Facts { heard: true, .. } => Verdict::GiveUp,
        Facts { reused: true, unsent, unacked, .. } if unsent || unacked => Verdict::FreshConnection,
        Facts { reused: false, unsent: true, .. } => Verdict::AnotherBackend,
        Facts { .. } => Verdict::GiveUp,
    }
}

/// Whether an answer of this status says that the request did not run, or that running it again does no harm: 429
/// and 503 are an engine's words for "not now"; other failures of the configured ones may be asked about again by
/// methods without effects (RFC 9110, 9.2.1). A browser's OPTIONS is never worth asking about twice.
#[must_use]
pub fn may_go_elsewhere(status: StatusCode, method: &Method, configured: &[u16]) -> bool {
    let did_not_run = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    configured.contains(&status.as_u16()) && method != Method::OPTIONS && (did_not_run || method.is_safe())
}

/// How long an engine wants to be left alone: whole seconds of `Retry-After`, at most [`REST_SECONDS_MAX`]. A date
/// is not honoured: engines send none.
#[must_use]
pub fn rest_asked(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let seconds: u64 = text.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(REST_SECONDS_MAX))).filter(|rest| !rest.is_zero())
}

/// An engine is not left alone for longer, whatever it says.
const REST_SECONDS_MAX: u64 = 60;

/// Retries that may still be made: each request adds a part of one, each retry takes one, so that a fleet which
/// refuses everything is not asked twice for everything.
#[derive(Debug)]
pub struct RetryBudget {
    /// Thousandths of a retry.
    saved: AtomicU64,
    per_request: u64,
}

/// One retry, in thousandths.
const RETRY: u64 = 1000;
const SAVED_MAX: u64 = 10 * RETRY;

impl RetryBudget {
    /// So many retries per request, 0 to 1.
    #[must_use]
    pub fn new(per_request: f64) -> Self {
        let per_request = (per_request * RETRY as f64) as u64;
        let saved = if per_request == 0 { 0 } else { SAVED_MAX };
        Self { saved: AtomicU64::new(saved), per_request }
    }

    /// A request came. One read once the budget is full.
    pub fn came(&self) {
        let saved = self.saved.load(Ordering::Relaxed);
        if saved < SAVED_MAX {
            // A lost addition is a retry less in a thousand.
            self.saved.store((saved + self.per_request).min(SAVED_MAX), Ordering::Relaxed);
        }
    }

    /// Takes one retry, if there is one.
    pub fn take(&self) -> bool {
        let one_less = |saved: u64| saved.checked_sub(RETRY);
        self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
    use hyper::{Method, StatusCode};

    use super::{Facts, RetryBudget, Verdict, may_go_elsewhere, rest_asked, verdict};

    #[test]
    fn only_what_no_engine_can_have_begun_is_sent_again() {
        use Verdict::{AnotherBackend, FreshConnection, GiveUp};
        for bits in 0..16 {
            let [reused, unsent, heard, unacked] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let want = match (heard, reused, unsent, unacked) {
                (true, ..) => GiveUp,
                (_, true, true, _) | (_, true, _, true) => FreshConnection,
                (_, false, true, _) => AnotherBackend,
                _ => GiveUp,
            };
            let facts = Facts { reused, unsent, heard, unacked };
            assert_eq!(verdict(facts), want, "{facts:?}");
        }
    }

    #[test]
    fn a_post_goes_elsewhere_only_if_it_did_not_run() {
        let all = [429, 500, 502, 503, 504];
        for (status, post, get) in [
            (429, true, true),
            (503, true, true),
            (500, false, true),
            (502, false, true),
            (504, false, true),
            (404, false, false),
            (200, false, false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(may_go_elsewhere(status, &Method::POST, &all), post, "{status}");
            assert_eq!(may_go_elsewhere(status, &Method::GET, &all), get, "{status}");
            assert!(!may_go_elsewhere(status, &Method::GET, &[]), "{status} is not configured");
            assert!(!may_go_elsewhere(status, &Method::OPTIONS, &all), "{status}");
        }
    }

    #[test]
    fn an_engine_may_ask_for_a_rest_of_a_minute() {
        let rest = |text: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
            rest_asked(&headers).map(|rest| rest.as_secs())
        };
        assert_eq!(rest("1"), Some(1));
        assert_eq!(rest("3600"), Some(60));
        for text in ["0", "-1", "soon", "Wed, 21 Oct 2015 07:28:00 GMT", "99999999999999999999"] {
            assert_eq!(rest(text), None, "{text}");
        }
        assert_eq!(rest_asked(&HeaderMap::new()), None);
    }

    #[test]
    fn retries_are_a_part_of_requests() {
        let budget = RetryBudget::new(0.2);
        let saved = (0..100).filter(|_| budget.take()).count();
        assert_eq!(saved, 10);
        let retries = (0..1000).filter(|_| {
            budget.came();
            budget.take()
        });
        assert_eq!(retries.count(), 200);
        let none = RetryBudget::new(0.0);
        none.came();
        assert!(!none.take());
    }
}
